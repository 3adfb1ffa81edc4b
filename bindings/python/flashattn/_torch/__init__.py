"""What flashattn.torch_ops stands on: calls of the library that take torch tensors, without numpy,
DLPack or a view of each argument, and the registration of the operators.

forward        attention on tensors
combine        merging on tensors
arguments      how their arguments are grouped
placement      lengths, pages and scales
structs        the C API's structs as formats that are packed in one go
frame          memory that calls reuse: a packed struct, a workspace; what launches a call
explain        the words for what is wrong with a call
registration   the operators: schemas, kernels, shapes without data, autocast
derivatives    refuses tensors that want one
direct         whether a call may pass the operators by

Importing a module of this package imports torch.
"""

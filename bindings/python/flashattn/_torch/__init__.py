"""What flashattn.torch_ops stands on: calls of the library that take torch tensors, without numpy,
DLPack or a view of each argument, and the registration of the operators.

structs        the C API's structs as formats that struct packs in one go
frame          memory that calls reuse: a packed struct, a workspace; what launches a call
forward        attention on tensors
combine        merging on tensors
registration   schemas, kernels, shapes without data, autocast

Importing a module of this package imports torch.
"""

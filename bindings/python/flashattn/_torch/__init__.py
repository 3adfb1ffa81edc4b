"""This package holds what flashattn.torch_ops is built on: calls of the library that take torch
tensors, without numpy, DLPack or a view of each argument, and the registration of the operators.

forward          computes attention on tensors
combine          merges partial results that are tensors
append           appends new tokens to a cache
call             says where each argument lies in a call of attention
schemas          has the operators' schemas, and leads their arguments into a call
arguments        defines how arguments that belong together are grouped
placement        checks lengths, pages and scales, and passes them on
structs          holds the C API's structs as formats that are packed in one go
frame            holds memory that calls reuse (packed structs, a workspace), and launches calls
explain          finds the message for a call that failed
registration     registers the operators of attention: schemas, kernels, shapes without data
append_operator  registers the operator that appends
quantise_operator  registers the operators that quantise
backward         registers the operators that compute gradients
gradients        records gradients where torch records derivatives
derivatives      refuses tensors that need a derivative
foreign          refuses what is no tensor, and sparse and nested tensors
direct           decides whether a call may pass the operators by
extension        loads the extension, which makes calls of plain tensors faster

Importing a module of this package imports torch.
"""

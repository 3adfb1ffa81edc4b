"""onnxruntime's attention on a CPU, in FP32: of its operators the fastest that serves the problem.

GroupQueryAttention attends to a cache of keys, [batch, n_heads_kv, seqlen_k, d_head], which the
queries' own keys are written to first, and masks causally. MultiHeadAttention serves full attention
of as many heads of K and V as of Q. V has the d_head of K in both.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from .. import device

Call = Callable[[], np.ndarray]

_OPSETS = {"": 17, "com.microsoft": 1}
_IR_VERSION = 8


def make_call(q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]) -> Call | None:
    """A call that computes O, [batch, seqlen_q, n_heads, d_head]; None: no operator serves this.

    options: causal, where seqlen_q == seqlen_k, and softmax_scale; no window and no softcap.
    """
    if v.shape[-1] != k.shape[-1]:
        return None
    if options["causal"] or q.shape[1] == 1:
        return _cached_call(q, k, v, options)
    if q.shape[2] == k.shape[2]:
        return _multi_head_call(q, k, v, options)
    return None


def _cached_call(q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]) -> Call:
    (batch, seqlen_q), seqlen_k = q.shape[:2], k.shape[1]
    own = slice(seqlen_k - seqlen_q, seqlen_k)
    k_cache, v_cache = (np.ascontiguousarray(x.transpose(0, 2, 1, 3)) for x in (k, v))
    o = np.empty_like(q)
    inputs = {
        "q": _rows(q),
        "k": _rows(k[:, own]),
        "v": _rows(v[:, own]),
        "k_cache": k_cache,
        "v_cache": v_cache,
        "last": np.full(batch, seqlen_k - 1, np.int32),
        "total": np.array([seqlen_k], np.int32),
    }
    outputs = {"o": _rows(o), "k_cache_after": k_cache, "v_cache_after": v_cache}
    attributes = _attributes(options, num_heads=q.shape[2], kv_num_heads=k.shape[2])
    return _call("GroupQueryAttention", inputs, outputs, attributes, o)


def _multi_head_call(q: np.ndarray, k: np.ndarray, v: np.ndarray, options: dict[str, Any]) -> Call:
    o = np.empty_like(q)
    inputs = {"q": _rows(q), "k": _rows(k), "v": _rows(v)}
    attributes = _attributes(options, num_heads=q.shape[2])
    return _call("MultiHeadAttention", inputs, {"o": _rows(o)}, attributes, o)


def _attributes(options: dict[str, Any], **numbers: int) -> dict[str, Any]:
    scale = options["softmax_scale"]  # never 0, which would mean the default here
    return numbers if scale is None else {**numbers, "scale": scale}


def _rows(x: np.ndarray) -> np.ndarray:
    """[batch, length, n_heads * d_head]: where x is contiguous, the same memory."""
    return np.ascontiguousarray(x).reshape(*x.shape[:2], -1)


def _call(
    operator: str,
    inputs: dict[str, np.ndarray],
    outputs: dict[str, np.ndarray],
    attributes: dict[str, Any],
    o: np.ndarray,
) -> Call:
    """Runs the operator on these arrays themselves; what is read and written may be the same."""
    import onnxruntime

    settings = onnxruntime.SessionOptions()
    settings.intra_op_num_threads = device.num_threads()
    session = onnxruntime.InferenceSession(
        _model(operator, inputs, outputs, attributes), settings, providers=["CPUExecutionProvider"]
    )
    values = {  # of an array that is read and written, one
        id(x): onnxruntime.OrtValue.ortvalue_from_numpy(x)
        for x in (*inputs.values(), *outputs.values())
    }
    binding = session.io_binding()
    for name, x in inputs.items():
        binding.bind_ortvalue_input(name, values[id(x)])
    for name, x in outputs.items():
        binding.bind_ortvalue_output(name, values[id(x)])

    def call() -> np.ndarray:
        session.run_with_iobinding(binding)
        return o

    return call


def _model(
    operator: str,
    inputs: dict[str, np.ndarray],
    outputs: dict[str, np.ndarray],
    attributes: dict[str, Any],
) -> bytes:
    from onnx import helper

    def infos(arrays: dict[str, np.ndarray]) -> list[Any]:
        return [
            helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(x.dtype), x.shape)
            for name, x in arrays.items()
        ]

    node = helper.make_node(
        operator, list(inputs), list(outputs), domain="com.microsoft", **attributes
    )
    graph = helper.make_graph([node], "attention", infos(inputs), infos(outputs))
    imports = [helper.make_opsetid(domain, version) for domain, version in _OPSETS.items()]
    model = helper.make_model(graph, opset_imports=imports, ir_version=_IR_VERSION)
    return model.SerializeToString()

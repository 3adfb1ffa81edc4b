"""The doors of torch that record gradients, and the ways in which programs call them: compiled, in
checkpoints, under autocast, in CUDA graphs, with strides of their own, on other streams."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from typing import Any, Callable

import flashattn
import flashattn.hf
import flashattn.sdpa
import torch
from flashattn import torch_ops
from flashattn.compat import fa2, fa3
from flashattn.hf._attention import attention as hf_attention
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint
from training_cases import Case, Data

Attend = Callable[..., tuple[Tensor, ...]]

# ---- Doors ----


def _int32(values: Any, like: Tensor) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int32, device=like.device)


def _ends(lengths: tuple[int, ...], like: Tensor) -> Tensor:
    ends = [0]
    for x in lengths:
        ends.append(ends[-1] + x)
    return _int32(ends, like)


def _own(case: Case, data: Data) -> dict[str, Any]:
    """Returns keywords of the package's own functions."""
    options: dict[str, Any] = {
        "softmax_scale": case.scale, "causal": case.causal, "window_size": case.window,
        "attention_chunk": case.chunk, "softcap": case.softcap, "alibi_slopes": data.slopes,
        "attn_mask": data.mask, "return_lse": True,
    }  # fmt: skip
    if case.dropout_p:
        options |= {"dropout_p": case.dropout_p, "rng_state": data.rng_state}
    if case.is_ragged:
        options |= {
            "cu_seqlens_q": _ends(case.lengths_q, data.q),
            "cu_seqlens_k": _ends(case.lengths_k, data.q),
            "max_seqlen_q": max(case.lengths_q), "max_seqlen_k": max(case.lengths_k),
        }  # fmt: skip
    elif case.leftpad:
        options["leftpad_k"] = _int32(case.leftpad, data.q)
    elif case.has_lengths:
        options["seqused_k"] = _int32(case.lengths_k, data.q)
    return options


def _ops(case: Case, data: Data) -> Attend:
    function = torch_ops.flash_attn_varlen_func if case.is_ragged else torch_ops.flash_attn_func
    options = _own(case, data)
    return lambda q, k, v, sinks=None: function(q, k, v, sinks=sinks, **options)


def _compat(version: Any, door: str) -> Callable[[Case, Data], Attend]:
    is_second = version is fa2
    packing = "qkv" if "qkvpacked" in door else "kv" if "kvpacked" in door else ""
    is_ragged = "varlen" in door
    suffix = "_varlen" * is_ragged + f"_{packing}packed" * bool(packing)
    function = getattr(version, f"flash_attn{suffix}_func")

    def make(case: Case, data: Data) -> Attend:
        options: dict[str, Any] = {
            "softmax_scale": case.scale, "causal": case.causal, "window_size": case.window,
            "softcap": case.softcap, "return_attn_probs": case.with_lse,
        }  # fmt: skip
        if is_second:
            options |= {"alibi_slopes": data.slopes, "dropout_p": case.dropout_p}
        else:
            options["attention_chunk"] = case.chunk
        sizes: list[Any] = []
        if is_ragged:
            ends = [_ends(x, data.q) for x in (case.lengths_q, case.lengths_k)]
            most = [max(x) for x in (case.lengths_q, case.lengths_k)]
            sizes = [ends[0], most[0]] if packing == "qkv" else [*ends, *most]
        axis = 1 if is_ragged else 2
        n, n_kv = case.heads

        def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
            if packing == "qkv" and n != n_kv:
                found = function(torch.cat([q, k, v], axis), *sizes, num_heads_q=n, **options)
            elif packing == "qkv":
                found = function(torch.stack([q, k, v], axis), *sizes, **options)
            elif packing:
                found = function(q, torch.stack([k, v], axis), *sizes, **options)
            else:
                found = function(q, k, v, *sizes, **options)
            return (found,) if isinstance(found, Tensor) else tuple(found[:2])

        return attend

    return make


def _sdpa(case: Case, data: Data) -> Attend:
    def attend(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            o = torch.nn.functional.scaled_dot_product_attention(
                *(x.transpose(1, 2) for x in (q, k, v)), is_causal=case.causal, scale=case.scale,
                enable_gqa=case.heads[0] != case.heads[1], dropout_p=case.dropout_p,
            )  # fmt: skip
        return (o.transpose(1, 2),)

    return attend


def _hf(case: Case, data: Data) -> Attend:
    mask = data.mask
    if case.leftpad:
        at = torch.arange(case.seqlen_k, device=data.q.device)
        mask = (at >= _int32(case.leftpad, data.q)[:, None]).int()
    window = None if case.window == (-1, -1) else case.window[0] + 1

    def attend(q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None = None) -> tuple[Tensor, ...]:
        o, _ = hf_attention(
            torch.nn.Module(), *(x.transpose(1, 2) for x in (q, k, v)), mask,
            scaling=case.scale, softcap=case.softcap or None, is_causal=case.causal,
            sliding_window=window, s_aux=sinks, dropout=case.dropout_p,
        )  # fmt: skip
        return (o,)

    return attend


DOORS: dict[str, Callable[[Case, Data], Attend]] = {
    "ops": _ops,
    "ops_varlen": _ops,
    "sdpa": _sdpa,
    "hf": _hf,
    **{
        name: _compat(fa2 if name[:3] == "fa2" else fa3, name)
        for name in (
            "fa2", "fa2_kvpacked", "fa2_qkvpacked", "fa2_varlen", "fa2_varlen_kvpacked",
            "fa2_varlen_qkvpacked", "fa3", "fa3_qkvpacked", "fa3_varlen",
        )
    },
}  # fmt: skip

# ---- Ways ----

Found = tuple[list, tuple[Tensor, ...]]  # gradients, or None, and results


def _given(case: Case, data: Data, results: tuple[Tensor, ...]) -> tuple[list, list]:
    """Returns the results that have gradients, and those."""
    if not case.with_lse:
        return [results[0]], [data.d_o.to(results[0].dtype)]
    return [results[0], results[1]], [data.d_o.to(results[0].dtype), data.d_lse]


def _plain(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
    results = attend(*leaves)
    of_results, d = _given(case, data, results)
    wanted = [x for x in leaves if x.requires_grad]
    found = iter(torch.autograd.grad(of_results, wanted, d, allow_unused=True))
    return [next(found) if x.requires_grad else None for x in leaves], results


def _compiled(backend: str, fullgraph: bool = True) -> Callable[..., Found]:
    def run(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
        torch._dynamo.reset()
        return _plain(
            case, data, torch.compile(attend, fullgraph=fullgraph, backend=backend), leaves
        )

    return run


def _checkpointed(reentrant: bool) -> Callable[..., Found]:
    def run(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
        for x in leaves:
            x.grad = None
        results = checkpoint(attend, *leaves, use_reentrant=reentrant)
        torch.autograd.backward(*_given(case, data, results))
        return [x.grad for x in leaves], results

    return run


def _autocast(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
    wide = [x.detach().float().requires_grad_() for x in leaves]

    def under(*x: Tensor) -> tuple[Tensor, ...]:
        with torch.autocast(x[0].device.type, dtype=getattr(torch, case.dtype)):
            return attend(*x)

    found, results = _plain(case, data, under, wide)
    assert all(x.dtype == torch.float32 for x in found)
    return found, results


def _twice(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
    """Accumulates two passes, and keeps a graph for one of them."""
    results = attend(*leaves)
    given = _given(case, data, results)
    torch.autograd.backward(*given, retain_graph=True)
    torch.autograd.backward(*given)
    return [None if x.grad is None else x.grad / 2 for x in leaves], results


def _graphed(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
    gc.collect()  # the end of another graph would spoil the capture
    sample = tuple((x.detach() / 2).requires_grad_() for x in leaves)
    return _plain(case, data, torch.cuda.make_graphed_callables(attend, sample), leaves)


def _captured(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
    static = [(x.detach() / 2).requires_grad_() for x in leaves]
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _plain(case, data, attend, static)
    torch.cuda.current_stream().wait_stream(side)
    gc.collect()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found, results = _plain(case, data, attend, static)
    with torch.no_grad():
        for x, y in zip(static, leaves):
            x.copy_(y)
    graph.replay()
    graph.replay()
    return found, results


def _strided(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
    """Takes tensors in the order of heads, and beside others in one allocation."""

    def of_heads(x: Tensor) -> Tensor:
        return x.transpose(-2, -3).contiguous().transpose(-2, -3)

    def inside(x: Tensor) -> Tensor:
        wide = torch.full((*x.shape[:-1], x.shape[-1] + 11), torch.nan).to(x)
        wide[..., 3 : 3 + x.shape[-1]] = x
        return wide[..., 3 : 3 + x.shape[-1]]

    q, k, v, *rest = (x.detach() for x in leaves)
    given = [of_heads(q), inside(k), of_heads(v), *rest]
    was, data.d_o = data.d_o, of_heads(data.d_o)
    try:
        return _plain(case, data, attend, [x.requires_grad_() for x in given])
    finally:
        data.d_o = was


def _unaligned(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
    def moved(x: Tensor) -> Tensor:
        return torch.cat([x.new_zeros(1), x.detach().flatten()])[1:].view(x.shape)

    was, data.d_o = data.d_o, moved(data.d_o)
    try:
        return _plain(case, data, attend, [moved(x).requires_grad_() for x in leaves])
    finally:
        data.d_o = was


def _other_stream(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
    """Runs the forward pass on a busy stream, and lets the backward pass be called from another."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(3_000_000)
        results = attend(*leaves)
    torch.cuda.current_stream().wait_stream(side)
    of_results, d = _given(case, data, results)
    found = torch.autograd.grad(of_results, leaves, d, allow_unused=True)
    torch.cuda.synchronize()
    return list(found), results


def _some(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
    """Wants the gradients of some tensors only, by the case's own choice."""
    n = 1 + hash((case.d_head, case.lengths_q)) % (2 ** len(leaves) - 1)
    given = [x.detach().requires_grad_(bool(n >> i & 1)) for i, x in enumerate(leaves)]
    return _plain(case, data, attend, given)


def _transformed(case: Case, data: Data, attend: Attend, leaves: list[Tensor]) -> Found:
    results, pullback = torch.func.vjp(attend, *(x.detach() for x in leaves))
    d = _given(case, data, results)[1]
    d += [torch.zeros_like(x) for x in results[len(d) :]]
    return list(pullback(tuple(d))), results


WAYS: dict[str, Callable[..., Found]] = {
    "plain": _plain,
    "compiled": _compiled("aot_eager"),
    "inductor": _compiled("inductor"),
    "checkpoint": _checkpointed(False),
    "reentrant": _checkpointed(True),
    "autocast": _autocast,
    "twice": _twice,
    "graphed": _graphed,
    "captured": _captured,
    "strided": _strided,
    "unaligned": _unaligned,
    "stream": _other_stream,
    "some": _some,
    "transformed": _transformed,
}
ON_CUDA_ALONE = ("graphed", "captured", "stream")


def around(door: str) -> Any:
    """Returns a context in which the door is open."""
    return _OfSdpa() if door == "sdpa" else nullcontext()


class _OfSdpa:
    def __enter__(self) -> None:
        flashattn.sdpa.register()
        torch.nn.attention.activate_flash_attention_impl(flashattn.sdpa.NAME)

    def __exit__(self, *_: Any) -> None:
        torch.nn.attention.restore_flash_attention_impl()

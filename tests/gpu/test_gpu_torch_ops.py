"""flashattn.torch_ops on CUDA devices: the bits of the functions for all arrays, on torch's stream,
with torch's memory, in graphs and compiled.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import flashattn
import pytest
import torch
from busy_streams import run_on_a_busy_stream
from device_memory import lengths
from flashattn import torch_ops
from gpu_problems import device_inputs, device_options, device_pages
from paging import KINDS, PagedProblem
from problems import AttentionProblem
from torch_append_calls import NAMES, Call, assert_same, assert_same_bits, make_call
from torch_append_calls import run as run_append
from torch_calls import WAYS, Recorded, check_plain_tensors_skip_the_dispatcher

every_way = pytest.mark.parametrize("way", WAYS)
P = AttentionProblem(2, 200, 300, 6, 2, 128, "bfloat16", causal=True)
DECODE = AttentionProblem(5, 1, 3000, 8, 2, 128, "bfloat16", seqused_k=(3000, 1, 0, 64, 777))
PROBLEMS = {
    "prefill": P,
    "window": replace(P, window_size=(50, 0), d_head=64, dtype="float16", softcap=20.0),
    "transposed": replace(P, layouts=("heads_first",) * 4),
    "wide O": replace(P, o_dtype="float32"),
    "decode": DECODE,
    "ragged": AttentionProblem(
        3, 120, 700, 4, 2, 64, "float16",
        cu_seqlens_q=(0, 120, 121, 130), cu_seqlens_k=(0, 130, 830, 900),
    ),
    "mixed": AttentionProblem(
        3, 300, 900, 8, 2, 128, "bfloat16", causal=True,
        cu_seqlens_q=(0, 1, 301, 302), seqused_k=(900, 500, 33),
    ),
    "e4m3": AttentionProblem(
        2, 3, 900, 8, 2, 128, "float8_e4m3fn", "bfloat16", causal=True,
        k_descale=((0.5, 1.0), (2.0, 0.25)), v_descale=2.0,
    ),
}  # fmt: skip
every_problem = pytest.mark.parametrize("p", PROBLEMS.values(), ids=PROBLEMS)


def _options(p: AttentionProblem, package: Any) -> dict[str, Any]:
    """Returns keywords of the package's functions, without the lengths that padded ones lack."""
    options = device_options(p)
    if package is torch_ops:
        options["out_dtype"] = getattr(torch, options["out_dtype"])
    if p.cu_seqlens_q is None and p.cu_seqlens_k is None:
        options = {n: x for n, x in options.items() if not n.startswith(("cu_", "max_"))}
    return options


def _call(package: Any, tensors: list[torch.Tensor], options: dict[str, Any]) -> Any:
    is_ragged = any(name.startswith("cu_seqlens") for name in options)
    if not is_ragged:
        return package.flash_attn_func(*tensors, **options)
    options = {"cu_seqlens_q": None, "max_seqlen_q": None, **options}
    return package.flash_attn_varlen_func(*tensors, **options)


def _by(way: str, tensors: list[torch.Tensor], options: dict[str, Any]) -> Any:
    if way == "function":
        return _call(torch_ops, tensors, options)
    with Recorded():
        return _call(torch_ops, tensors, options)


def _equal(a: Any, b: Any) -> bool:
    return all(torch.equal(x, y) for x, y in zip(a, b))


@every_way
@every_problem
def test_bits_are_those_of_the_other_functions(p: AttentionProblem, way: str) -> None:
    tensors = device_inputs(p)
    expected = _call(flashattn, tensors, {**_options(p, flashattn), "return_lse": True})
    found = _by(way, tensors, {**_options(p, torch_ops), "return_lse": True})
    assert _equal(found, expected) and all(x.device == tensors[0].device for x in found)
    out, lse = (torch.empty_like(x) for x in expected)
    _by(way, tensors, {**_options(p, torch_ops), "out": out, "lse": lse})
    assert _equal((out, lse), expected)


@every_way
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["decode", "mixed"])
def test_pages(name: str, kind: str, way: str) -> None:
    q = PagedProblem(PROBLEMS[name], 16, kind, v_apart=True)
    tensors, where = device_pages(q)
    p = replace(q.p, seqused_k=None)
    expected = _call(flashattn, tensors, {**_options(p, flashattn), **where})
    assert torch.equal(_by(way, tensors, {**_options(p, torch_ops), **where}), expected)


@every_way
def test_partial_results(way: str) -> None:
    o, lse = torch.randn(3, 2, 40, 4, 64, device="cuda"), torch.randn(3, 2, 4, 40, device="cuda")
    expected = flashattn.flash_combine(o, lse, return_lse=True)
    if way == "function":
        assert _equal(torch_ops.flash_combine(o, lse, return_lse=True), expected)
    else:
        assert _equal(torch.ops.flashattn.combine.lse(o, lse), expected)


@every_way
@pytest.mark.parametrize("name", NAMES)
def test_appending(name: str, way: str) -> None:
    call, other = make_call(name, "cuda"), make_call(name, "cuda")
    found, expected = run_append(call, way), flashattn.flash_kv_append(**other)
    assert_same(call, other)
    assert_same_bits(found, expected)


# ---- Streams, memory, graphs ----


@every_way
@pytest.mark.parametrize("name", ["prefill", "decode"])
def test_call_waits_for_its_stream_and_not_for_the_device(name: str, way: str) -> None:
    p = PROBLEMS[name]
    late, options = device_inputs(p), _options(p, torch_ops)
    expected = _by(way, late, options)
    early = [torch.zeros_like(x) for x in late]

    def copy_and_call() -> torch.Tensor:
        for x, y in zip(early, late):
            x.copy_(y)
        return _by(way, early, options)

    assert torch.equal(run_on_a_busy_stream(copy_and_call), expected)


@every_way
def test_workspace_comes_from_torch_and_goes_back(way: str) -> None:
    tensors, options = device_inputs(DECODE), _options(DECODE, torch_ops)
    options["out"] = _by(way, tensors, options)
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    _by(way, tensors, options)
    assert torch.cuda.memory_allocated() == before < torch.cuda.max_memory_allocated()


@every_way
@pytest.mark.parametrize("name", ["prefill", "decode", "mixed"])
def test_graph_replays_with_other_values_and_lengths(name: str, way: str) -> None:
    p = PROBLEMS[name]
    tensors, options = device_inputs(p), _options(p, torch_ops)
    _by(way, tensors, options)  # loads the kernels, which a capture cannot
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = _by(way, tensors, {**options, "return_lse": True})
    for seed in (1, 2):
        for x, y in zip(tensors, device_inputs(replace(p, seed=seed))):
            x.copy_(y)
        if p.seqused_k:
            used = tuple(max(0, n - 7 * seed) for n in p.seqused_k)
            options["seqused_k"].copy_(lengths(used))
        other = torch.full((1 << 26,), float("nan"), device="cuda")  # takes what is free
        graph.replay()
        expected = _by(way, tensors, {**options, "return_lse": True})
        assert _equal(captured, expected)
        del other


@every_way
def test_appending_waits_for_its_stream_and_not_for_the_device(way: str) -> None:
    late, call = make_call("dense rotary", "cuda"), make_call("dense rotary", "cuda")
    k_new = call["k_new"].clone()
    call["k_new"].zero_()
    call["q_out"] = torch.empty_like(call["q"])
    expected = run_append(late, way)
    before = torch.cuda.memory_allocated()

    def copy_and_append() -> torch.Tensor:
        call["k_new"].copy_(k_new)
        return run_append(call, way)

    found = run_on_a_busy_stream(copy_and_append)
    assert torch.cuda.memory_allocated() == before
    assert_same_bits(found, expected)
    assert_same({**call, "q_out": None}, late)


def _step(call: Call, way: str) -> torch.Tensor:
    """Appends, computes attention, and moves the lengths on."""
    q = run_append(call, way)
    caches = call["k_cache"], call["v_cache"]
    where = {"page_table": call["page_table"], "seqused_k": call["seqused_k_out"]}
    o = _by(way, [q, *caches], {**where, "causal": True})
    call["seqused_k"].copy_(call["seqused_k_out"])
    return o


@every_way
def test_a_graph_of_appending_and_attention_replays(way: str) -> None:
    def make() -> Call:
        turns = make_call("dense rotary", "cuda")
        q = {"q": turns["q"][:, :1]}
        return {**make_call("pages", "cuda"), **q, **{n: turns[n] for n in turns if "rotary" in n}}

    call, other = make(), make()
    lengths = call["seqused_k"].clone()
    _step(call, way)  # loads the kernels, which a capture cannot
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = _step(call, way)
    call["seqused_k"].copy_(lengths)
    for step in range(3):  # the second sequence has room for a single token
        if step:
            for x in (call, other):
                x["k_new"].add_(1)
        graph.replay()
        assert_same_bits(captured, _step(other, way))
        assert_same(call, other)


def test_compiled_with_graphs() -> None:
    def decode(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, used: torch.Tensor) -> Any:
        return torch_ops.flash_attn_func(q * 2, k, v, seqused_k=used) + 1

    q, k, v = device_inputs(DECODE)
    used = lengths(DECODE.seqused_k)
    compiled = torch.compile(decode, fullgraph=True, mode="reduce-overhead")
    with torch.no_grad():
        for _ in range(4):
            torch.compiler.cudagraph_mark_step_begin()
            found = compiled(q, k, v, used).clone()
            assert torch.equal(found, decode(q, k, v, used))
            used.sub_(1).clamp_(min=0)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")
@every_way
def test_call_runs_where_its_tensors_are(way: str) -> None:
    for p in (P, DECODE):
        tensors, options = device_inputs(p), _options(p, torch_ops)
        expected = _by(way, tensors, options)
        second = [x.to("cuda:1") for x in tensors]
        there = {
            n: x.to("cuda:1") if isinstance(x, torch.Tensor) else x for n, x in options.items()
        }
        o = _by(way, second, there)
        assert torch.cuda.current_device() == 0 and o.device.index == 1
        assert torch.equal(o.cpu(), expected.cpu())


def test_plain_tensors_skip_the_dispatcher(monkeypatch: pytest.MonkeyPatch) -> None:
    check_plain_tensors_skip_the_dispatcher("cuda", monkeypatch)


# ---- What is refused, autocast ----


@every_way
def test_arrays_of_several_devices(way: str) -> None:
    q, k, v = device_inputs(P)
    used = torch.tensor([9, 8], dtype=torch.int32)
    for tensors, options, match in (
        ([q, k.cpu(), v], {}, "k is on the CPU, q on CUDA device 0"),
        ([q.cpu(), k, v], {}, "k is on CUDA device 0, q on the CPU"),
        ([q, k, v], {"seqused_k": used}, "seqused_k is on the CPU, q on CUDA"),
        ([q, k, v], {"out": q.cpu()}, "out is on the CPU, q on CUDA"),
    ):
        with pytest.raises(ValueError, match=match):
            _by(way, tensors, options)


@every_way
def test_types_that_no_kernel_serves(way: str) -> None:
    tensors = [x.float() for x in device_inputs(P)]
    with pytest.raises(flashattn.FlashAttnNotImplementedError, match="no kernel.*FP32"):
        _by(way, tensors, {})
    with torch.autocast("cuda", dtype=torch.bfloat16):
        o = _by(way, tensors, {})
    assert torch.equal(o, _by(way, device_inputs(P), {}))

"""flashattn.torch_ops.flash_kv_append and its operator: the bits of the function for all arrays,
what is refused, compilers and exports."""

from __future__ import annotations

import inspect
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import flashattn  # noqa: E402
from flashattn import torch_ops  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch_append_calls import (  # noqa: E402
    NAMES,
    WRITTEN,
    Call,
    assert_same,
    assert_same_bits,
    make_call,
    run,
)
from torch_calls import WAYS  # noqa: E402

ops = torch.ops.flashattn
every_way = pytest.mark.parametrize("way", WAYS)
every_call = pytest.mark.parametrize("name", NAMES)
COMPILED = [name for name in NAMES if name != "to e4m3"]  # it has a number for a scale, as below


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# ---- Values ----


@every_way
@every_call
def test_bits_are_those_of_the_other_function(name: str, way: str) -> None:
    call, other, untouched = make_call(name), make_call(name), make_call(name)
    found, expected = run(call, way), flashattn.flash_kv_append(**other)
    assert_same(call, other)
    assert_same_bits(found, expected)
    if "q" in call:
        assert found is call["q_out"] if "q_out" in call else found.is_contiguous()
    if name != "nothing new":
        assert not torch.equal(call["k_cache"].float(), untouched["k_cache"].float())


@every_way
def test_written_tensors_have_a_new_version(way: str) -> None:
    call = make_call("dense rotary")
    call["q_out"] = torch.empty_like(call["q"])
    before = {name: x._version for name, x in call.items() if isinstance(x, torch.Tensor)}
    run(call, way)
    for name, version in before.items():
        assert call[name]._version == version + (name in WRITTEN), name
    with torch.inference_mode():
        run(make_call("dense rotary"), way)


def test_the_attention_call_that_follows() -> None:
    """New tokens count by the lengths that the call has written."""
    call = make_call("pages of rows")
    q = torch_ops.flash_kv_append(**call)
    where = {name: call[name] for name in ("page_table", "v_page_table", "page_rows")}
    caches = call["k_cache"], call["v_cache"]
    o = torch_ops.flash_attn_func(q, *caches, seqused_k=call["seqused_k_out"], **where)
    lengths = call["seqused_k"] + 1
    assert torch.equal(o, torch_ops.flash_attn_func(q, *caches, seqused_k=lengths, **where))


def test_threads_at_once() -> None:
    expected = {name: make_call(name) for name in NAMES}
    for call in expected.values():
        flashattn.flash_kv_append(**call)
    calls = [(name, make_call(name)) for name in NAMES * 4]
    with ThreadPoolExecutor(6) as pool:
        list(pool.map(lambda named: torch_ops.flash_kv_append(**named[1]), calls))
    for name, call in calls:
        assert_same(call, expected[name])


# ---- What is refused ----

LENGTHS = torch.tensor([0, 16, 5], dtype=torch.int32)
REFUSALS: dict[str, tuple[str, dict[str, Any], str]] = {
    "axes of k_new": ("dense", {"k_new": torch.randn(4, 2, 32).half()}, "k_new has 3 axes, not 4"),
    "axes of k_cache": ("dense", {"k_cache": torch.randn(20, 2, 32).half()}, "k_cache has 3 axes"),
    "heads": ("dense", {"k_cache": torch.randn(3, 20, 1, 32).half()}, "k_cache has heads and"),
    "shape of v_new": ("dense", {"v_new": torch.randn(3, 3, 2, 32).half()}, "v_new has shape"),
    "shape of v_cache": ("dense", {"v_cache": torch.ones(3, 9, 2, 32).half()}, "v_cache has shape"),
    "no v_cache": ("dense", {"v_cache": None}, "v_new is given without v_cache"),
    "type of k_new": ("dense", {"k_new": torch.ones(3, 4, 2, 32).double()}, "k_new is float64"),
    "type of v_new": ("dense", {"v_new": torch.randn(3, 4, 2, 32)}, "v_new.dtype is"),
    "stride": (
        "dense", {"k_new": torch.randn(3, 4, 2, 64).half()[..., ::2]}, "k_new is not contiguous",
    ),
    "cache overlaps itself": (
        "dense", {"k_cache": torch.randn(1, 20, 2, 32).half().expand(3, 20, 2, 32)},
        "k_cache overlaps itself",
    ),
    "cache overlaps new tokens": (
        "dense", {"k_new": lambda call: call["k_cache"][:, 10:14]}, "k overlaps k_new",
    ),
    "no place": ("dense", {"seqused_k": LENGTHS + 1}, "new token 3 of sequence 1 would be its key"),
    "nowhere": ("dense", {"seqused_k": None}, "seqused_k and slot_mapping are NULL"),
    "type of lengths": ("dense", {"seqused_k": LENGTHS.long()}, "seqused_k is int64, not int32"),
    "number of lengths": ("dense", {"seqused_k": LENGTHS[:2]}, "seqused_k has 2 values, not 3"),
    "lengths of the other type": (
        "dense", {"seqused_k_out": LENGTHS.float()}, "seqused_k_out is float32",
    ),
    "lengths in place": (
        "dense", {"seqused_k_out": lambda call: call["seqused_k"]}, "seqused_k_out overlaps",
    ),
    "no cu_seqlens": (
        "ragged", {"cu_seqlens_new": torch.empty(0, dtype=torch.int32)}, "cu_seqlens_new is empty",
    ),
    "end of cu_seqlens": ("ragged", {"cu_seqlens_new": LENGTHS[[0, 2, 2, 1]]}, "cu_seqlens_new"),
    "queries of a ragged batch": ("ragged", {"cu_seqlens_q": LENGTHS}, "cu_seqlens_q has 3 values"),
    "ragged queries alone": (
        "slot mapping", {"cu_seqlens_q": torch.tensor([0, 5], dtype=torch.int32)},
        "cu_seqlens_q is given, and cu_seqlens_new is not",
    ),
    "q without rotary": (
        "dense", {"q": torch.randn(3, 4, 6, 32)}, "seqlen_q is 4 without rotary",
    ),
    "type of q": ("dense rotary", {"q": torch.randn(3, 4, 6, 32).double()}, "q is float64"),
    "axes of q": ("dense rotary", {"q": torch.randn(4, 6, 32)}, "q has 3 axes, not 4"),
    "batch of q": ("dense rotary", {"q": torch.randn(2, 4, 6, 32)}, "q has batch"),
    "d_head of q": ("dense rotary", {"q": torch.randn(3, 4, 6, 16)}, "q has d_head"),
    "shape of q_out": ("dense rotary", {"q_out": torch.randn(3, 4, 5, 32)}, "q_out has shape"),
    "q_out without q": ("dense", {"q_out": torch.randn(3, 4, 5, 32)}, "q_out is given without q"),
    "q_out overlaps q": (
        "in place", {"q_out": lambda call: call["q"].transpose(1, 2)[:, :4].transpose(1, 2)},
        "q_out (has shape|overlaps)",
    ),
    "no sines": ("dense rotary", {"rotary_sin": None}, "rotary_cos is given without rotary_sin"),
    "sines of another shape": (
        "dense rotary", {"rotary_sin": torch.ones(9, 16).half()}, "rotary_sin has shape",
    ),
    "positions beyond the tables": (
        "dense rotary", {"rotary_start": LENGTHS + 30}, "the rotary tables have 0 ... 39",
    ),
    "type of positions": (
        "slot mapping", {"rotary_positions": torch.ones(5, dtype=torch.int32)},
        "rotary_positions is int32, not int64",
    ),
    "number of slots": ("slot mapping", {"slot_mapping": torch.arange(4)}, "slot_mapping has 4"),
    "slot": ("slot mapping", {"slot_mapping": torch.arange(32, 37)}, r"slot_mapping\[4\] is 36"),
    "rows of pages": ("pages", {"page_table": LENGTHS[None]}, "page_table has 1 rows for a batch"),
    "page rows": ("pages of rows", {"page_rows": LENGTHS}, r"page_rows\[1\] is 16, page_table has"),
    "page": ("pages", {"page_table": lambda call: call["page_table"] + 9}, "page_table: new token"),
    "scales without e4m3": ("pages", {"k_descale": torch.ones(3, 2)}, "k_scale is given"),
    "shape of scales": ("to e4m3", {"k_descale": torch.ones(3, 6)}, "k_descale has shape"),
}  # fmt: skip


def _spoiled(name: str) -> Call:
    of, changes, _ = REFUSALS[name]
    call = make_call(of)
    return {**call, **{n: x(call) if callable(x) else x for n, x in changes.items()}}


@every_way
@pytest.mark.parametrize("name", REFUSALS)
def test_refusal_is_that_of_the_other_function(name: str, way: str) -> None:
    call = _spoiled(name)
    before = {n: call[n].clone() for n in WRITTEN if call.get(n) is not None}
    with pytest.raises(Exception) as other:
        flashattn.flash_kv_append(**call)
    with pytest.raises(type(other.value), match=REFUSALS[name][2]) as refusal:
        run(call, way)
    if "q_out" not in name:  # the operator has q_out in all cases
        assert str(refusal.value) == str(other.value)
    assert getattr(refusal.value, "status", None) == getattr(other.value, "status", None)
    for n, x in before.items():
        assert_same_bits(call[n], x)


@every_way
def test_a_contiguous_cache_has_an_entry_for_each_sequence(way: str) -> None:
    for entries in (2, 4):
        call = {**make_call("dense"), "k_cache": torch.zeros(entries, 20, 2, 32).half()}
        call["v_cache"] = call["k_cache"].clone()
        with pytest.raises(ValueError, match=rf"k_cache has batch \(first axis\) {entries}, not 3"):
            run(call, way)


def test_the_operator_needs_a_place_for_the_queries() -> None:
    call = make_call("dense rotary")
    with pytest.raises(ValueError, match="q is given without q_out"):
        ops.kv_append(**call)


def test_the_schema_has_the_arguments_of_the_functions() -> None:
    names = [argument.name for argument in ops.kv_append.default._schema.arguments]
    assert names == list(inspect.signature(torch_ops.flash_kv_append).parameters)
    others = list(inspect.signature(flashattn.flash_kv_append).parameters)
    others.remove("kv_dtype")  # operators have no latent tokens
    assert names == others


def test_what_is_no_tensor() -> None:
    with pytest.raises(TypeError, match="seqused_k is a list: not a torch tensor"):
        torch_ops.flash_kv_append(**{**make_call("dense"), "seqused_k": [1, 2, 3]})
    for name in ("k_new", "v_cache", "q"):
        call = make_call("dense rotary")
        with pytest.raises(TypeError, match=f"{name} is a ndarray: not a torch tensor"):
            torch_ops.flash_kv_append(**{**call, name: call[name].numpy()})


@every_way
@pytest.mark.parametrize(
    "name", ["k_new", "v_new", "k_cache", "v_cache", "q", "q_out", "rotary_cos"]
)
def test_gradient_is_refused(name: str, way: str) -> None:
    call = make_call("dense rotary")
    call["q_out"] = torch.empty_like(call["q"])
    call[name].requires_grad_()
    with pytest.raises(NotImplementedError, match=f"{name} requires a gradient"):
        run(call, way)
    with torch.no_grad():
        run(call, way)


# ---- Compilers, exports ----


def _function(call: Call) -> Any:
    """Returns a function of the call's tensors, which does something to them before and after."""

    def function(tensors: dict[str, torch.Tensor]) -> Any:
        tensors = {**tensors, "k_new": tensors["k_new"].clone()}
        q = torch_ops.flash_kv_append(**{**call, **tensors})
        return q if q is None else q + 1, tensors["k_cache"].view(torch.uint8).sum()

    return function


def _tensors(call: Call) -> dict[str, torch.Tensor]:
    return {name: x for name, x in call.items() if isinstance(x, torch.Tensor)}


@pytest.mark.parametrize("name", COMPILED)
def test_compiles_in_one_graph(name: str) -> None:
    call, other = make_call(name), make_call(name)
    compiled = torch.compile(_function(call), fullgraph=True, backend="aot_eager")
    (q, total), (expected, wanted) = compiled(_tensors(call)), _function(other)(_tensors(other))
    assert_same(call, other)
    assert_same_bits(q, expected)
    assert total == wanted


@pytest.mark.parametrize("name", ["in place", "beside each other"])
def test_inductor(name: str) -> None:
    call, other = make_call(name), make_call(name)
    q, total = torch.compile(_function(call), fullgraph=True)(_tensors(call))
    expected, wanted = _function(other)(_tensors(other))
    assert_same(call, other)
    assert_same_bits(q, expected)
    assert total == wanted


def test_numbers_as_scales_compile() -> None:
    call, other = make_call("to e4m3"), make_call("to e4m3")
    compiled = torch.compile(
        lambda call: torch_ops.flash_kv_append(**call), fullgraph=True, backend="aot_eager"
    )
    compiled(call)
    flashattn.flash_kv_append(**other)
    assert_same(call, other)


class Module(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        call = make_call("pages of rows")
        for name in WRITTEN[:3]:
            self.register_buffer(name, call.pop(name))
        self.call = call

    def forward(self, k_new: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
        buffers = {name: getattr(self, name) for name in WRITTEN[:3]}
        return torch_ops.flash_kv_append(**{**self.call, **buffers, "k_new": k_new, "q": q})


def test_exports() -> None:
    module, expected = Module(), Module()
    inputs = 2 * module.call["k_new"], 3 * module.call["q"]
    exported = torch.export.export(module, inputs)
    assert ops.kv_append.default in {node.target for node in exported.graph.nodes}
    program = exported.module()
    assert torch.equal(program(*inputs), expected(*inputs))
    for name in WRITTEN[:3]:
        assert_same_bits(getattr(program, name), getattr(expected, name))


@pytest.mark.parametrize("name", ["dense rotary", "pages of rows", "ragged", "slot mapping"])
def test_the_operator_is_what_it_claims(name: str) -> None:
    call = make_call(name)
    call["q_out"] = torch.zeros_like(call["q"])
    found = torch.library.opcheck(ops.kv_append.default, (), call)
    assert set(found.values()) == {"SUCCESS"}


def test_tensors_without_data() -> None:
    call = make_call("dense rotary")
    q = torch_ops.flash_kv_append(**{name: x.to("meta") for name, x in call.items()})
    assert q.is_meta and q.shape == call["q"].shape
    with FakeTensorMode() as mode:
        fake = {name: mode.from_tensor(x) for name, x in call.items()}
        assert torch_ops.flash_kv_append(**fake).is_contiguous()


def test_autocast_changes_nothing() -> None:
    call, other = make_call("dense rotary"), make_call("dense rotary")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = torch_ops.flash_kv_append(**call)
    assert_same_bits(found, torch_ops.flash_kv_append(**other))
    assert_same(call, other)


def test_negated_tensors() -> None:
    """The values of a negated view are the negatives of what its memory holds."""
    call, other = make_call("dense rotary"), make_call("dense rotary")
    call["k_new"] = torch._neg_view(-call["k_new"])
    torch_ops.flash_kv_append(**call)
    torch_ops.flash_kv_append(**other)
    assert_same(call, other)

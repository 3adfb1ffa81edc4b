"""The package's extension (bindings/python/extension): which calls it serves, that it leaves all
others alone, and that nothing but time differs without it.
"""

from __future__ import annotations

import gc
import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import pytest

torch = pytest.importorskip("torch")

from flashattn import torch_ops  # noqa: E402
from flashattn._library import library  # noqa: E402
from flashattn._torch import extension  # noqa: E402
from flashattn._torch.call import NAMES  # noqa: E402
from flashattn.compat import fa2, fa3  # noqa: E402
from test_torch_foreign_tensors import CALLS  # noqa: E402
from torch_calls import Recorded, call_of, without_extension  # noqa: E402

PATH = Path(library()._name).resolve().parent / "_extension.abi3.so"

is_there = pytest.mark.skipif(extension.forward is None, reason="the extension is not there")


@pytest.mark.skipif(not PATH.exists(), reason="the extension was not built")
@pytest.mark.skipif(extension._EXCHANGE is None, reason="this torch has no exchange API")
@pytest.mark.skipif(os.environ.get("FLASHATTN_EXTENSION") == "0", reason="it is not wanted")
def test_it_is_loaded_where_it_can_be() -> None:
    assert (extension.forward is not None) == (sys.version_info >= (3, 10))


def test_it_is_not_loaded_where_it_is_not_wanted() -> None:
    program = (
        "import torch; from flashattn import torch_ops; from flashattn._torch import extension;"
        "assert extension.forward is extension.append is None;"
        "q = torch.ones(1, 2, 1, 8); assert torch_ops.flash_attn_func(q, q, q).equal(q)"
    )
    environment = {**os.environ, "FLASHATTN_EXTENSION": "0"}
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_a_value_that_cannot_be_understood_is_refused() -> None:
    environment = {**os.environ, "FLASHATTN_EXTENSION": "no"}
    program = [sys.executable, "-c", "from flashattn import torch_ops"]
    result = subprocess.run(program, env=environment, capture_output=True, text=True)
    assert result.returncode and "FLASHATTN_EXTENSION is 'no': not 0 or 1" in result.stderr


# ---- Results ----


class Counted:
    """Counts the calls that the extension serves."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.served: list[str] = []
        for name in ("forward", "append"):
            monkeypatch.setattr(extension, name, self._counted(name, getattr(extension, name)))

    def _counted(self, name: str, function: Callable) -> Callable:
        def call(*arguments: Any) -> Any:
            found = function(*arguments)
            self.served += [name] if found is not None and found is not False else []
            return found

        return call


# What of each call of CALLS the extension serves, where that is not one "forward".
SERVED = {
    "torch_ops.flash_attn_func": [],  # a mask
    "torch_ops.flash_attn_func, bits": [],
    "torch_ops.flash_combine": [],
    "torch_ops.flash_kv_append": ["append"],
    "torch_ops.flash_kv_append, slots": ["append"],
    "torch_ops.flash_kv_append, ragged, e4m3": ["append"],
    "fa2.flash_attn_func": [],  # slopes
    "fa2.flash_attn_with_kvcache": ["append", "forward"],
    "fa3.flash_attn_func": [],  # a scale of Q
    "fa3.flash_attn_with_kvcache": ["append", "forward"],
    "fa3.flash_attn_with_kvcache, ragged": ["append", "forward"],
    "fa2.flash_attn_with_kvcache, plain": ["append", "forward"],
    "fa3.flash_attn_with_kvcache, plain": ["append", "forward"],
    "fa3.flash_attn_combine": [],
}


def _tensors(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    return {name: x.clone() for name, x in arguments.items() if isinstance(x, torch.Tensor)}


def _bits(x: torch.Tensor) -> torch.Tensor:
    return x.contiguous().view(torch.uint8)


@is_there
@pytest.mark.parametrize("call", CALLS)
def test_results_are_those_without_it(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, make = CALLS[call]
    arguments = make()
    if "latent" in call:  # two views of one tensor
        arguments["cache_seqlens"] = arguments["cache_seqlens"].clone()
    else:
        arguments.update(_tensors(arguments))
    if "out" not in arguments:
        arguments.pop("seqused_q", None)  # rows beyond it have no values
    copies = {**arguments, **_tensors(arguments)}
    if "latent" in call:
        copies = dict(arguments)
    with without_extension():
        expected = function(**copies)
    counted = Counted(monkeypatch)
    found = function(**arguments)
    assert counted.served == SERVED.get(call, ["forward"])
    for x, y in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, expected))):
        assert (x is None and y is None) or torch.equal(_bits(x), _bits(y))
    for name in _tensors(arguments):
        assert torch.equal(_bits(arguments[name]), _bits(copies[name])), name


@is_there
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("package", [torch_ops, fa2, fa3])
def test_lse_and_layouts(package: Any, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    q = torch.randn(2, 4, 5, 16, dtype=dtype).transpose(1, 2)
    k, v = torch.randn(2, 2, 7, 2, 16, dtype=dtype)
    wants = {"return_lse": True} if package is torch_ops else {"return_attn_probs": True}
    with without_extension():
        expected = package.flash_attn_func(q, k, v, causal=True, **wants)
    counted = Counted(monkeypatch)
    found = package.flash_attn_func(q, k, v, causal=True, **wants)
    assert counted.served == ["forward"]
    assert all(torch.equal(x, y) and x.stride() == y.stride() for x, y in zip(found, expected))


# ---- What it is given ----


@pytest.mark.parametrize("name", ["flash_attn_func", "flash_attn_varlen_func", "flash_kv_append"])
def test_every_argument_reaches_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An argument that it does not know would be left out without a word."""

    class Seen(Exception):
        pass

    given: list[tuple] = []

    def take(*arguments: Any) -> None:
        given.append(arguments)
        raise Seen

    function = getattr(torch_ops, name)
    monkeypatch.setattr(extension, "append" if "append" in name else "forward", take)
    plain = {
        parameter.name: object() for parameter in inspect.signature(function).parameters.values()
    }
    if "window_size" in plain:
        plain["window_size"] = (object(), object())
    with pytest.raises(Seen):
        function(**plain)
    places = [
        id(x) for place in given[0] for x in (place if isinstance(place, tuple) else (place,))
    ]
    for value in plain.values():
        for x in value if isinstance(value, tuple) else (value,):
            assert places.count(id(x)) == 1


# ---- Calls that it leaves alone ----


@is_there
def test_it_leaves_alone_what_torch_has_to_see() -> None:
    q, k, v = torch.randn(3, 2, 5, 4, 8)
    assert extension.forward(*call_of(q, k, v)) is not None

    def is_left(q: torch.Tensor, k: torch.Tensor = k) -> bool:
        return extension.forward(*call_of(q, k, v)) is None

    with torch.autocast("cpu"):
        assert is_left(q)
    with Recorded():
        assert is_left(q)
    assert torch.vmap(lambda x: x if is_left(q) else x[0])(q).shape == q.shape
    with torch.autograd.forward_ad.dual_level():
        assert is_left(q)
    assert is_left(q.clone().requires_grad_())
    with torch.no_grad():
        assert not is_left(q.clone().requires_grad_())
    assert is_left(torch._neg_view(q)) and is_left(torch._neg_view(-q))
    assert is_left(torch.nn.Parameter(q, requires_grad=False))
    assert is_left(q.to("meta")) and is_left(q.to_sparse()) and is_left(q.double())
    assert is_left(None) and is_left(3) and is_left(q, k[:, :, :3]) and is_left(q, k[..., :4])
    with torch._subclasses.FakeTensorMode() as mode:
        assert is_left(mode.from_tensor(q))


@is_there
@pytest.mark.parametrize("place", range(len(NAMES)))
def test_any_object_in_any_place_is_left_alone_or_served(place: int) -> None:
    q, k, v = torch.randn(3, 2, 5, 4, 8)
    lengths = torch.zeros(2, dtype=torch.int32)
    others = [
        None, 0, -1, 2**70, 0.5, float("nan"), "text", [], object(), torch.ones(2), lengths,
        lengths[0], lengths[:0], torch.ones(2, 1, 4, 8), torch.ones(2).numpy(), (), (None,) * 4,
        (lengths, 1, 2, "text"), (0, 0.5, lengths, None),
    ]  # fmt: skip
    for x in others:
        arguments = list(call_of(q, k, v))
        arguments[place] = x
        found = extension.forward(*arguments)
        assert found is None or isinstance(found, (torch.Tensor, tuple))


@is_there
def test_it_leaves_alone_what_it_does_not_know() -> None:
    q, k, v = torch.ones(3, 2, 5, 4, 8)
    others = {
        "out_dtype": torch.float32, "alibi_slopes": torch.ones(4),
        "attn_mask": torch.zeros(5, 5), "mask_bits": torch.ones(1, 1, 5, 1, dtype=torch.int32),
        "mask_keys": 3, "mask_head_scale": torch.ones(4),
    }  # fmt: skip
    for name, value in others.items():
        assert extension.forward(*call_of(q, k, v, **{name: value})) is None, name


@is_there
def test_arguments_that_are_left_out_have_their_defaults() -> None:
    q, k, v = torch.randn(3, 2, 5, 4, 8)
    call = call_of(q, k, v, causal=True)
    expected = extension.forward(*call)
    last = NAMES.index("seqused_k") + 1  # what attention.c reads by name
    for n in range(last, len(NAMES)):
        assert torch.equal(extension.forward(*call[:n]), expected)
    for wrong in (call[: last - 1], (*call, None)):
        with pytest.raises(TypeError, match=f"takes {last} to {len(NAMES)} arguments"):
            extension.forward(*wrong)


@is_there
def test_a_wrong_number_of_arguments_is_refused() -> None:
    for function in (extension.forward, extension.append):
        with pytest.raises(TypeError, match="arguments"):
            function()


@is_there
def test_references_are_given_back() -> None:
    q, k, v = torch.randn(3, 2, 5, 4, 8)
    watched = (q, k, v, torch.float32, torch.empty_like)

    def counts() -> list[int]:
        gc.collect()
        return [sys.getrefcount(x) for x in watched]

    def calls() -> None:
        for _ in range(300):
            torch_ops.flash_attn_func(q, k, v, causal=True)
            torch_ops.flash_attn_func(q, k, v, return_lse=True)
            extension.forward(*call_of(q, k, torch.ones(3)))
            extension.forward(*call_of(q, k.half(), v))

    calls()
    before = counts()
    calls()
    after = counts()
    assert all(abs(x - y) < 100 for x, y in zip(after, before))


@is_there
def test_threads_have_workspaces_of_their_own() -> None:
    from concurrent.futures import ThreadPoolExecutor

    inputs = [torch.randn(3, 1, 40, 4, 32) for _ in range(8)]
    expected = [torch_ops.flash_attn_func(*x, causal=True) for x in inputs]

    def run(i: int) -> bool:
        x = inputs[i % 8]
        return torch.equal(torch_ops.flash_attn_func(*x, causal=True), expected[i % 8])

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(200)))

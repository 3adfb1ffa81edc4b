"""flash_attn_backward() over arrays: what it returns, what it takes, and what it refuses."""

from __future__ import annotations

import flashattn
import numpy as np
import pytest
from flashattn import gradient_oracle
from foreign_arrays import DLPackArray, InterfaceArray

SINKS = np.array([0.5, -1.0, 2.0, 0.0], np.float32)


def _numbers(*shape: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def _arrays(**options: object) -> dict[str, np.ndarray]:
    """Returns the arrays of a call by their names."""
    q, k, v = (
        _numbers(2, 5, 4, 8, seed=0),
        _numbers(2, 7, 2, 8, seed=1),
        _numbers(2, 7, 2, 8, seed=2),
    )
    o, lse = flashattn.flash_attn_func(q, k, v, return_lse=True, **options)
    return {"d_o": _numbers(*o.shape, seed=3), "q": q, "k": k, "v": v, "o": o, "lse": lse}


def _backward(arrays: dict[str, object], **options: object) -> flashattn.Gradients:
    return flashattn.flash_attn_backward(*arrays.values(), **options)


def test_new_arrays_of_the_tensors_types() -> None:
    arrays = _arrays()
    found = _backward(arrays)
    exact = gradient_oracle.gradients(arrays["q"], arrays["k"], arrays["v"], arrays["d_o"])
    for x, y, of in zip(found, exact[:3], (arrays["q"], arrays["k"], arrays["v"])):
        assert type(x) is np.ndarray and x.dtype == of.dtype and x.shape == of.shape
        np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    assert found.d_sinks is None
    found = _backward(_arrays(sinks=SINKS), sinks=SINKS)
    assert found.d_sinks.shape == (4,) and found.d_sinks.dtype == np.float32


def test_ragged_arrays() -> None:
    arrays = _arrays()
    lengths = {"cu_seqlens_q": [0, 5, 10], "cu_seqlens_k": [0, 7, 14]}
    longest = {"max_seqlen_q": 5, "max_seqlen_k": 7}
    ragged = {x: y.reshape(-1, *y.shape[2:]) for x, y in arrays.items() if x != "lse"}
    ragged["lse"] = np.ascontiguousarray(arrays["lse"].transpose(1, 0, 2)).reshape(4, 10)
    found = _backward(ragged, **lengths, **longest)
    for x, y in zip(found[:3], _backward(arrays)):
        np.testing.assert_array_equal(x.ravel(), y.ravel())


def test_given_arrays_are_filled_and_returned() -> None:
    arrays = _arrays(sinks=SINKS)
    expected = _backward(arrays, sinks=SINKS)
    given = [np.empty_like(x) for x in expected]
    found = _backward(arrays, dq=given[0], dk=given[1], dv=given[2], d_sinks=given[3], sinks=SINKS)
    assert all(x is y for x, y in zip(found, given))
    assert all((x == y).all() for x, y in zip(found, expected))


def test_gradients_of_fp32_beside_16_bits() -> None:
    arrays = {x: y if x == "lse" else y.astype(np.float16) for x, y in _arrays().items()}
    dk = np.empty(arrays["k"].shape, np.float32)
    found = _backward(arrays, dk=dk)
    assert found.dk is dk and found.dq.dtype == np.float16
    np.testing.assert_array_equal(dk.astype(np.float16), _backward(arrays).dk)


def test_what_is_not_wanted_is_none() -> None:
    arrays = _arrays(sinks=SINKS)
    found = _backward(arrays, dq=False, dv=False, d_sinks=False, sinks=SINKS)
    assert found.dq is found.dv is found.d_sinks is None
    np.testing.assert_array_equal(found.dk, _backward(arrays, sinks=SINKS).dk)
    assert _backward(_arrays(), dq=False, dk=False, dv=False) == (None,) * 4


def test_adding() -> None:
    arrays = _arrays()
    expected = _backward(arrays)
    given = {name: np.full_like(getattr(expected, name), 3) for name in ("dq", "dk", "dv")}
    found = _backward(arrays, **given, add=True)
    for name, x in given.items():
        np.testing.assert_allclose(x, 3 + getattr(expected, name), rtol=1e-6)
        assert getattr(found, name) is x
    with pytest.raises(ValueError, match="add is True, and dk is no array to add to"):
        _backward(arrays, dq=given["dq"], add=True)


def test_o_and_lse_are_only_read() -> None:
    arrays = _arrays()
    expected = _backward(arrays)
    for name in arrays:
        arrays[name].flags.writeable = False
    assert all((x == y).all() for x, y in zip(_backward(arrays)[:3], expected))


@pytest.mark.parametrize("maker", [DLPackArray, InterfaceArray])
def test_arrays_of_other_libraries(maker: type) -> None:
    arrays = _arrays()
    found = _backward({name: maker(x) for name, x in arrays.items()})
    assert all((x == y).all() for x, y in zip(found[:3], _backward(arrays)))


def test_gradients_that_repeat() -> None:
    """d_o and d_lse of sums are often one row, or one number, in all places."""
    arrays = _arrays()
    row = arrays["d_o"][:1, :1, :1]
    whole = np.ascontiguousarray(np.broadcast_to(row, arrays["o"].shape))
    one = np.broadcast_to(row, whole.shape)
    column = np.broadcast_to(_numbers(2, 1, 5, seed=4), (2, 4, 5))
    found = _backward({**arrays, "d_o": one}, d_lse=column)
    expected = _backward({**arrays, "d_o": whole}, d_lse=column.copy())
    assert all((x == y).all() for x, y in zip(found[:3], expected))
    number = np.broadcast_to(np.float32(1), (2, 4, 5))
    with pytest.raises(ValueError, match="d_lse is one number in all places .*: copy it first"):
        _backward(arrays, d_lse=number)
    with pytest.raises(ValueError, match="d_o is not contiguous along its innermost axis .*copy"):
        _backward({**arrays, "d_o": np.broadcast_to(np.float32(1), whole.shape)})


def test_lse_of_any_strides() -> None:
    arrays = _arrays()
    expected = _backward(arrays)
    arrays["lse"] = np.ascontiguousarray(arrays["lse"].transpose(2, 0, 1)).transpose(1, 2, 0)
    assert all((x == y).all() for x, y in zip(_backward(arrays)[:3], expected))


REFUSED = {
    "d_o of another shape": ({"d_o": _numbers(2, 5, 4, 7, seed=0)}, {}, "d_o has shape"),
    "d_o of another type": (
        {"d_o": np.zeros((2, 5, 4, 8), np.float16)}, {}, "d_o.dtype is 1: not that of o, 3"
    ),
    "o of another shape": ({"o": _numbers(2, 4, 4, 8, seed=0)}, {}, "o has shape"),
    "o of another type": ({}, {"out_dtype": "float16"}, "o is float32, and out_dtype float16"),
    "lse of float64": ({"lse": np.zeros((2, 4, 5))}, {}, "lse is float64, not float32"),
    "lse of another shape": ({"lse": _numbers(2, 5, 4, seed=0)}, {}, "lse has shape"),
    "lse that repeats": (
        {"lse": np.broadcast_to(np.float32(0), (2, 4, 5))}, {}, "lse is one number in all places"
    ),
    "dq of another shape": ({}, {"dq": np.zeros((2, 5, 4, 9), np.float32)}, "dq has shape"),
    "dv of another type": ({}, {"dv": np.zeros((2, 7, 2, 8), np.float16)}, "dv.dtype is 1"),
    "dk that repeats": (
        {}, {"dk": np.broadcast_to(_numbers(8, seed=0), (2, 7, 2, 8))}, "dk is read-only"
    ),
    "d_lse of another shape": ({}, {"d_lse": _numbers(2, 5, 4, seed=0)}, "d_lse has shape"),
    "d_sinks without sinks": (
        {}, {"d_sinks": np.zeros(4, np.float32)}, "d_sinks is given without sinks"
    ),
    "d_sinks of float64": (
        {}, {"sinks": SINKS, "d_sinks": np.zeros(4)}, "d_sinks is float64, not float32"
    ),
    "d_sinks with gaps": (
        {}, {"sinks": SINKS, "d_sinks": np.zeros(8, np.float32)[::2]}, "d_sinks is not contiguous"
    ),
    "add that is no flag": ({}, {"add": "no"}, "add is"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str) -> None:
    changes, options, words = REFUSED[case]
    arrays = {**_arrays(), **changes}
    with pytest.raises((ValueError, TypeError, NotImplementedError)) as refusal:
        _backward(arrays, **options)
    assert words in str(refusal.value)


def test_other_keywords_are_refused() -> None:
    with pytest.raises(TypeError, match="'nonsense' is no argument that describes attention"):
        _backward(_arrays(), nonsense=1)


def test_a_gradient_over_its_tensor_is_refused() -> None:
    arrays = _arrays()
    with pytest.raises(ValueError, match="dq overlaps q: "):
        _backward(arrays, dq=arrays["q"])


def test_kernels_by_name() -> None:
    arrays = _arrays()
    rows = [k for k in flashattn.kernels() if k.is_runnable and "FP32" in str(k.config)]
    of_dq = [k.config for k in rows if k.config.op == flashattn.Op.BACKWARD_DQ]
    of_dkv = [k.config for k in rows if k.config.op == flashattn.Op.BACKWARD_DKV]
    expected = _backward(arrays)
    for dq_config, dkv_config in zip(of_dq, of_dkv):
        found = _backward(arrays, dq_config=str(dq_config), dkv_config=dkv_config)
        for x, y in zip(found[:3], expected):
            np.testing.assert_allclose(x, y, rtol=1e-4, atol=1e-5)
    with pytest.raises(NotImplementedError, match="op. The kernel computes backward_dkv"):
        _backward(arrays, dq_config=of_dkv[0])


def test_pages_have_no_gradients() -> None:
    arrays = _arrays()
    table = np.arange(2, dtype=np.int32).reshape(2, 1)
    paged = {"page_table": table, "seqused_k": np.array([7, 7], np.int32)}
    with pytest.raises(NotImplementedError, match="paging is given: K and V in pages have no"):
        _backward(arrays, **paged)


def test_tokens_behind_the_last_sequence_have_gradients_of_zero():
    rng = np.random.default_rng(0)
    q, k, v, d_o = (rng.standard_normal((n, 2, 8), np.float32) for n in (5, 9, 9, 5))
    lengths = {
        "cu_seqlens_q": [0, 5],
        "cu_seqlens_k": [0, 6],
        "max_seqlen_q": 5,
        "max_seqlen_k": 6,
    }
    o, lse = flashattn.flash_attn_varlen_func(q, k, v, return_lse=True, **lengths)
    for _ in range(3):
        np.full(9 * 2 * 8, np.nan, np.float32)  # what new memory may hold
        found = flashattn.flash_attn_backward(d_o, q, k, v, o, lse, **lengths)
        assert not found.dk[6:].any() and not found.dv[6:].any() and found.dk[5].all()


def test_an_empty_batch_has_gradients():
    empty = np.zeros((0, 4, 2, 8), np.float32)
    o, lse = flashattn.flash_attn_func(empty, empty, empty, return_lse=True)
    found = flashattn.flash_attn_backward(empty, empty, empty, empty, o, lse)
    assert [x.shape for x in found[:3]] == [empty.shape] * 3

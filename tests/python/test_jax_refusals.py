"""What flashattn.jax refuses: in words that name the argument while it is traced, and in the
library's own words, as an error of XLA, where only data says it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from subprocesses import run_python

pytest.importorskip("jax")

import flashattn  # noqa: E402
import jax  # noqa: E402
import jax.export  # noqa: E402
import jax.numpy as jnp  # noqa: E402
import jax_cases  # noqa: E402, F401
from flashattn._jax.call import OPERANDS  # noqa: E402
from flashattn.jax import TARGET, flash_attention  # noqa: E402

Q = np.ones((2, 5, 4, 8), np.float32)
K = np.ones((2, 7, 2, 8), np.float32)
BYTES = np.zeros((2, 7, 2, 34), np.uint8)  # rows of a block of q8_0


def int32(*values: int) -> np.ndarray:
    return np.array(values, np.int32)


# ---- While it is traced ----

WRONG = {
    "heads": ((Q, K[:, :, :1].repeat(3, 2), K[:, :, :1].repeat(3, 2)), {}, "not a multiple"),
    "d_head": ((Q[..., :4], K, K), {}, "d_head"),
    "batch": ((Q[:1], K, K), {}, "batch"),
    "type": ((Q.astype(np.int32), K, K), {}, "q is int32"),
    "type of bits": ((Q.astype(bool), K.astype(bool), K.astype(bool)), {}, "q is bool"),
    "type that numpy cannot stride": (
        (Q, jnp.ones(K.shape, jnp.float8_e5m2), K),
        {},
        "k is float8_e5m2",
    ),
    "scale": ((Q, K, K), {"softmax_scale": 0.0}, "softmax_scale is 0.0"),
    "window": ((Q, K, K), {"window_size": (1.5, 2)}, "window_size"),
    "sinks": ((Q, K, K), {"sinks": np.ones(3, np.float32)}, "sinks has shape"),
    "mask": ((Q, K, K), {"attn_mask": np.ones((5, 6), bool)}, "attn_mask has shape"),
    "two masks": (
        (Q, K, K),
        {"attn_mask": np.ones((5, 7), bool), "mask_bits": np.ones((5, 1), np.uint32)},
        "a call has one mask",
    ),
    "lengths": ((Q, K, K), {"seqused_k": int32(1, 2, 3)}, "seqused_k has 3 values"),
    "ragged without a bound": ((Q[0], K, K), {"cu_seqlens_q": int32(0, 3, 5)}, "max_seqlen_q"),
    "pages without lengths": ((Q, K, K), {"page_table": int32(0, 1).reshape(2, 1)}, "seqused_k"),
    "no v": ((Q, K, None), {}, "v is None, and d_head_v None: not a number of columns"),
    "no columns": ((Q, K, None), {"d_head_v": 0}, "v is None, and d_head_v 0"),
    "more columns": ((Q, K, None), {"d_head_v": 9}, "d_head_v is 9: k has 8 columns"),
    "v and columns": ((Q, K, K), {"d_head_v": 8}, "d_head_v is 8, and v is given"),
    "no such type": ((Q, K, K), {"kv_dtype": "q5_0"}, "kv_dtype is 'q5_0': not"),
    "no bytes": ((Q, K, K), {"kv_dtype": "q8_0"}, "k is float32: with kv_dtype 'q8_0' it is uint8"),
    "no type": ((Q, *[BYTES] * 2), {}, "k is uint8.*no kv_dtype"),
    "blocks of other columns": ((Q, *[BYTES] * 2), {"kv_dtype": "q8_0"}, "k has d_head .* 32, q"),
    "half a block": (
        (Q, BYTES, None),
        {"kv_dtype": "q8_0", "d_head_v": 16},
        "16 columns are not a multiple of 32",
    ),
    "two types of one array": (
        (Q, BYTES, None),
        {"kv_dtype": ("q8_0", "q4_0"), "d_head_v": 32},
        "v has the type of k",
    ),
    "latent v": (
        (Q, np.zeros((2, 7, 1, 656), np.uint8), np.zeros((2, 7, 1, 656), np.uint8)),
        {"kv_dtype": "latent_e4m3"},
        "v is k itself, or None",
    ),
    "latent columns": (
        (Q, np.zeros((2, 7, 1, 656), np.uint8), None),
        {"kv_dtype": "latent_e4m3", "d_head_v": 500},
        "d_head_v is 500: kv_dtype 'latent_e4m3' has 512",
    ),
    "no kernel": ((Q, *[K.astype(np.float16)] * 2), {"out_dtype": "bfloat16"}, "no kernel"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_argument_is_refused_before_it_runs(name: str) -> None:
    (q, k, v), options, words = WRONG[name]
    call = jax.jit(lambda q, k, v: flash_attention(q, k, v, **options))
    with pytest.raises((ValueError, NotImplementedError), match=words):
        call.lower(q, k, v)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("softmax_scale", 0.5),
        ("softcap", 0.5),
        ("causal", True),
        ("attention_chunk", 3),
        ("mask_keys", 3),
        ("n_multiprocessors", 1),
        ("d_head_v", 8),
        ("return_lse", True),
    ],
)
def test_a_traced_number_is_refused_by_name(name: str, value: Any) -> None:
    more = {"attn_mask": np.zeros((5, 3), np.float32)} if name == "mask_keys" else {}
    v = None if name == "d_head_v" else K
    call = jax.jit(lambda x: flash_attention(Q, K, v, **{name: x}, **more))
    with pytest.raises((ValueError, TypeError), match=name):
        call(value)


@pytest.mark.parametrize("name", ["out", "lse", "workspace", "config"])
def test_arguments_that_jax_cannot_have_are_refused(name: str) -> None:
    with pytest.raises(TypeError, match=name):
        flash_attention(Q, K, K, **{name: None})


def test_sizes_that_are_symbols_are_refused() -> None:
    (batch,) = jax.export.symbolic_shape("batch")
    shapes = [jax.ShapeDtypeStruct((batch, *x.shape[1:]), x.dtype) for x in (Q, K, K)]
    with pytest.raises(ValueError, match=r"^q has shape \(batch, 5, 4, 8\): sizes are numbers"):
        jax.export.export(jax.jit(flash_attention))(*shapes)


def test_what_is_no_array_is_refused() -> None:
    with pytest.raises(TypeError, match="sinks is of type str"):
        flash_attention(Q, K, K, sinks="none")


# ---- When it runs ----


def assert_fails(words: str, *arrays: Any, **options: Any) -> None:
    numbers = {name: options.pop(name) for name in list(options) if "max" in name}
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        call = jax.jit(lambda arrays, more: flash_attention(*arrays, **more, **numbers))
        jax.block_until_ready(call(arrays, options))


def test_lengths_that_do_not_fit_are_refused_on_the_processor() -> None:
    q, k = Q[0], K[0]
    of_q = {"cu_seqlens_q": int32(0, 3, 5), "max_seqlen_q": 5}
    of_k = {"cu_seqlens_k": int32(0, 3, 7), "max_seqlen_k": 7}
    assert_fails("INVALID_ARGUMENT: .*seqused_k", Q, K, K, seqused_k=int32(8, 1))
    assert_fails(
        "cu_seqlens_q ends at 6, q has 5 tokens",
        q, k, k, **{**of_q, "cu_seqlens_q": int32(0, 3, 6), "max_seqlen_q": 6}, **of_k,
    )  # fmt: skip
    assert_fails(
        "cu_seqlens_k ends at 9, k has 7 tokens",
        q, k, k, **of_q, **{**of_k, "cu_seqlens_k": int32(0, 3, 9)},
    )  # fmt: skip


def test_pages_that_are_none_are_refused_on_the_processor() -> None:
    pool = np.ones((3, 4, 2, 8), np.float32)
    used = {"seqused_k": int32(4, 4)}
    table = int32(0, 1).reshape(2, 1)
    assert_fails("page_table", Q, pool, pool, page_table=table + 2, **used)
    assert_fails(
        r"page_rows\[1\] is 5, page_table has 2 rows",
        Q, pool, pool, page_table=table, page_rows=int32(0, 5), **used,
    )  # fmt: skip
    assert_fails(
        "page_indptr ends at 3, page_table has 2 ids",
        Q, pool, pool, page_table=table.ravel(), page_indptr=int32(0, 1, 3), **used,
    )  # fmt: skip


# ---- What only a program without flashattn.jax says to the handlers ----


def custom_call(*arrays: Any, results: Any = None, **attributes: Any) -> Any:
    shapes = results or [
        jax.ShapeDtypeStruct(Q.shape, np.float32),
        jax.ShapeDtypeStruct((0,), np.uint8),
    ]
    return jax.block_until_ready(jax.ffi.ffi_call(TARGET, shapes)(*arrays, **attributes))


def test_the_handlers_take_what_they_document() -> None:
    """A workspace that is too small is replaced."""
    o, _ = custom_call(Q, K, K, operands=np.int64(7), softmax_scale=np.float32(0.5))
    assert np.array_equal(o, flashattn.flash_attn_func(Q, K, K, softmax_scale=0.5))


O_TYPE = jax.ShapeDtypeStruct(Q.shape, np.float32)
NO_BYTES = jax.ShapeDtypeStruct((0,), np.uint8)
HANDLED = {
    "unknown name": ({"operands": np.int64(7), "dropout": np.float32(0)}, "dropout is unknown"),
    "prefix of a name": ({"operands": np.int64(7), "flag": np.int64(0)}, "attribute flag is unk"),
    "type": ({"operands": np.int64(7), "flags": np.int32(1)}, "flags is not a scalar of int64"),
    "unknown flag": ({"operands": np.int64(7), "flags": np.int64(1 << 20)}, "flags"),
    "flag of more bits": ({"operands": np.int64(7), "flags": np.int64(1 << 40)}, "unknown bits"),
    "no q": ({"operands": np.int64(6)}, "without q, k or v"),
    "missing": ({"operands": np.int64(15)}, "cu_seqlens_q is one of the operands"),
    "unknown operand": ({"operands": np.int64(7 | 1 << 40)}, "more than this library"),
    "a name for numbers": (
        {"operands": np.int64(7), "k_dtype": np.int64(6)},
        "the attribute k_dtype is 6",
    ),
    "more columns than k has": (
        {"operands": np.int64(7), "v_columns": np.int64(9)},
        "v_columns is 9: not 0 to 8",
    ),
}


@pytest.mark.parametrize("name", HANDLED)
def test_the_handlers_refuse(name: str) -> None:
    attributes, words = HANDLED[name]
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        custom_call(Q, K, K, **attributes)


def changed(operand: str, shape: tuple[int, ...], dtype: Any = None) -> dict[str, Any]:
    is_index = "page" in operand or operand == "seqused_k"
    return {operand: np.ones(shape, dtype or (np.int32 if is_index else np.float32))}


SHAPES = {
    "q of three axes": (changed("q", (5, 4, 8)), "q has 3 axes|axes"),
    "k of another batch": (changed("k", (3, 7, 2, 8)), "k has length 3 along axis 0, not 2"),
    "k of another d_head": (changed("k", (2, 7, 2, 9)), "k has length 9 along axis 3, not 8"),
    "v of other tokens": (changed("v", (2, 6, 2, 8)), "v has length 6 along axis 1, not 7"),
    "k of int8": (changed("k", (2, 7, 2, 8), np.int8), "k has elements of XLA's type"),
    "bytes without a name": (
        changed("k", (2, 7, 2, 34), np.uint8),
        "k has elements .*, and the attribute k_dtype is 0",
    ),
    "few lengths": (changed("seqused_k", (1,)), "seqused_k has length 1 along axis 0, not 2"),
    "lengths of two axes": (changed("seqused_k", (1, 2)), "seqused_k has 2 axes: not 1 to 1"),
    "few slopes": (changed("alibi_slopes", (3,)), "alibi_slopes has length 3"),
    "few scales": (changed("k_descale", (2, 1)), "k_descale has length 1 along axis 1"),
    "mask": (changed("attn_mask", (2, 3, 5, 7)), "axis -3 has length 3: not 1 or 4"),
    "mask of three axes": (changed("attn_mask", (4, 5, 7)), "the mask has 3 axes: not 4"),
    "flat table": (changed("page_table", (2,)), "page_table has 1 axes, without page_indptr"),
    "short table": (changed("page_table", (1, 2)), "page_table has 1 rows for a batch of 2"),
    "v_page_table alone": (changed("v_page_table", (2, 1)), "v_page_table is given without"),
}


@pytest.mark.parametrize(
    ("row", "dtype", "words"),
    [
        (35, 6, "k has length 35 along axis 3, not 34"),
        (34, 7, "k has length 34 along axis 3, not 18"),
        (34, 5, "v_columns 0: latent tokens are k and v at once"),
        (34, 4, "the attribute k_dtype is 4"),
    ],
)
def test_the_handlers_refuse_rows_of_other_bytes(row: int, dtype: int, words: str) -> None:
    q, k = np.ones((2, 5, 4, 32), np.float32), np.zeros((2, 7, 2, row), np.uint8)
    named = {"k_dtype": np.int64(dtype), "v_dtype": np.int64(dtype)}
    o = jax.ShapeDtypeStruct((2, 5, 4, 512 if dtype == 5 else 32), np.float32)
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        custom_call(q, k, k, results=[o, NO_BYTES], operands=np.int64(7), **named)


@pytest.mark.parametrize("name", SHAPES)
def test_the_handlers_refuse_shapes_that_do_not_fit(name: str) -> None:
    other, words = SHAPES[name]
    arrays = {"q": Q, "k": K, "v": K, **other}
    bits = sum(1 << OPERANDS.index(operand) for operand in arrays)
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        custom_call(*arrays.values(), operands=np.int64(bits))


def test_the_handlers_refuse_ends_without_any() -> None:
    """Nothing is read before their begin."""
    results = [jax.ShapeDtypeStruct((5, 4, 8), np.float32), NO_BYTES]
    given = ("q", "k", "v", "cu_seqlens_q", "cu_seqlens_k")
    bits = sum(1 << OPERANDS.index(name) for name in given)
    with pytest.raises(jax.errors.JaxRuntimeError, match="cu_seqlens_q is empty"):
        custom_call(Q[0], K[0], K[0], int32(), int32(), results=results, operands=np.int64(bits))


@pytest.mark.parametrize(
    ("results", "words"),
    [
        ([O_TYPE], "there are 1 results"),
        ([jax.ShapeDtypeStruct((2, 5, 4, 9), np.float32), NO_BYTES], "O has length 9"),
        ([jax.ShapeDtypeStruct(Q.shape, np.int32), NO_BYTES], "O has elements of XLA's type 4"),
        ([O_TYPE, jax.ShapeDtypeStruct((2, 5, 4), np.float32), NO_BYTES], "LSE has length 5"),
        ([O_TYPE, O_TYPE], "the workspace has elements"),
    ],
)
def test_the_handlers_refuse_results_that_do_not_fit(results: Any, words: str) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match=words):
        custom_call(Q, K, K, results=results, operands=np.int64(7))


# ---- Platforms and imports ----


@pytest.mark.skipif(
    any(k.config.arch >= flashattn.Arch.SM80 for k in flashattn.kernels()),
    reason="a library without CUDA kernels refuses CUDA devices",
)
def test_a_library_without_cuda_kernels_says_so() -> None:
    call = jax.jit(lambda q, k: flash_attention(q, k, k))
    with pytest.raises(NotImplementedError, match="CUDA"):
        call.trace(jnp.asarray(Q), jnp.asarray(K)).lower(lowering_platforms=("cuda",))


def test_another_platform_is_refused() -> None:
    call = jax.jit(lambda q, k: flash_attention(q, k, k))
    with pytest.raises(NotImplementedError, match="rocm"):
        call.trace(jnp.asarray(Q), jnp.asarray(K)).lower(lowering_platforms=("rocm",))


def test_the_package_does_not_import_jax() -> None:
    program = "import sys, flashattn, numpy as np; q = np.ones((1, 1, 1, 8), np.float32);"
    program += "flashattn.flash_attn_func(q, q, q); assert 'jax' not in sys.modules"
    done = run_python("-c", program)
    assert done.returncode == 0, done.stderr

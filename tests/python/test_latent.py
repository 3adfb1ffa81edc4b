"""K and V of latent tokens on every kernel here: every code, scales of every kind, pages, memory
that must not be read, and new tokens.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Callable

import flashattn
import ml_dtypes
import numpy as np
import pytest
from flashattn import _abi, latent, oracle
from flashattn._library import last_error, library
from flashattn._problem import Problem as CallArguments
from foreign_arrays import DLPackArray, InterfaceArray
from hypothesis import given, settings
from hypothesis import strategies as st
from latent_cases import new_tokens
from memory import LATENT, Guarded
from paging import KINDS, PagedProblem, run_paged
from problems import AttentionProblem, check, configs_for, decoded, make_inputs, run
from strategies import attention_problems, random_problems

D_HEAD, D_HEAD_V = latent.COLUMNS, latent.CODES


def _problem(*sizes: int, **options: object) -> AttentionProblem:
    """Returns a problem of batch, seqlen_q, seqlen_k, n_heads and n_heads_kv."""
    return AttentionProblem(*sizes, D_HEAD, LATENT, d_head_v=D_HEAD_V, **options)


# Ways of CPU kernels: few rows of decoded keys, packed keys of a task and of a head, split keys.
PROBLEMS = {
    "one_row": _problem(2, 1, 300, 1, 1),
    "few_rows": _problem(1, 3, 200, 2, 1, causal=True),
    "decode": _problem(2, 1, 90, 16, 1, causal=True),
    "two_heads": _problem(2, 2, 90, 6, 2),
    "many_heads": _problem(1, 1, 70, 128, 1),
    "many_rows": _problem(1, 150, 170, 2, 1, causal=True),
    "window": _problem(1, 60, 90, 3, 1, window_size=(33, 5)),
    "chunks": _problem(1, 3, 90, 4, 1, causal=True, attention_chunk=32),
    "split": _problem(1, 1, 3000, 8, 1),
    "split_rows": _problem(1, 2, 2100, 16, 1, causal=True),
    "softcap": _problem(1, 3, 90, 8, 1, softcap=2.0),
    "sinks": _problem(1, 3, 90, 4, 1, sinks=(0.5, -2.0, 3.0, 1.0)),
    "ragged": _problem(3, 90, 150, 2, 1, cu_seqlens_q=(0, 1, 1, 91), cu_seqlens_k=(0, 40, 60, 210)),
    "in_use": _problem(3, 2, 100, 8, 1, causal=True, seqused_q=(2, 1, 2), seqused_k=(0, 1, 77)),
    "padded": _problem(2, 2, 100, 8, 1, causal=True, leftpad_k=(3, 90)),
}
TYPES = [(q, o) for q in ("float16", "bfloat16", "float32") for o in sorted({q, "float32"})]
every_problem = pytest.mark.parametrize("name", PROBLEMS)


def _configs(p: AttentionProblem) -> list[str]:
    configs = configs_for(p)
    assert any(config.startswith("REFERENCE") for config in configs)
    return configs


def _scales(tokens: np.ndarray) -> np.ndarray:
    """Returns the scales of tokens, [..., 4], to write to."""
    return tokens[..., D_HEAD_V : D_HEAD_V + 16].view(np.float32)


# ---- Tokens ----


def test_encoding_rounds_as_ml_dtypes_does() -> None:
    rng = np.random.default_rng(1)
    x = (rng.standard_normal((50, 3, D_HEAD)) * np.exp(rng.uniform(-9, 9, (50, 3, 1)))).astype("f4")
    x[0, 0, :128] = 0
    tokens = latent.encode(x)
    assert tokens.shape == (50, 3, 656) and tokens.dtype == np.uint8
    groups = x[..., :D_HEAD_V].reshape(50, 3, 4, 128)
    largest = np.abs(groups).max(axis=-1)
    scales = np.where(largest == 0, 1, largest / np.float32(448)).astype(np.float32)
    assert (_scales(tokens) == scales).all()
    codes = (groups / scales[..., None]).astype(ml_dtypes.float8_e4m3fn)
    found = latent.decode(tokens)
    expected = codes.astype(np.float64) * scales[..., None]
    assert (found[..., :D_HEAD_V] == expected.reshape(50, 3, D_HEAD_V)).all()
    rotary = x[..., D_HEAD_V:].astype(ml_dtypes.bfloat16).astype(np.float64)
    assert (found[..., D_HEAD_V:] == rotary).all()


def test_middles_of_codes_become_even() -> None:
    x = np.zeros((1, D_HEAD), np.float32)
    x[0, :8] = [448, 17, 19, -17, -19, 9 * 2.0**-10, 2.0**-10, np.nextafter(np.float32(17), 18)]
    assert list(latent.decode(latent.encode(x))[0, :8]) == [
        448, 16, 20, -16, -20, 8 * 2.0**-10, 0, 18,
    ]  # fmt: skip


def test_encoding_refuses_other_shapes() -> None:
    with pytest.raises(ValueError, match=r"x has shape \(3, 512\): its last axis must be 576"):
        latent.encode(np.zeros((3, 512)))
    with pytest.raises(ValueError, match=r"tokens are float32 of shape \(3, 656\)"):
        latent.decode(np.zeros((3, 656), np.float32))


@pytest.mark.parametrize("rows", [1, 3, 30])
def test_every_code_has_its_value(rows: int) -> None:
    """A query sees one key, so that O is V. Q is 0, and the score NaN where a code is."""
    codes = np.arange(256)[:, None] + 5 * np.arange(D_HEAD_V) & 0xFF
    tokens = np.zeros((256, 1, 1, 656), np.uint8)
    q = np.zeros((256, 1, rows, D_HEAD), np.float32)
    p = _problem(256, 1, 1, rows, 1)
    for of_nan in (0x7F, 0x7E):
        tokens[..., :D_HEAD_V] = np.where(codes & 0x7F == 0x7F, codes & 0x80 | of_nan, codes)[
            :, None, None
        ]
        _scales(tokens)[...] = np.float32([0.7, -3, 1e-3, 1e4])
        expected = latent.decode(tokens)[..., :D_HEAD_V].astype(np.float32)
        for config in _configs(p):
            o, _ = run(p, [q, tokens, tokens], config)
            assert np.isnan(o).all() if of_nan == 0x7F else (o == expected).all(), config


# ---- Against the oracle ----


@every_problem
@pytest.mark.parametrize("types", TYPES, ids=str)
def test_agrees_with_the_oracle(name: str, types: tuple[str, str]) -> None:
    p = replace(PROBLEMS[name], q_dtype=types[0], o_dtype=types[1])
    for config in [None, *_configs(p)]:
        check(p, config=config)


@pytest.mark.parametrize("layout", ["padded", "heads_first", "unaligned", "at_begin"])
@pytest.mark.parametrize("name", ["two_heads", "many_rows", "split"])
def test_tokens_may_lie_anywhere(name: str, layout: str) -> None:
    p = replace(PROBLEMS[name], layouts=(layout,) * 4)
    for config in _configs(p):
        check(p, config=config)


@pytest.mark.parametrize("values", ["wide", "one_large_key", "identical_keys", "growing"])
def test_values(values: str) -> None:
    for name in ("decode", "many_rows"):
        p = replace(PROBLEMS[name], values=values)
        for config in _configs(p):
            check(p, config=config)


@st.composite
def latent_problems(draw: st.DrawFn) -> AttentionProblem:
    p = draw(attention_problems())
    q_dtype = draw(st.sampled_from(("float32", "float16", "bfloat16")))
    return replace(
        p,
        d_head=D_HEAD,
        d_head_v=D_HEAD_V,
        dtype=LATENT,
        q_dtype=q_dtype,
        o_dtype=draw(st.sampled_from([q_dtype, "float32"])),
        v_dtype=None,
        k_descale=None,
        v_descale=None,
    )


@settings(random_problems, max_examples=60)
@given(latent_problems(), st.data())
def test_random_problems(p: AttentionProblem, data: st.DataObject) -> None:
    check(p, config=data.draw(st.sampled_from([None, *configs_for(p)]), label="config"))


def test_strides_of_no_tokens_mean_nothing() -> None:
    layouts = ("contiguous", "padded", "contiguous", "contiguous")
    check(replace(PROBLEMS["decode"], seqlen_k=0, seqused_k=None, layouts=layouts))


def test_the_oracle_takes_what_latent_decodes() -> None:
    p = PROBLEMS["decode"]
    q, k, v = decoded(p, make_inputs(p))
    assert k.dtype == np.float64 and v.shape[-1] == D_HEAD_V
    assert np.isfinite(oracle.attention(q, k, v, causal=True)[0]).all()


# ---- Scales ----


@pytest.mark.parametrize("scale", [0.0, -0.0, -3.0, 1e-30, 1e-45, 1e30, 3e38], ids=str)
@pytest.mark.parametrize("name", ["decode", "many_rows"])
def test_any_scale(name: str, scale: float) -> None:
    """The scale is that of 128 columns of one token, whose codes are small. Q is 0 there."""
    p = PROBLEMS[name]
    q, k, _ = make_inputs(p)
    k[:, 40, :, 128:256] &= 0x9F  # below 2
    _scales(k)[:, 40, :, 1] = scale
    q[..., 128:256] = 0
    for config in _configs(p):
        check(p, [q, k, k], config, unit=max(1.0, abs(scale)))


@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("name", ["decode", "many_rows"])
def test_a_scale_that_is_not_finite_reaches_only_rows_that_see_it(name: str, scale: float) -> None:
    p = PROBLEMS[name]
    q, k, _ = make_inputs(p)
    _scales(k)[:, p.seqlen_k - 5, :, 2] = scale
    sees = p.seqlen_q - np.arange(p.seqlen_q) <= 5
    for config in _configs(p):
        o, _ = run(p, [q, k, k], config)
        assert np.isnan(o[:, sees]).all(axis=-1).all(), config
        assert np.isfinite(o[:, ~sees]).all(), config


# ---- Memory that must not be read ----


@every_problem
def test_bytes_that_nobody_sees_do_not_matter(name: str) -> None:
    p = replace(PROBLEMS[name], seed=3)
    if p.cu_seqlens_k is not None or p.seqused_k is not None:
        pytest.skip("lengths of its own")
    p = replace(p, seqused_k=(p.seqlen_k // 2,) * p.batch)
    q, k, _ = make_inputs(p)
    hidden = k.copy()
    hidden[:, p.seqlen_k // 2 :] = 0xFF
    for config in _configs(p):
        expected = run(p, [q, k, k], config)
        for a, b in zip(run(p, [q, hidden, hidden], config), expected):
            assert a.tobytes() == b.tobytes(), config


# ---- Pages ----


@pytest.mark.parametrize("page_size", [1, 3, 16, 64, 128])
@pytest.mark.parametrize(
    "name", ["one_row", "decode", "two_heads", "many_rows", "window", "split", "padded"]
)
def test_bits_are_those_without_pages(name: str, page_size: int) -> None:
    p = replace(PROBLEMS[name], leftpad_k=None)
    paged = PagedProblem(p, page_size)
    inputs = make_inputs(paged.dense)
    for config in _configs(paged.dense):
        expected = run(paged.dense, inputs, config)
        for a, b in zip(run_paged(paged, inputs, config), expected):
            assert a.tobytes() == b.tobytes(), config


@pytest.mark.parametrize("kind", KINDS)
def test_pages_may_be_found_in_any_way(kind: str) -> None:
    paged = PagedProblem(replace(PROBLEMS["in_use"], seqused_q=None), 16, kind)
    inputs = make_inputs(paged.dense)
    for config in _configs(paged.dense):
        expected = run(paged.dense, inputs, config)
        for a, b in zip(run_paged(paged, inputs, config), expected):
            assert a.tobytes() == b.tobytes(), config


def test_chosen_tokens_are_pages_of_one() -> None:
    """Sparse attention: each query has tokens of its own, by a table of pages of one token."""
    rng = np.random.default_rng(0)
    cache = latent.encode(rng.standard_normal((5, 16, 1, D_HEAD)))
    q = rng.standard_normal((3, 1, 8, D_HEAD)).astype(np.float32)
    chosen = np.array([[7, 70, 3, 4], [79, 0, -1, -1], [5, 5, 6, -1]], np.int32)
    counts = np.array([4, 2, 3], np.int32)
    tokens = cache.reshape(80, 1, 1, 656)
    o = flashattn.flash_attn_func(
        q, tokens, tokens, kv_dtype="latent_e4m3", page_table=chosen, seqused_k=counts
    )
    for b in range(3):
        k = latent.decode(tokens[chosen[b, : counts[b]], 0])[None]
        alone, _ = oracle.attention(q[b : b + 1], k, k[..., :D_HEAD_V])
        np.testing.assert_allclose(o[b : b + 1], alone, atol=1e-5)


# ---- Selection and refusals ----


def test_families_of_bf16_products_leave_latent_tokens_to_others() -> None:
    q, k, v = make_inputs(replace(PROBLEMS["decode"], q_dtype="bfloat16"))
    config = flashattn.select_config(q, k, v, kv_dtype=LATENT).config
    assert config.dtype == flashattn.DType.LATENT_E4M3
    for arch in (flashattn.Arch.AMX, flashattn.Arch.AVX512_BF16, flashattn.Arch.NEON_BF16):
        with pytest.raises(LookupError, match="dtype is 5"):
            flashattn.lookup_kernel(replace(config, arch=arch))


def test_the_binding_refuses_what_is_no_cache() -> None:
    q, k, v = make_inputs(PROBLEMS["decode"])
    call = flashattn.flash_attn_func
    with pytest.raises(ValueError, match="k is uint8: not float16.*no kv_dtype"):
        call(q, k, v)
    with pytest.raises(ValueError, match="kv_dtype is 'fp8_ds_mla': not 'latent_e4m3'"):
        call(q, k, v, kv_dtype="fp8_ds_mla")
    with pytest.raises(ValueError, match="k is float32: with kv_dtype 'latent_e4m3' it is uint8"):
        call(q, k.astype(np.float32), v, kv_dtype=LATENT)
    with pytest.raises(
        ValueError, match="a token of kv_dtype 'latent_e4m3', the last axis, has 656"
    ):
        call(q, k[..., :576], v, kv_dtype=LATENT)
    with pytest.raises(ValueError, match="k has d_head .* 576, q has 512"):
        call(q[..., :512], k, v, kv_dtype=LATENT)
    with pytest.raises(
        ValueError, match="v is not k: with FLASH_DTYPE_LATENT_E4M3 both have the same"
    ):
        call(q, k, v.copy(), kv_dtype=LATENT)
    with pytest.raises(ValueError, match=r"quant.k_scale is given, and k.dtype is 5"):
        call(q, k, v, kv_dtype=LATENT, k_descale=1.0)
    with pytest.raises(ValueError, match=r"quant.v_scale is given, and k.dtype is 5"):
        call(q, k, v, kv_dtype=LATENT, v_descale=1.0)


@dataclass(frozen=True)
class Spoiled:
    """A call that the library refuses: what changes a good one, and words of the message."""

    spoil: Callable[[_abi.flash_forward_args_t], None]
    words: str
    status: int = _abi.FLASH_ERROR_INVALID_ARGUMENT


def _set(**members: object) -> Callable[[_abi.flash_forward_args_t], None]:
    """Sets members of the arguments; k_stride_seq is that of k, and so on."""

    def spoil(args: _abi.flash_forward_args_t) -> None:
        for name, value in members.items():
            tensor, _, member = name.partition("_")
            if hasattr(args, name):
                setattr(args, name, value)
            else:
                setattr(getattr(args, tensor), member, value)

    return spoil


SPOILED = {
    "d_head": Spoiled(_set(d_head=512), "d_head is 512 and d_head_v 512: 576 and 512 with K and V"),
    "d_head_v": Spoiled(_set(d_head_v=576), "d_head is 576 and d_head_v 576: 576 and 512"),
    "no d_head_v": Spoiled(_set(d_head_v=0), "d_head is 576 and d_head_v 576: 576 and 512"),
    "tokens overlap": Spoiled(
        _set(k_stride_seq=576, v_stride_seq=576), "k.stride_seq is 576: a token of .* has 656 bytes"
    ),
    "entries overlap": Spoiled(_set(k_stride_batch=655), "k.stride_batch is 655: a token"),
    "one entry's tokens overlap": Spoiled(
        _set(batch=1, k_stride_seq=576, v_stride_seq=576), "k.stride_seq is 576: a token"
    ),
    "heads overlap": Spoiled(
        _set(n_heads_kv=2, k_stride_head=655, v_stride_head=655), "k.stride_head is 655: a token"
    ),
    "other strides": Spoiled(_set(v_stride_seq=672), "v is not k: with FLASH_DTYPE_LATENT_E4M3"),
    "another v": Spoiled(_set(v_dtype=_abi.FLASH_DTYPE_E4M3), "k.dtype is 5 and v.dtype is 4",
                         _abi.FLASH_ERROR_UNSUPPORTED),
    "q": Spoiled(_set(q_dtype=5), r"q.dtype is FLASH_DTYPE_LATENT_E4M3 \(5\): K and V alone",
                 _abi.FLASH_ERROR_UNSUPPORTED),
    "o": Spoiled(_set(o_dtype=5), r"o.dtype is FLASH_DTYPE_LATENT_E4M3 \(5\): K and V alone",
                 _abi.FLASH_ERROR_UNSUPPORTED),
}  # fmt: skip


@pytest.mark.parametrize("name", SPOILED)
def test_the_library_refuses(name: str) -> None:
    p = PROBLEMS["decode"]
    inputs = make_inputs(p)
    call = CallArguments(*inputs, p.call_options())
    o = Guarded(call.o_shape, np.float32)
    call.set_output(o.array, None)
    memory = np.zeros(1 << 24, np.uint8)
    call.args.workspace, call.args.workspace_size = memory.ctypes.data, memory.size
    assert library().flash_forward(call.args, None, None) == 0, last_error()
    o.take()
    SPOILED[name].spoil(call.args)
    assert library().flash_forward(call.args, None, None) == SPOILED[name].status
    assert re.search(SPOILED[name].words, last_error()), last_error()
    o.assert_untouched()


def test_v_has_the_pages_of_k() -> None:
    p = PROBLEMS["decode"]
    q, k, _ = make_inputs(p)
    table = np.zeros((2, 1), np.int32)
    with pytest.raises(ValueError, match="v is not k: .* strides and pages"):
        flashattn.flash_attn_func(
            q, k, k, kv_dtype=LATENT, page_table=table, v_page_table=table.copy(),
            seqused_k=np.array([90, 90], np.int32),
        )  # fmt: skip


def test_other_libraries_arrays_are_taken() -> None:
    p = PROBLEMS["decode"]
    q, k, _ = make_inputs(p)
    expected = flashattn.flash_attn_func(q, k, k, kv_dtype=LATENT)
    for wrap in (DLPackArray, InterfaceArray):
        cache = wrap(k)
        assert (flashattn.flash_attn_func(q, cache, cache, kv_dtype=LATENT) == expected).all()


# ---- Appending ----


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("places", ["slots", "pages", "contiguous"])
@pytest.mark.parametrize("offset", [0, 1])
def test_new_tokens_are_encoded(places: str, dtype: str, offset: int) -> None:
    """Two sequences get 7 tokens each, behind 20 and 3 others; nothing else is written."""
    x = new_tokens(dtype, 14)
    memory = np.full(6 * 16 * 2 * 656 + 1, 0x5A, np.uint8)
    pool = memory[offset : len(memory) - 1 + offset].reshape(6, 16, 2, 656)
    lengths, table = np.array([20, 3], np.int32), np.array([[4, 0], [1, 5]], np.int32)
    rows = [
        (table[b, j // 16], j % 16) for b in range(2) for j in range(lengths[b], lengths[b] + 7)
    ]
    options = {"seqused_k": lengths, "seqused_k_out": np.zeros(2, np.int32)}
    cache, k_new = pool, x.reshape(2, 7, 2, D_HEAD)
    if places == "slots":
        slots = np.array([page * 16 + at for page, at in rows], np.int64)
        options, k_new = {"slot_mapping": slots}, x
    elif places == "pages":
        options["page_table"] = table
    else:
        cache = pool.reshape(2, 48, 2, 656)
        flat = [b * 48 + j for b in range(2) for j in range(lengths[b], lengths[b] + 7)]
        rows = [(i // 16, i % 16) for i in flat]
    expected = pool.copy()
    for token, (page, at) in zip(latent.encode(x), rows):
        expected[page, at] = token
    flashattn.flash_kv_append(k_new, None, cache, None, kv_dtype=LATENT, **options)
    assert (pool == expected).all()
    if "seqused_k_out" in options:
        assert list(options["seqused_k_out"]) == [27, 10]


def _append_args(**members: object) -> _abi.flash_kv_append_args_t:
    memory = np.zeros(8192, np.uint8)
    tensors = {
        name: _abi.flash_tensor_t(memory.ctypes.data + at, 656, 656, 656, dtype=dtype)
        for name, at, dtype in (("k", 0, 5), ("k_new", 4096, 3))
    }
    lengths = np.zeros(1, np.int32)
    args = _abi.flash_kv_append_args_t(
        dtype=3, batch=1, seqlen_new=1, seqlen_k=1, n_heads_kv=1, d_head=576, **tensors
    )
    args.seqused_k = lengths.ctypes.data
    args.kept = (memory, lengths)
    _set(**members)(args)
    return args


def test_a_good_append_is_taken() -> None:
    assert library().flash_kv_append(_append_args(), None) == 0, last_error()


@pytest.mark.parametrize(
    "members, words, status",
    [
        (
            {"k_new_dtype": 5},
            r"k_new.dtype is FLASH_DTYPE_LATENT_E4M3 \(5\): new tokens are of",
            200,
        ),
        ({"d_head": 512}, "d_head is 512: 576 with k of FLASH_DTYPE_LATENT_E4M3", 100),
        ({"k_stride_head": 600, "n_heads_kv": 2}, "k overlaps itself: k.stride_head is 600", 100),
    ],
    ids=str,
)
def test_appending_is_refused(members: dict[str, object], words: str, status: int) -> None:
    args = _append_args()
    if "k_new_dtype" in members:
        args.k_new.dtype = 5
    else:
        _set(**members)(args)
    assert library().flash_kv_append(args, None) == status
    assert re.search(words, last_error()), last_error()


def test_the_binding_refuses_what_cannot_be_appended() -> None:
    cache = np.zeros((1, 4, 1, 656), np.uint8)
    x = np.zeros((1, 1, 1, D_HEAD), np.float32)
    options = {"kv_dtype": LATENT, "seqused_k": np.zeros(1, np.int32)}
    append = flashattn.flash_kv_append
    append(x, None, cache, None, **options)
    with pytest.raises(
        ValueError, match="k_cache has heads and d_head .1, 576., k_new has .1, 512."
    ):
        append(x[..., :512], None, cache, None, **options)
    with pytest.raises(
        NotImplementedError, match="rotary is given, and k.dtype is FLASH_DTYPE_LAT"
    ):
        table = np.zeros((4, 32), np.float32)
        append(x, None, cache, None, rotary_cos=table, rotary_sin=table, **options)
    with pytest.raises(
        NotImplementedError, match="rotary is given, and k.dtype is FLASH_DTYPE_LAT"
    ):
        append(x, None, cache, None, q=x, rotary_cos=table, rotary_sin=table, **options)
    with pytest.raises(ValueError, match="quant.k_scale is given, and k.dtype is 5"):
        append(x, None, cache, None, k_descale=1.0, **options)
    with pytest.raises(ValueError, match="k_cache is uint8: not float16"):
        append(x, None, cache, None, seqused_k=options["seqused_k"])

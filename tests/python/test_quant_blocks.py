"""K and V of quantised blocks, and K and V of two types, on every kernel here: the format, each
pair of types against the oracle, pages, memory that must not be read, and new tokens.
"""

from __future__ import annotations

import re
from dataclasses import replace

import flashattn
import numpy as np
import pytest
from flashattn import _abi, oracle, quant_blocks
from flashattn._library import last_error, library
from flashattn._problem import Problem as CallArguments
from foreign_arrays import DLPackArray, InterfaceArray
from hypothesis import given, settings
from hypothesis import strategies as st
from memory import DTYPES, QUANT_BLOCKS, Guarded, dtype_of
from paging import KINDS, PagedProblem, run_paged
from problems import (
    AttentionProblem,
    check,
    configs_for,
    configs_for_pages,
    cpu_kernels,
    decoded,
    make_inputs,
    run,
)
from strategies import PAIRS, attention_problems, random_problems

BYTES = {"q8_0": 34, "q4_0": 18}
# Pairs that read each type as K and as V.
SOME_PAIRS = [
    *((x, x) for x in QUANT_BLOCKS),
    ("q8_0", "float16"), ("bfloat16", "q4_0"), ("float32", "bfloat16"), ("float16", "float32"),
    ("q4_0", "q8_0"),
]  # fmt: skip
every_pair = pytest.mark.parametrize("k_dtype, v_dtype", PAIRS)
some_pairs = pytest.mark.parametrize("k_dtype, v_dtype", SOME_PAIRS)
every_block = pytest.mark.parametrize("kv_dtype", QUANT_BLOCKS)

# Ways of CPU kernels: few rows of decoded keys, packed keys of a task and of a head, split keys.
PROBLEMS = {
    "one_row": AttentionProblem(2, 1, 300, 1, 1, 32),
    "few_rows": AttentionProblem(1, 3, 200, 2, 1, 64, causal=True),
    "decode": AttentionProblem(2, 1, 90, 16, 4, 128, causal=True),
    "five_rows": AttentionProblem(1, 1, 70, 10, 2, 96),
    "many_rows": AttentionProblem(1, 150, 170, 2, 1, 128, causal=True),
    "window": AttentionProblem(1, 60, 90, 3, 1, 64, window_size=(33, 5)),
    "chunks": AttentionProblem(1, 3, 90, 4, 1, 64, causal=True, attention_chunk=32),
    "split": AttentionProblem(1, 1, 3000, 8, 2, 64),
    "split_rows": AttentionProblem(1, 2, 2100, 16, 1, 160, causal=True),
    "softcap": AttentionProblem(1, 3, 90, 8, 1, 64, softcap=2.0),
    "sinks": AttentionProblem(1, 3, 90, 4, 1, 64, sinks=(0.5, -2.0, 3.0, 1.0)),
    "ragged": AttentionProblem(
        3, 90, 150, 2, 1, 64, cu_seqlens_q=(0, 1, 1, 91), cu_seqlens_k=(0, 40, 60, 210)
    ),
    "in_use": AttentionProblem(
        3, 2, 100, 8, 1, 64, causal=True, seqused_q=(2, 1, 2), seqused_k=(0, 1, 77)
    ),
    "padded": AttentionProblem(2, 2, 100, 8, 1, 64, causal=True, leftpad_k=(3, 90)),
    "narrow_v": AttentionProblem(1, 2, 90, 4, 2, 192, d_head_v=128),
    "wide": AttentionProblem(1, 40, 50, 2, 1, 576, d_head_v=512),
    "wide_decode": AttentionProblem(1, 1, 700, 4, 1, 576, d_head_v=512),
}
every_problem = pytest.mark.parametrize("name", PROBLEMS)


def _of(name: str, k_dtype: str, v_dtype: str, **changes: object) -> AttentionProblem:
    return replace(PROBLEMS[name], dtype=k_dtype, v_dtype=v_dtype, **changes)


def _configs(p: AttentionProblem) -> list[str]:
    configs = configs_for_pages(p)
    assert any(config.startswith("REFERENCE") for config in configs)
    return configs


def _scales(rows: np.ndarray, kv_dtype: str) -> np.ndarray:
    """Returns a copy of the scales of rows, [..., blocks]."""
    blocks = rows.reshape(*rows.shape[:-1], -1, BYTES[kv_dtype])
    return np.ascontiguousarray(blocks[..., :2]).view(np.float16)[..., 0]


# ---- The format, from its definition ----


def _quantise_q8_0(x: np.ndarray) -> bytes:
    """Makes a block of 32 numbers of float32, one after the other."""
    d = np.float32(np.abs(x).max()) / np.float32(127)
    inverse = np.float32(1) / d if d else np.float32(0)
    elements = []
    for value in x:
        scaled = np.float32(value * inverse)
        whole, rest = divmod(abs(float(scaled)), 1)
        elements.append(int(np.copysign(whole + (rest >= 0.5), scaled)))
    return np.float16(d).tobytes() + np.array(elements, np.int8).tobytes()


def _quantise_q4_0(x: np.ndarray) -> bytes:
    extreme = np.float32(0)
    for value in x:
        if abs(value) > abs(extreme):
            extreme = value
    d = np.float32(extreme / np.float32(-8))
    inverse = np.float32(1) / d if d else np.float32(0)
    codes = [min(15, int(np.float32(np.float32(v * inverse) + np.float32(8.5)))) for v in x]
    pairs = [codes[i] | codes[i + 16] << 4 for i in range(16)]
    return np.float16(d).tobytes() + bytes(pairs)


def _quantise(x: np.ndarray, kv_dtype: str) -> np.ndarray:
    """Returns rows of bytes of numbers [..., d_head]."""
    one = _quantise_q8_0 if kv_dtype == "q8_0" else _quantise_q4_0
    blocks = x.astype(np.float32).reshape(-1, 32)
    rows = np.frombuffer(b"".join(one(block) for block in blocks), np.uint8)
    return rows.reshape(*x.shape[:-1], x.shape[-1] // 32 * BYTES[kv_dtype])


def _numbers(n: int, d_head: int, seed: int = 0) -> np.ndarray:
    """Returns [n, d_head] of float32 of all magnitudes, with blocks of zeros, of one number, of
    halves, which round away from zero, and with the largest number first, last and twice."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, d_head)) * np.exp(rng.uniform(-12, 10, (n, 1)))
    x[0], x[1, :32], x[2, 5:20] = 0, 0.75, -3
    x[3, :32] = np.arange(32) - 15.5
    x[3, 0], x[4, 31], x[5, :2] = 127, -900, (-77, 77)
    x[6, :32], x[7, :32] = 1e-7 * np.arange(32), -0.0
    return x.astype(np.float32)


@every_block
def test_encoding_follows_the_definition(kv_dtype: str) -> None:
    x = _numbers(60, 96)
    rows = quant_blocks.encode(x, kv_dtype)
    assert rows.shape == (60, 3 * BYTES[kv_dtype]) and rows.dtype == np.uint8
    assert (rows == _quantise(x, kv_dtype)).all()
    largest = np.abs(x).reshape(60, 3, 32).max(axis=-1, keepdims=True)
    step = largest / (127 if kv_dtype == "q8_0" else 8)
    error = np.abs(quant_blocks.decode(rows, kv_dtype) - x).reshape(60, 3, 32)
    assert (error <= step * (0.57 if kv_dtype == "q8_0" else 1.01) + 127 * 2.0**-24).all()


@every_block
def test_decoding_follows_the_definition(kv_dtype: str) -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 256, (50, 2 * BYTES[kv_dtype]), np.uint8)
    found = quant_blocks.decode(rows, kv_dtype)
    for row, numbers in zip(rows, found):
        for b in range(2):
            block = row[b * BYTES[kv_dtype] : (b + 1) * BYTES[kv_dtype]]
            scale = float(block[:2].copy().view(np.float16)[0])
            for i in range(32):
                if kv_dtype == "q8_0":
                    element = int(block[2 + i].view(np.int8))
                else:
                    element = (int(block[2 + i % 16]) >> 4 * (i // 16) & 15) - 8
                np.testing.assert_equal(numbers[32 * b + i], scale * element)


def test_rows_of_other_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="48 columns are not a multiple of 32"):
        quant_blocks.encode(np.zeros((3, 48)), "q8_0")
    with pytest.raises(ValueError, match="35 bytes are not a multiple of 34, those of a q8_0"):
        quant_blocks.decode(np.zeros((3, 35), np.uint8), "q8_0")
    with pytest.raises(ValueError, match="rows are float32: not uint8"):
        quant_blocks.decode(np.zeros((3, 34), np.float32), "q8_0")
    with pytest.raises(ValueError, match="kv_dtype is 'q5_0': not 'q8_0', 'q4_0'"):
        quant_blocks.encode(np.zeros((3, 32)), "q5_0")


@every_block
@pytest.mark.parametrize("rows", [1, 3, 30])
def test_every_element_has_its_value(kv_dtype: str, rows: int) -> None:
    """A query sees one key, so that O is V, which fp32 holds exactly. Q is 0."""
    p = AttentionProblem(256, 1, 1, rows, 1, 128, kv_dtype, causal=True)
    q, k, v = make_inputs(p)
    q[...] = 0
    v = v.reshape(256, 1, 1, 4, BYTES[kv_dtype])
    v[..., 2:] = (np.arange(256)[:, None, None, None, None] + 7 * np.arange(v.shape[-1] - 2)) & 255
    scales = np.float16([[0.37, -3, 6e-8, 6e4]])[..., None].view(np.uint8)
    v[..., :2] = scales
    v = v.reshape(256, 1, 1, -1)
    expected = np.broadcast_to(quant_blocks.decode(v, kv_dtype), (256, 1, rows, 128))
    for config in _configs(p):
        o, _ = run(p, [q, k, v], config)
        assert (o == expected).all(), config


# ---- Against the oracle ----


@every_problem
@some_pairs
def test_agrees_with_the_oracle(name: str, k_dtype: str, v_dtype: str) -> None:
    p = _of(name, k_dtype, v_dtype)
    for config in [None, *_configs(p)]:
        check(p, config=config)


@every_pair
@pytest.mark.parametrize("name", ["decode", "many_rows"])
def test_every_pair_of_types_agrees(name: str, k_dtype: str, v_dtype: str) -> None:
    p = _of(name, k_dtype, v_dtype)
    for config in _configs(p):
        check(p, config=config)


@every_block
@pytest.mark.parametrize("q_dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("name", ["decode", "many_rows", "split"])
def test_q_and_o_of_any_type(name: str, kv_dtype: str, q_dtype: str) -> None:
    for o_dtype in {q_dtype, "float32"}:
        p = _of(name, kv_dtype, kv_dtype, q_dtype=q_dtype, o_dtype=o_dtype)
        for config in [None, *_configs(p)]:
            check(p, config=config)


@some_pairs
@pytest.mark.parametrize("layout", ["padded", "heads_first", "unaligned", "at_begin"])
@pytest.mark.parametrize("name", ["decode", "many_rows", "split"])
def test_rows_may_lie_anywhere(name: str, layout: str, k_dtype: str, v_dtype: str) -> None:
    p = _of(name, k_dtype, v_dtype, layouts=(layout,) * 4)
    for config in _configs(p):
        check(p, config=config)


@some_pairs
@pytest.mark.parametrize("values", ["wide", "one_large_key", "identical_keys", "growing"])
def test_values(values: str, k_dtype: str, v_dtype: str) -> None:
    for name in ("decode", "many_rows"):
        p = _of(name, k_dtype, v_dtype, values=values)
        for config in _configs(p):
            check(p, config=config)


@st.composite
def mixed_problems(draw: st.DrawFn) -> AttentionProblem:
    d_heads = st.sampled_from([32, 64, 96, 128, 160, 192, 256, 288, 576])
    p = draw(attention_problems(st.sampled_from(PAIRS)))
    return replace(p, d_head=draw(d_heads), d_head_v=draw(st.one_of(st.none(), d_heads)))


@settings(random_problems, max_examples=100)
@given(mixed_problems(), st.data())
def test_random_problems(p: AttentionProblem, data: st.DataObject) -> None:
    check(p, config=data.draw(st.sampled_from([None, *configs_for(p)]), label="config"))


def test_the_oracle_takes_what_quant_blocks_decodes() -> None:
    p = _of("decode", "q8_0", "q4_0")
    q, k, v = decoded(p, make_inputs(p))
    assert k.dtype == v.dtype == np.float64 and k.shape[-1] == v.shape[-1] == 128
    assert np.isfinite(oracle.attention(q, k, v, causal=True)[0]).all()


@every_block
def test_v_may_be_the_first_columns_of_k(kv_dtype: str) -> None:
    """As in latent attention, whose cache llama.cpp quantises like any other."""
    p = _of("wide_decode", kv_dtype, kv_dtype)
    q, k, _ = make_inputs(p)
    v = k[..., : quant_blocks.row_bytes(512, kv_dtype)]
    for config in _configs(p):
        check(p, [q, k, v], config)


# ---- Scales ----


@every_block
@pytest.mark.parametrize("scale", [np.inf, -np.inf, np.nan], ids=str)
@pytest.mark.parametrize("name", ["decode", "many_rows"])
def test_a_scale_that_is_not_finite_reaches_only_rows_that_see_it(
    name: str, scale: float, kv_dtype: str
) -> None:
    p = _of(name, kv_dtype, kv_dtype)
    q, k, v = make_inputs(p)
    v[:, p.seqlen_k - 5, :, :2] = np.float16([scale]).view(np.uint8)
    sees = p.seqlen_q - np.arange(p.seqlen_q) <= 5
    for config in _configs(p):
        o, _ = run(p, [q, k, v], config)
        assert not np.isfinite(o[:, sees][..., :32]).any(), config
        assert np.isfinite(o[:, ~sees]).all() and np.isfinite(o[..., 32:]).all(), config


# ---- Memory that must not be read ----


@some_pairs
@every_problem
def test_bytes_that_nobody_sees_do_not_matter(name: str, k_dtype: str, v_dtype: str) -> None:
    p = _of(name, k_dtype, v_dtype, seed=3)
    if p.cu_seqlens_k is not None or p.seqused_k is not None:
        pytest.skip("lengths of its own")
    p = replace(p, seqused_k=(p.seqlen_k // 2,) * p.batch)
    inputs = make_inputs(p)
    hidden = [x.copy() for x in inputs]
    for x in hidden[1:]:
        x[:, p.seqlen_k // 2 :].view(np.uint8)[...] = 0xFF
    for config in _configs(p):
        expected = run(p, inputs, config)
        for a, b in zip(run(p, hidden, config), expected):
            assert a.tobytes() == b.tobytes(), config


# ---- Pages ----


@some_pairs
@pytest.mark.parametrize("page_size", [1, 3, 16, 64])
@pytest.mark.parametrize("name", ["one_row", "decode", "many_rows", "window", "split", "narrow_v"])
def test_bits_are_those_without_pages(
    name: str, page_size: int, k_dtype: str, v_dtype: str
) -> None:
    paged = PagedProblem(_of(name, k_dtype, v_dtype), page_size, v_apart=page_size == 16)
    inputs = make_inputs(paged.dense)
    for config in _configs(paged.dense):
        expected = run(paged.dense, inputs, config)
        for a, b in zip(run_paged(paged, inputs, config), expected):
            assert a.tobytes() == b.tobytes(), config


@some_pairs
@pytest.mark.parametrize("kind", KINDS)
def test_pages_may_be_found_in_any_way(kind: str, k_dtype: str, v_dtype: str) -> None:
    paged = PagedProblem(_of("in_use", k_dtype, v_dtype, seqused_q=None), 16, kind)
    inputs = make_inputs(paged.dense)
    for config in _configs(paged.dense):
        expected = run(paged.dense, inputs, config)
        for a, b in zip(run_paged(paged, inputs, config), expected):
            assert a.tobytes() == b.tobytes(), config


# ---- Selection and refusals ----


@pytest.mark.parametrize("k_dtype, v_dtype", [*SOME_PAIRS, ("bfloat16", "float16")])
def test_families_of_pairs_leave_these_types_to_others(k_dtype: str, v_dtype: str) -> None:
    p = _of("decode", k_dtype, v_dtype)
    chosen = flashattn.select_config(*make_inputs(p), **p.call_options())
    names = {"q8_0": "Q8_0", "q4_0": "Q4_0", "float32": "FP32", "float16": "FP16"}
    assert chosen.config.dtype == flashattn.DType[names.get(k_dtype, "BF16")]
    pairs = (flashattn.Arch.AMX, flashattn.Arch.AVX512_BF16, flashattn.Arch.NEON_BF16)
    assert chosen.config.arch not in pairs
    for kernel in cpu_kernels():
        if kernel.config.arch in pairs:
            support = flashattn.query_support(
                *make_inputs(p), config=kernel.config, **p.call_options()
            )
            assert not support and "dtype" in support.reason


def test_the_binding_refuses_what_is_no_cache() -> None:
    q, k, v = make_inputs(_of("decode", "q8_0", "q4_0"))
    call = flashattn.flash_attn_func
    names = "'latent_e4m3', 'q8_0', 'q4_0', or a pair for k and v"
    for wrong in ("q5_0", ("q8_0",), ("q8_0", "q4_0", None), ("q8_0", 3), 7):
        with pytest.raises(ValueError, match=f"kv_dtype is {re.escape(repr(wrong))}: not {names}"):
            call(q, k, v, kv_dtype=wrong)
    with pytest.raises(ValueError, match="k is uint8: not float16.*no kv_dtype"):
        call(q, k, v, kv_dtype=(None, "q4_0"))
    with pytest.raises(ValueError, match="v is float32: with kv_dtype 'q4_0' it is uint8"):
        call(q, k, v.astype(np.float32), kv_dtype=("q8_0", "q4_0"))
    with pytest.raises(ValueError, match="a row of kv_dtype 'q8_0', .* a multiple of 34 bytes"):
        call(q, k[..., :35], v, kv_dtype=("q8_0", "q4_0"))
    with pytest.raises(ValueError, match="k has d_head .* 96, q has 128"):
        call(q, k[..., : 3 * 34], v, kv_dtype=("q8_0", "q4_0"))
    with pytest.raises(ValueError, match="quant.k_scale is given, and k.dtype is 6"):
        call(q, k, v, kv_dtype=("q8_0", "q4_0"), k_descale=1.0)
    with pytest.raises(NotImplementedError, match="both are"):
        call(q, k, v.astype(dtype_of("float8_e4m3fn")), kv_dtype=("q8_0", None))


SPOILED = {
    "d_head": ({"d_head": 100}, "d_head is 100: not a multiple of 32, .* FLASH_DTYPE_Q8_0"),
    "d_head_v": ({"d_head_v": 16}, "d_head_v is 16: not a multiple of 32, .* FLASH_DTYPE_Q4_0"),
    "rows of k overlap": ({"k.stride_seq": 135}, "k.stride_seq is 135 bytes: a row of .* has 136"),
    "rows of v overlap": ({"v.stride_head": 71}, "v.stride_head is 71 bytes: a row of .* has 72"),
    "entries overlap": ({"k.stride_batch": 1}, "k.stride_batch is 1 bytes: a row of .* has 136"),
    "q": ({"q.dtype": 6}, r"q.dtype is FLASH_DTYPE_Q8_0 \(6\): K and V alone may be"),
    "o": ({"o.dtype": 7}, r"o.dtype is FLASH_DTYPE_Q4_0 \(7\): K and V alone may be"),
    "e4m3": ({"v.dtype": 4}, "k.dtype is 6 and v.dtype is 4: where one .* FLASH_DTYPE_E4M3, both"),
}


@pytest.mark.parametrize("name", SPOILED)
def test_the_library_refuses(name: str) -> None:
    p = _of("decode", "q8_0", "q4_0")
    call = CallArguments(*make_inputs(p), p.call_options())
    o = Guarded(call.o_shape, np.float32)
    call.set_output(o.array, None)
    memory = np.zeros(1 << 24, np.uint8)
    call.args.workspace, call.args.workspace_size = memory.ctypes.data, memory.size
    assert library().flash_forward(call.args, None, None) == 0, last_error()
    o.take()
    members, words = SPOILED[name]
    for member, value in members.items():
        tensor, _, of_tensor = member.rpartition(".")
        setattr(getattr(call.args, tensor) if tensor else call.args, of_tensor, value)
    assert library().flash_forward(call.args, None, None) != 0
    assert re.search(words, last_error()), last_error()
    o.assert_untouched()


@some_pairs
def test_cuda_devices_refuse_them_by_name(k_dtype: str, v_dtype: str) -> None:
    p = _of("decode", k_dtype, v_dtype)
    call = CallArguments(*make_inputs(p), p.call_options())
    for kernel in flashattn.kernels():
        if kernel.config.arch >= flashattn.Arch.SM80:
            support = flashattn.query_support(
                *make_inputs(p), config=kernel.config, **p.call_options()
            )
            assert not support and "dtype" in support.reason
    call.args.device = _abi.FLASH_DEVICE_CUDA
    assert library().flash_query_support(call.args, None, None, 0) != 0
    name = {"q8_0": "Q8_0", "q4_0": "Q4_0", "bfloat16": "BF16"}
    no_device = "FLASH_DEVICE_CUDA|CUDA"
    assert re.search(f"{name.get(v_dtype, 'FP')}|{no_device}", last_error()), last_error()


def test_other_libraries_arrays_are_taken() -> None:
    q, k, v = make_inputs(_of("decode", "q8_0", "q4_0"))
    options = {"kv_dtype": ("q8_0", "q4_0")}
    expected = flashattn.flash_attn_func(q, k, v, **options)
    for wrap in (DLPackArray, InterfaceArray):
        assert (flashattn.flash_attn_func(q, wrap(k), wrap(v), **options) == expected).all()


# ---- Appending ----


def _turned(x: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """Turns rows [tokens, heads, d_head] by angles [tokens, pairs], in float32 like the library."""
    n = cos.shape[-1]
    turned = x.astype(np.float32).copy()
    first, second = (
        (slice(0, 2 * n, 2), slice(1, 2 * n, 2)) if interleaved else (slice(n), slice(n, 2 * n))
    )
    a, b, c, s = turned[..., first].copy(), turned[..., second].copy(), cos[:, None], sin[:, None]
    turned[..., first] = a * c - b * s
    turned[..., second] = a * s + b * c
    return turned


ROTARY = {
    "none": None,
    "halves": (128, False),
    "interleaved": (128, True),
    "some_halves": (40, False),
    "some_interleaved": (36, True),
    "few": (2, False),
}


@some_pairs
@pytest.mark.parametrize("new_dtype", DTYPES)
@pytest.mark.parametrize("places, rotary", list(zip(["slots", "pages", "contiguous"] * 2, ROTARY)))
def test_new_tokens_are_quantised(
    rotary: str, places: str, new_dtype: str, k_dtype: str, v_dtype: str
) -> None:
    """Two sequences get 5 tokens each, behind 20 and 3 others; nothing else is written."""
    d_head, heads = 128, 2
    x = _numbers(2 * 10 * heads, d_head, seed=5).clip(-6e4, 6e4).astype(dtype_of(new_dtype))
    k_new, v_new = x.reshape(2, 10, heads, d_head)
    lengths, table = np.array([20, 3], np.int32), np.array([[4, 0], [1, 5]], np.int32)
    at = [(b, j) for b in range(2) for j in range(lengths[b], lengths[b] + 5)]
    options: dict[str, object] = {}
    wanted = [k_new.astype(np.float32), v_new.astype(np.float32)]
    if ROTARY[rotary] is not None:
        dim, interleaved = ROTARY[rotary]
        angles = np.arange(64)[:, None] * 10 ** -np.linspace(0, 4, dim // 2)
        cos, sin = (f(angles).astype(np.float32) for f in (np.cos, np.sin))
        positions = np.array([j for _, j in at], np.int64)
        options.update(rotary_cos=cos, rotary_sin=sin, rotary_positions=positions)
        options["rotary_interleaved"] = interleaved
        wanted[0] = _turned(k_new, cos[positions], sin[positions], interleaved)
    caches, expected = [], []
    for numbers, dtype in zip(wanted, (k_dtype, v_dtype)):
        rows = (
            _quantise(numbers, dtype) if dtype in QUANT_BLOCKS else numbers.astype(dtype_of(dtype))
        )
        cache = np.full((6, 16, heads, rows.shape[-1]), 0x5A, np.uint8).astype(rows.dtype)
        expected.append(cache.copy())
        for row, (b, j) in zip(rows, at):
            if places == "contiguous":
                expected[-1].reshape(2, 48, *cache.shape[2:])[b, j] = row
            else:
                expected[-1][table[b, j // 16], j % 16] = row
        caches.append(cache)
    given_caches = caches
    if places == "slots":
        slots = [table[b, j // 16] * 16 + j % 16 for b, j in at]
        options["slot_mapping"] = np.array(slots, np.int64)
    else:
        k_new, v_new = (new.reshape(2, 5, heads, d_head) for new in (k_new, v_new))
        options["seqused_k"] = lengths
        if places == "pages":
            options["page_table"] = table
        else:
            given_caches = [cache.reshape(2, 48, *cache.shape[2:]) for cache in caches]
    kv_dtype = tuple(dtype if dtype in QUANT_BLOCKS else None for dtype in (k_dtype, v_dtype))
    flashattn.flash_kv_append(k_new, v_new, *given_caches, kv_dtype=kv_dtype, **options)
    for cache, rows in zip(caches, expected):
        assert cache.tobytes() == rows.tobytes()


@every_block
def test_a_number_that_is_not_finite_makes_its_block_nan(kv_dtype: str) -> None:
    x = np.ones((1, 1, 3, 96), np.float32)
    x[0, 0, 0, 40], x[0, 0, 1, 0], x[0, 0, 2, 95] = np.nan, np.inf, -np.inf
    cache = np.zeros((1, 1, 3, quant_blocks.row_bytes(96, kv_dtype)), np.uint8)
    flashattn.flash_kv_append(
        x, None, cache, None, kv_dtype=kv_dtype, seqused_k=np.zeros(1, np.int32)
    )
    assert (cache == quant_blocks.encode(x, kv_dtype)).all()
    nan = np.isnan(quant_blocks.decode(cache, kv_dtype)[0, 0].reshape(3, 3, 32))
    assert (nan.all(axis=-1) == np.array([[0, 1, 0], [1, 0, 0], [0, 0, 1]])).all()
    assert (nan.any(axis=-1) == nan.all(axis=-1)).all()


@every_block
def test_numbers_without_a_scale_of_fp16_become_zeros_or_overflow(kv_dtype: str) -> None:
    x = np.zeros((1, 1, 1, 64), np.float32)
    x[..., :32], x[..., 32:] = 1e-40, 1e7
    cache = np.zeros((1, 1, 1, quant_blocks.row_bytes(64, kv_dtype)), np.uint8)
    flashattn.flash_kv_append(
        x, None, cache, None, kv_dtype=kv_dtype, seqused_k=np.zeros(1, np.int32)
    )
    assert (cache == quant_blocks.encode(x, kv_dtype)).all()
    found = quant_blocks.decode(cache, kv_dtype)[0, 0, 0]
    assert (found[:32] == 0).all() and not np.isfinite(found[32:]).any()
    assert np.isinf(_scales(cache, kv_dtype)[..., 1]).all()


def test_appending_is_refused() -> None:
    append, lengths = flashattn.flash_kv_append, np.zeros(1, np.int32)
    x = np.zeros((1, 1, 1, 64), np.float32)
    cache = np.zeros((1, 4, 1, 68), np.uint8)
    append(x, None, cache, None, kv_dtype="q8_0", seqused_k=lengths)
    with pytest.raises(ValueError, match=r"k_cache has heads and d_head .1, 64., k_new has .1, 32"):
        append(x[..., :32], None, cache, None, kv_dtype="q8_0", seqused_k=lengths)
    with pytest.raises(ValueError, match="quant.k_scale is given, and k.dtype is 6"):
        append(x, None, cache, None, kv_dtype="q8_0", k_descale=1.0, seqused_k=lengths)
    with pytest.raises(ValueError, match="k_cache is uint8: not float16"):
        append(x, None, cache, None, seqused_k=lengths)
    overlapping = np.lib.stride_tricks.as_strided(cache, (1, 4, 1, 68), (4, 67, 67, 1))
    with pytest.raises(ValueError, match="k overlaps itself: k.stride_seq is 67"):
        append(x, None, overlapping, None, kv_dtype="q8_0", seqused_k=lengths)

"""Attention problems for the tests: inputs, a guarded run, and the comparison with the oracle.

A problem holds all that its run depends on, the seed included, so printing it is enough to replay
it.
"""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass, replace
from functools import lru_cache

import flashattn
import numpy as np
from bias_cases import BiasCase
from expectation import Expected, assert_agrees, expected_of
from flashattn import config as flash_config
from flashattn import latent, quant_blocks
from flashattn._argument_list import ATTENTION, LENGTHS
from flashattn._library import check as check_status
from flashattn._library import library
from flashattn._problem import Problem as CallArguments
from memory import E4M3, LATENT, QUANT_BLOCKS, Guarded, GuardedBytes, arrange, dtype_of

# P rounded to the operands' type is noise. The relative error averages it over an output, and the
# largest error is compared with that of the naive attention. Both need an output of some size.
FEWEST_ROWS = 32
FEWEST_ELEMENTS = 1000

LENGTHS_OF_A_CALL = [argument.name for argument in ATTENTION if argument.kind is LENGTHS]
VALUES = ("normal", "wide", "one_large_key", "identical_keys", "growing")


@dataclass(frozen=True)
class AttentionProblem:
    batch: int = 1
    seqlen_q: int = 1
    seqlen_k: int = 1
    n_heads: int = 1
    n_heads_kv: int = 1
    d_head: int = 64
    dtype: str = "float32"  # of k and v
    q_dtype: str | None = None  # None: that of k, beside 8 bits or less float32
    o_dtype: str | None = None  # likewise, beside 8 bits or less q's
    causal: bool = False
    window_size: tuple[int, int] = (-1, -1)
    attention_chunk: int = 0
    softcap: float = 0.0
    softmax_scale: float | None = None
    sinks: tuple[float, ...] | None = None  # [n_heads]
    bias: BiasCase | None = None
    cu_seqlens_q: tuple[int, ...] | None = None
    cu_seqlens_k: tuple[int, ...] | None = None
    seqused_q: tuple[int, ...] | None = None
    seqused_k: tuple[int, ...] | None = None
    leftpad_k: tuple[int, ...] | None = None
    k_descale: tuple[tuple[float, ...], ...] | float | None = None  # [batch][n_heads_kv]
    v_descale: tuple[tuple[float, ...], ...] | float | None = None
    values: str = "normal"
    layouts: tuple[str, str, str, str] = ("contiguous",) * 4  # of q, k, v, o
    seed: int = 0
    d_head_v: int | None = None  # None: d_head
    v_dtype: str | None = None  # None: that of k
    diagonal_offset: int = 0
    q_descale: tuple[tuple[float, ...], ...] | float | None = None
    q_token_scales: int | None = None  # the seed of a q_descale of tokens
    dropout_p: float = 0.0
    rng_state: tuple[int, int] = (0, 0)

    @property
    def types(self) -> tuple[str, str, str]:
        """Returns the types of q, of k, and of o."""
        takes_any_q = self.dtype in (E4M3, LATENT, *QUANT_BLOCKS)
        wide = "float32" if takes_any_q else self.dtype
        of_q = self.q_dtype or wide
        of_o = "float32" if of_q == E4M3 else of_q
        return of_q, self.dtype, self.o_dtype or (of_o if takes_any_q else wide)

    @property
    def type_of_v(self) -> str:
        return self.v_dtype or self.dtype

    @property
    def input_types(self) -> tuple[str, str, str]:
        """Returns the types of q, k and v."""
        return self.types[0], self.dtype, self.type_of_v

    @property
    def q_shape(self) -> tuple[int, ...]:
        if self.cu_seqlens_q is not None:
            return (self.cu_seqlens_q[-1], self.n_heads, self.d_head)
        return (self.batch, self.seqlen_q, self.n_heads, self.d_head)

    @property
    def o_shape(self) -> tuple[int, ...]:
        return (*self.q_shape[:-1], self.d_head_v or self.d_head)

    @property
    def averages_rounding(self) -> bool:
        """Says whether the rules of docs/numerics.md hold for kernels that round P too."""
        rows = math.prod(self.q_shape[:-1])
        return rows >= FEWEST_ROWS and math.prod(self.o_shape) >= FEWEST_ELEMENTS

    @property
    def k_shape(self) -> tuple[int, ...]:
        columns = _elements(self.d_head, self.dtype)
        if self.cu_seqlens_k is not None:
            return (self.cu_seqlens_k[-1], self.n_heads_kv, columns)
        return (self.batch, self.seqlen_k, self.n_heads_kv, columns)

    @property
    def v_shape(self) -> tuple[int, ...]:
        if self.dtype == LATENT:
            return self.k_shape
        return (*self.k_shape[:-1], _elements(self.d_head_v or self.d_head, self.type_of_v))

    def _scales(self, values: tuple[tuple[float, ...], ...] | float | None) -> object:
        if not isinstance(values, tuple):
            return values
        return np.array(values, np.float32).reshape(self.batch, self.n_heads_kv)

    def _scales_of_q(self) -> object:
        if self.q_token_scales is None:
            return self._scales(self.q_descale)
        rng = np.random.default_rng(self.q_token_scales)
        return rng.uniform(-2, 2, (*self.q_shape[:-1], 1)).astype(np.float32)

    def options(self) -> dict[str, object]:
        """Returns keywords of the oracle."""
        return {
            "causal": self.causal,
            "window_size": self.window_size,
            "attention_chunk": self.attention_chunk,
            "diagonal_offset": self.diagonal_offset,
            "softcap": self.softcap,
            "softmax_scale": self.softmax_scale,
            "sinks": None if self.sinks is None else np.array(self.sinks, np.float32),
            **({} if self.bias is None else self.bias.options(self)),
            "cu_seqlens_q": self.cu_seqlens_q,
            "cu_seqlens_k": self.cu_seqlens_k,
            "seqused_q": self.seqused_q,
            "seqused_k": self.seqused_k,
            "leftpad_k": self.leftpad_k,
            "k_descale": self._scales(self.k_descale),
            "v_descale": self._scales(self.v_descale),
            "q_descale": self._scales_of_q(),
            **self._dropout(),
        }

    def _dropout(self) -> dict[str, object]:
        if self.dropout_p == 0:
            return {}
        return {"dropout_p": self.dropout_p, "rng_state": self.rng_state}

    def call_options(self) -> dict[str, object]:
        """Returns keywords of a call: the oracle's, the longest lengths of a ragged batch, and
        kv_dtype where an array does not say its type."""
        named = _kv_dtype(self.dtype), _kv_dtype(self.type_of_v)
        return {
            **self.options(),
            **({} if self.bias is None else self.bias.call_options(self)),
            "max_seqlen_q": None if self.cu_seqlens_q is None else self.seqlen_q,
            "max_seqlen_k": None if self.cu_seqlens_k is None else self.seqlen_k,
            "out_dtype": self.types[2],
            **({} if named == (None, None) else {"kv_dtype": named}),
        }


def _elements(columns: int, dtype: str) -> int:
    """Returns the last axis of an array of keys."""
    if dtype in QUANT_BLOCKS:
        return quant_blocks.row_bytes(columns, dtype)
    return latent.TOKEN_BYTES if dtype == LATENT else columns


def _kv_dtype(dtype: str) -> str | None:
    return dtype if dtype in (LATENT, *QUANT_BLOCKS) else None


def make_inputs(p: AttentionProblem) -> list[np.ndarray]:
    """Returns q, k, v: random numbers of the problem's seed, in its layouts. v of latent tokens is
    k."""
    values = _random_values(
        p.q_shape,
        (*p.k_shape[:-1], p.d_head),
        (*p.v_shape[:-1], p.d_head_v or p.d_head),
        p.input_types,
        p.values,
        p.seed,
    )
    if p.dtype == LATENT:
        q, k = (arrange(x, layout) for x, layout in zip(values[:2], p.layouts))
        return [q, k, k]
    return [arrange(x, layout) for x, layout in zip(values, p.layouts)]


@lru_cache(maxsize=4)  # a test takes the same ones for each kernel
def _random_values(
    q_shape: tuple[int, ...],
    k_shape: tuple[int, ...],
    v_shape: tuple[int, ...],
    types: tuple[str, str, str],
    values: str,
    seed: int,
) -> list[np.ndarray]:
    """The shapes are those of numbers, which arrays of bytes encode."""
    rng = np.random.default_rng(seed)
    q, k = (rng.standard_normal(shape) for shape in (q_shape, k_shape))
    v = k if types[1] == LATENT else rng.standard_normal(v_shape)
    _shape_values(values, q, k)
    return [_encoded(x, dtype) for x, dtype in zip((q, k, v), types)]


def _encoded(x: np.ndarray, dtype: str) -> np.ndarray:
    if dtype in QUANT_BLOCKS:
        return quant_blocks.encode(x, dtype)
    return latent.encode(x) if dtype == LATENT else x.astype(dtype_of(dtype))


def _shape_values(values: str, q: np.ndarray, k: np.ndarray) -> None:
    """Changes normal values into those that exercise the rescaling of the online softmax."""
    if k.size == 0:
        return
    seqlen = k.shape[-3]
    if values == "wide":
        q *= 8
    elif values == "one_large_key":
        k[..., seqlen // 2, :, :] *= 20
    elif values == "identical_keys":
        k[...] = k[..., :1, :, :]
    elif values in ("growing", "soaring"):  # soaring: beyond the range of fp32's exponent
        last = 3 if values == "growing" else 60
        np.abs(q, out=q)
        k[...] = np.abs(k) * np.linspace(0.1, last, seqlen)[:, None, None]


def workspace_size(p: AttentionProblem, config: str | None = None) -> int:
    """Returns the bytes that the library asks for, whatever the inputs hold."""
    return _workspace_size(CallArguments(*_zeros(p), p.call_options()), config)


def _zeros(p: AttentionProblem) -> list[np.ndarray]:
    """Returns q, k, v that take no memory."""
    shapes = (p.q_shape, p.k_shape, p.v_shape)
    q, k, v = (
        np.broadcast_to(np.zeros(shape[-1], dtype_of(dtype)), shape)
        for dtype, shape in zip(p.input_types, shapes)
    )
    return [q, k, k if p.dtype == LATENT else v]


def decoded(p: AttentionProblem, inputs: list[np.ndarray]) -> list[np.ndarray]:
    """Returns q, k, v as numbers, which latent tokens and quantised blocks are not."""
    if p.dtype == LATENT:
        k = latent.decode(inputs[1])
        return [inputs[0], k, k[..., : latent.CODES]]
    return [
        quant_blocks.decode(x, dtype) if dtype in QUANT_BLOCKS else x
        for x, dtype in zip(inputs, p.input_types)
    ]


def make_call(
    p: AttentionProblem, inputs: list[np.ndarray], options: dict[str, np.ndarray] | None = None
) -> tuple[CallArguments, Guarded, Guarded]:
    """Makes the call, and the memory for O and LSE. options: more keywords."""
    arrays = {**_lengths(p), **_sinks(p), **(options or {})}
    call = CallArguments(*inputs, {**p.call_options(), **arrays})
    o = Guarded(call.o_shape, dtype_of(p.types[2]), p.layouts[3])
    lse = Guarded(call.lse_shape, np.float32, _lse_layout(p))
    call.set_output(o.array, lse.array)
    return call, o, lse


def _lengths(p: AttentionProblem) -> dict[str, np.ndarray]:
    """Returns the lengths that the problem has, each in memory of its own."""
    layout = "at_begin" if p.layouts[0] == "at_begin" else "contiguous"
    names = ("cu_seqlens_q", "cu_seqlens_k", *LENGTHS_OF_A_CALL)
    values = {name: getattr(p, name) for name in names if getattr(p, name) is not None}
    return {name: arrange(np.array(x, np.int32), layout) for name, x in values.items()}


def _sinks(p: AttentionProblem) -> dict[str, np.ndarray]:
    """Returns the sinks that the problem has, in memory of their own, at any alignment."""
    if p.sinks is None:
        return {}
    layout = p.layouts[0] if p.layouts[0] in ("at_begin", "unaligned") else "contiguous"
    return {"sinks": arrange(np.array(p.sinks, np.float32), layout)}


def _lse_layout(p: AttentionProblem) -> str:
    """Returns O's layout if it is one of LSE ([batch, head, seq], ragged [head, token])."""
    return p.layouts[3] if p.layouts[3] in ("at_begin", "padded") else "contiguous"


def _workspace_size(call: CallArguments, config: str | None) -> int:
    size = ctypes.c_uint64()
    kernel = flash_config.resolve(config)
    check_status(library().flash_workspace_size(call.args, kernel, size))
    return size.value


def run(
    p: AttentionProblem,
    inputs: list[np.ndarray] | None = None,
    config: str | None = None,
    workspace_bytes: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Returns (O, LSE) of one call of the library. Every output and the workspace are guarded.

    workspace_bytes    None: what the library asks for
    """
    return run_call(p, inputs or make_inputs(p), {}, config, workspace_bytes)


def run_call(
    p: AttentionProblem,
    inputs: list[np.ndarray],
    options: dict[str, np.ndarray],
    config: str | None = None,
    workspace_bytes: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Does the same with more keywords, which may say that K and V lie in pages."""
    call, o, lse = make_call(p, inputs, options)
    if workspace_bytes is None:
        workspace_bytes = _workspace_size(call, config)
    kernel = flash_config.resolve(config)
    workspace = GuardedBytes(workspace_bytes)
    call.args.workspace, call.args.workspace_size = workspace.address, workspace.size
    check_status(library().flash_forward(call.args, kernel, None))
    workspace.assert_guards()
    return o.take(), lse.take()


def check(
    p: AttentionProblem,
    inputs: list[np.ndarray] | None = None,
    config: str | None = None,
    unit: float = 1.0,
    roundings: int = 1,
) -> tuple[np.ndarray, np.ndarray]:
    """Runs the problem, asserts that it agrees with the oracle, and returns (O, LSE).

    unit         the scale of V
    roundings    of P in the naive attention: see oracle.naive()
    """
    o, lse = run(p, inputs, config)
    fill_unused(p, o, lse)
    if inputs is None:
        found = _expected_of_random_inputs(p, p_type(p, config), roundings)
    else:
        found = expected(p, inputs, p_type(p, config), roundings)
    found = replace(found, unit=found.unit * unit)
    assert_agrees(o, lse, found, f"replay: {p}, config={config!r}")
    return o, lse


def expected(
    p: AttentionProblem, inputs: list[np.ndarray], p_dtype: str, roundings: int = 1
) -> Expected:
    """Returns what is expected of the problem, where the naive attention has P of p_dtype."""
    types = dtype_of(p_dtype), dtype_of(p.types[2])
    return expected_of(decoded(p, inputs), *types, roundings, **p.options())


@lru_cache(maxsize=8)  # it is the same for most kernels
def _expected_of_random_inputs(p: AttentionProblem, p_dtype: str, roundings: int) -> Expected:
    return expected(p, make_inputs(p), p_dtype, roundings)


def fill_unused(p: AttentionProblem, o: np.ndarray, lse: np.ndarray) -> None:
    """Asserts that rows beyond seqused_q were not written, and replaces them by the oracle's."""
    for b, used in enumerate(p.seqused_q or ()):
        if p.cu_seqlens_q is None:
            rest_o, rest_lse = o[b, used:], lse[b, :, used:]
        else:
            rest = slice(p.cu_seqlens_q[b] + used, p.cu_seqlens_q[b + 1])
            rest_o, rest_lse = o[rest], lse[:, rest]
        assert np.isnan(rest_o.astype(np.float32)).all() and np.isnan(rest_lse).all()
        rest_o[...], rest_lse[...] = 0, -np.inf


def forward_kernels() -> list[flashattn.Kernel]:
    """Returns the rows that flash_attn_func runs: of all operations the table has rows."""
    return [k for k in flashattn.kernels() if k.config.op == flashattn.Op.FORWARD]


def cpu_kernels() -> list[flashattn.Kernel]:
    """Returns the kernels of the CPU families; tests/gpu has the others."""
    return [kernel for kernel in forward_kernels() if kernel.config.arch < flashattn.Arch.SM80]


@lru_cache(maxsize=1)
def _runnable() -> dict[str, flashattn.Kernel]:
    """Returns the kernels that this machine runs by their short forms."""
    return {str(kernel.config): kernel for kernel in cpu_kernels() if kernel.is_runnable}


def runnable_kernels() -> list[flashattn.Kernel]:
    return list(_runnable().values())


def rounds_p(p: AttentionProblem, config: str | None) -> bool:
    """Says whether the kernel, or one that may be selected, rounds P to bf16, at any place of a
    binade: relative to what was the row's maximum earlier."""
    configs = [config] if config else _runnable()
    rounding = ("AMX (BF16", "AVX512_BF16 (BF16", "NEON_BF16 (BF16")
    return p.dtype == p.type_of_v == "bfloat16" and any(c.startswith(rounding) for c in configs)


def p_type(p: AttentionProblem, config: str | None) -> str:
    """Returns the type of P for the largest error: that of k and v, or float32 if types differ and
    the kernel keeps P so (AMX has at most 16 bits)."""
    if p.dtype in (E4M3, LATENT, *QUANT_BLOCKS) or p.type_of_v != p.dtype:
        return "float32"
    if len(set(p.types)) == 1 or rounds_p(p, config):
        return p.dtype
    configs = [config] if config else _runnable()
    return p.dtype if any(c.startswith("AMX") for c in configs) else "float32"


def configs_for(p: AttentionProblem) -> list[str]:
    """Returns short forms of the kernels here that serve the problem."""
    inputs, options = _zeros(p), p.call_options()
    return [
        short_form
        for short_form, kernel in _runnable().items()
        if flashattn.query_support(*inputs, config=kernel.config, **options)
    ]


def configs_for_pages(p: AttentionProblem) -> list[str]:
    """Returns those that serve the problem with K and V in pages, too."""
    paged = flashattn.Feature.PAGED
    return [c for c in configs_for(p) if flashattn.Config.parse(c).features & paged]


def check_every_kernel(p: AttentionProblem, inputs: list[np.ndarray] | None = None) -> None:
    """Checks the problem on each kernel here that serves it; at least the selected one must."""
    configs = configs_for(p)
    assert configs, f"no kernel serves {p}"
    for config in configs:
        check(p, inputs, config)

"""Problems of gradients for the tests: a problem of the forward pass and what its gradients are
like, a guarded run of flash_backward(), and the comparison with the oracle.

As with problems.py, printing a problem is enough to replay it.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache

import flashattn
import numpy as np
from flashattn import _abi, _tensor, gradient_oracle, oracle
from flashattn import config as flash_config
from flashattn._library import check as check_status
from flashattn._library import library
from flashattn.compare import compare_gradient
from flashattn.gradient_oracle import Gradients
from memory import Guarded, GuardedBytes, arrange, dtype_of
from problems import AttentionProblem, make_call, make_inputs, p_type

NAMES = ("dq", "dk", "dv", "d_sinks")
FLAGS = {
    "dq": _abi.FLASH_BACKWARD_ADD_DQ,
    "dk": _abi.FLASH_BACKWARD_ADD_DK,
    "dv": _abi.FLASH_BACKWARD_ADD_DV,
}
OPS = (flashattn.Op.BACKWARD_DQ, flashattn.Op.BACKWARD_DKV)
Configs = tuple  # of dQ and of dK and dV: short forms, or None


@dataclass(frozen=True)
class GradientProblem:
    forward: AttentionProblem
    has_d_lse: bool = False
    wide: tuple[bool, bool, bool] = (False,) * 3  # dq, dk, dv are of fp32
    wanted: tuple[str, ...] = NAMES
    adds: tuple[str, ...] = ()  # of NAMES[:3]
    layouts: tuple[str, str, str, str] = ("contiguous",) * 4  # of d_o, dq, dk, dv
    d_o_scale: float = 1.0
    seed: int = 0

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        p = self.forward
        return {"dq": p.q_shape, "dk": p.k_shape, "dv": p.v_shape, "d_sinks": (p.n_heads,)}

    @property
    def dtypes(self) -> dict[str, np.dtype]:
        types = ("float32" if wide else of for wide, of in zip(self.wide, self.forward.input_types))
        return dict(zip(NAMES, map(dtype_of, (*types, "float32"))))

    @property
    def results(self) -> tuple[str, ...]:
        """Returns the gradients that a run writes."""
        has_sinks = self.forward.sinks is not None
        return tuple(x for x in self.wanted if x != "d_sinks" or has_sinks)


@dataclass
class Run:
    """Holds a call of flash_backward() that is ready to be made: change `args`, then launch()."""

    args: _abi.flash_backward_args_t
    gradients: dict[str, Guarded]
    before: dict[str, np.ndarray]
    o: np.ndarray
    d_o: np.ndarray
    d_lse: np.ndarray | None
    keep: list[object]
    workspace: GuardedBytes | None = None

    @property
    def forward(self) -> _abi.flash_forward_args_t:
        return self.keep[0].args

    def sizes(self) -> tuple[int, int]:
        """Returns the least and the best bytes of workspace."""
        least, best = ctypes.c_uint64(), ctypes.c_uint64()
        check_status(library().flash_backward_workspace_size(self.args, least, best))
        assert least.value <= best.value
        return least.value, best.value

    def set_workspace(self, n_bytes: int) -> None:
        """Gives the call a workspace of NaN between canaries."""
        self.workspace = GuardedBytes(n_bytes)
        self.args.workspace, self.args.workspace_size = self.workspace.address, n_bytes

    def launch(self) -> Gradients:
        """Makes the call, and returns what it wrote; nothing else may be written."""
        if self.workspace is None:
            self.set_workspace(self.sizes()[1])
        check_status(library().flash_backward(self.args, None))
        self.workspace.assert_guards()
        return Gradients(
            *(self.gradients[x].take() if x in self.gradients else None for x in NAMES)
        )


def make(
    g: GradientProblem,
    inputs: list[np.ndarray] | None = None,
    configs: Configs = (None, None),
    d_o: np.ndarray | None = None,
) -> Run:
    """Runs the forward pass and prepares the call for gradients."""
    p = g.forward
    call, o, lse = make_call(p, inputs or make_inputs(p))
    _run_forward(call)
    d_o = random_d_o(g) if d_o is None else d_o
    d_lse = random_d_lse(g)
    if d_lse is not None and p.sinks is not None:
        d_lse[_is_outweighed(lse.array, np.array(p.sinks))] = 0
    args = _abi.flash_backward_args_t(forward=ctypes.addressof(call.args))
    d_o = arrange(d_o, g.layouts[0])
    args.d_o = _c_tensor(d_o, "d_o", p.cu_seqlens_q)
    if d_lse is not None:
        d_lse = arrange(d_lse, "padded" if g.layouts[0] == "padded" else "contiguous")
        found = _tensor.lse_view(d_lse, "d_lse", call.lse_shape)
        args.d_lse = found.data
        for member, stride in _tensor.lse_strides(found, ragged=call.ragged_q).items():
            setattr(args, f"d_{member}", stride)
    run = Run(args, {}, {}, o.array, d_o, d_lse, [call, o, lse])
    for name in g.results:
        _add_gradient(run, g, name)
    args.dq_kernel, args.dkv_kernel = map(flash_config.resolve, configs)
    return run


def _is_outweighed(lse: np.ndarray, sinks: np.ndarray) -> np.ndarray:
    """Says in which rows the gradient of LSE may count less, since the sink is so heavy."""
    with np.errstate(invalid="ignore"):
        return ~(sinks[:, None] - lse < 60)


def random_d_o(g: GradientProblem) -> np.ndarray:
    numbers = np.random.default_rng(g.seed + 1).standard_normal(g.forward.o_shape)
    return (g.d_o_scale * numbers).astype(dtype_of(g.forward.types[2]))


def random_d_lse(g: GradientProblem) -> np.ndarray | None:
    if not g.has_d_lse:
        return None
    *batch, seqlen, n_heads, _ = g.forward.q_shape
    numbers = np.random.default_rng(g.seed + 2).standard_normal((*batch, n_heads, seqlen))
    return numbers.astype(np.float32)


def _run_forward(call: object) -> None:
    size = ctypes.c_uint64()
    check_status(library().flash_workspace_size(call.args, None, size))
    workspace = np.empty(size.value, np.uint8)
    call.args.workspace, call.args.workspace_size = workspace.ctypes.data, size.value
    check_status(library().flash_forward(call.args, None, None))
    call.args.workspace, call.args.workspace_size = None, 0


def _add_gradient(run: Run, g: GradientProblem, name: str) -> None:
    p = g.forward
    layout = "contiguous" if name == "d_sinks" else g.layouts[1 + NAMES.index(name)]
    guarded = run.gradients[name] = Guarded(g.shapes[name], g.dtypes[name], layout)
    if name == "d_sinks":
        run.args.d_sinks = guarded.array.ctypes.data
        return
    if name in g.adds:
        before = np.random.default_rng(g.seed).standard_normal(g.shapes[name])
        run.before[name] = before.astype(np.float32)
        guarded.array[...] = run.before[name]
        run.args.flags |= FLAGS[name]
    lengths = p.cu_seqlens_q if name == "dq" else p.cu_seqlens_k
    setattr(run.args, name, _c_tensor(guarded.array, name, lengths))


def _c_tensor(array: np.ndarray, name: str, cu_seqlens: object) -> _abi.flash_tensor_t:
    ragged = cu_seqlens is not None
    found = _tensor.tensor_view(array, name, 3 if ragged else 4)
    return _tensor.c_tensor(found, ragged=ragged)


# ---- The comparison ----


def check(
    g: GradientProblem,
    inputs: list[np.ndarray] | None = None,
    configs: Configs = (None, None),
    workspace_bytes: int | None = None,
) -> Gradients:
    """Runs the problem, asserts that its gradients agree with the oracle, and returns them."""
    run = make(g, inputs, configs)
    if workspace_bytes is not None:
        run.set_workspace(workspace_bytes)
    found = run.launch()
    compare_run(g, run, found, inputs, configs)
    return found


def compare_run(
    g: GradientProblem,
    run: Run,
    found: Gradients,
    inputs: list[np.ndarray] | None = None,
    configs: Configs = (None, None),
    of_p: str | None = None,
) -> None:
    """Asserts that what was found agrees with the oracle. of_p: the type of P and dS in the naive
    implementation, None: what these CPU kernels have."""
    p = g.forward
    of_p = of_p or p_type_of(p, configs)
    exact, naive, magnitude = _expected(g, inputs, run, of_p)
    qkv = inputs or make_inputs(p)
    largest = oracle.largest_score(qkv[0], qkv[1], p.softmax_scale)
    for name in g.results:
        values = [getattr(x, name) for x in (found, exact, naive, magnitude)]
        if name in run.before:
            values[0] = values[0].astype(np.float64) - run.before[name]
            values[0] = values[0].astype(np.float32)
            values[3] = np.abs(values[3]) + np.abs(run.before[name])
        deviation = compare_gradient(name, *values, largest_score=largest, p_dtype=dtype_of(of_p))
        assert deviation.ok, f"{deviation.failures}; {deviation}; replay: {g}, {configs=}"


def p_type_of(p: AttentionProblem, configs: Configs) -> str:
    """Returns the type of P and dS in the naive implementation."""
    types = {p_type(p, config) for config in configs}
    return p.dtype if p.dtype in types else "float32"


def _expected(
    g: GradientProblem, inputs: list[np.ndarray] | None, run: Run, of_p: str
) -> tuple[Gradients, Gradients, Gradients]:
    """Returns gradients of the oracle and of the naive implementation, and their magnitudes."""
    call = (*(inputs or make_inputs(g.forward)), run.d_o, run.d_lse)
    options = gradient_options(g.forward)
    of_ps = {dtype_of(of_p), dtype_of("float32")}
    naive = gradient_oracle.naive_of(of_ps, *call, o=run.o, **options)
    is_random = inputs is None and _has_random_gradients(run, g)
    exact, magnitude = _exact_of_random_inputs(g) if is_random else _exact(call, options)
    return exact, naive, magnitude


def _has_random_gradients(run: Run, g: GradientProblem) -> bool:
    same_lse = run.d_lse is None or np.array_equal(run.d_lse, random_d_lse(g))
    return same_lse and np.array_equal(run.d_o, random_d_o(g))


@lru_cache(maxsize=8)  # it is the same for most kernels
def _exact_of_random_inputs(g: GradientProblem) -> tuple[Gradients, Gradients]:
    call = (*make_inputs(g.forward), random_d_o(g), random_d_lse(g))
    return _exact(call, gradient_options(g.forward))


def gradient_options(p: AttentionProblem) -> dict[str, object]:
    """Returns keywords of the oracle of gradients."""
    options = p.options()
    return {x: y for x, y in options.items() if x not in ("k_descale", "v_descale", "q_descale")}


def _exact(call: tuple, options: dict) -> tuple[Gradients, Gradients]:
    return (
        gradient_oracle.gradients(*call, **options),
        gradient_oracle.magnitudes(*call, **options),
    )


# ---- Kernels ----


def gradient_kernels(op: flashattn.Op) -> list[flashattn.Kernel]:
    """Returns the CPU kernels of an operation that this machine runs."""
    return [
        kernel
        for kernel in flashattn.kernels()
        if kernel.config.op == op
        and kernel.config.arch < flashattn.Arch.SM80
        and kernel.is_runnable
    ]


def _multiplies_pairs(config: flashattn.Config) -> bool:
    """Says whether products of the row take bf16 alone."""
    pairs = (flashattn.Arch.AMX, flashattn.Arch.AVX512_BF16, flashattn.Arch.NEON_BF16)
    return config.arch in pairs


def _all_of_bf16(g: GradientProblem) -> bool:
    return {*g.forward.types} == {"bfloat16"}


def configs_for(g: GradientProblem) -> list[Configs]:
    """Returns pairs of short forms of kernels here that serve the problem: of each family for both
    operations, which compute all gradients together, and of one for dQ and the next for the
    others."""
    of_type = [
        [
            str(x.config)
            for x in gradient_kernels(op)
            if x.config.dtype == _tensor.DTYPES[g.forward.dtype]
            and (_all_of_bf16(g) or not _multiplies_pairs(x.config))
            and (g.forward.dropout_p == 0 or x.config.features & flashattn.Feature.DROPOUT)
        ]
        for op in OPS
    ]
    dq, dkv = of_type
    return list(dict.fromkeys([*zip(dq, dkv), *zip(dq, [*dkv[1:], dkv[0]])]))

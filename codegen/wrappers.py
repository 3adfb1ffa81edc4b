"""A kernel's function calls the family's code with its configuration as a constant. Most kernels
are a translation unit each.

Each kind of rows (a Layout of facts.py) that has kernels has a Wrapper for each operation; without
one their family is not built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import wrap

from .config import Config, c_initialiser, kernel_name
from .facts import FAMILIES, Arch, Feature, Op, rows_of
from .short_form import format_config

WIDTH = 100


@dataclass(frozen=True)
class Wrapper:
    suffix: str  # of the file's name
    header: str  # declares the parameters' types; the table includes it too
    parameters: str
    source: Callable[[File], str]
    keeps_ds: Callable[[Config], bool] = lambda config: False  # has a second kernel: dQ of dS


def indented_initialiser(config: Config, indent: str) -> str:
    """Returns the initialiser, wrapped at WIDTH. Its first line is not indented."""
    return f"\n{indent} ".join(wrap(c_initialiser(config), WIDTH - len(indent) - 4))


def prototype(config: Config) -> str:
    """Returns the prototype of the kernel's function, without its semicolon."""
    return f"void {kernel_name(config)}(\n    {wrapper_of(config).parameters})"


def dq_of_ds_name(config: Config) -> str:
    """Returns the symbol of the kernel that computes dQ of what a kernel of dK and dV keeps."""
    return f"{kernel_name(config)}_dq_of_ds"


def keeps_ds(config: Config) -> bool:
    return wrapper_of(config).keeps_ds(config)


def prototypes(config: Config) -> list[str]:
    """Returns the prototypes of all functions of a row, without their semicolons."""
    first = prototype(config)
    second = first.replace(kernel_name(config), dq_of_ds_name(config))
    return [first, second] if keeps_ds(config) else [first]


@dataclass(frozen=True)
class File:
    """A translation unit of kernels."""

    arch: Arch  # its compiler flags are those of this family
    name: str
    kernels: Sequence[Config]
    served: Sequence[Config] = ()  # kernels of other files that call its code

    @property
    def text(self) -> str:
        return wrapper_of(self.kernels[0] if self.kernels else self.served[0]).source(self)


# The forward kernels of these are one file, and so are those of gradients: types share most of
# their code (kernels/cpu/tiled/types.h).
ONE_FILE = {Arch.AVX2, Arch.AVX512, Arch.AVX512_BF16, Arch.NEON, Arch.NEON_BF16}
GRADIENTS_IN_ONE_FILE = {*ONE_FILE, Arch.AMX}
# The first leave tasks of few rows to the code of the second (kernels/cpu/avx512_few_rows.h).
SERVED_BY = {Arch.AMX: Arch.AVX512}


def _shares_its_file(config: Config) -> bool:
    return config.arch in (ONE_FILE if config.op == Op.FORWARD else GRADIENTS_IN_ONE_FILE)


def files_of(kernels: Sequence[Config]) -> list[File]:
    """Returns the files of these kernels."""
    forward = [c for c in kernels if c.op == Op.FORWARD]
    apart = [c for c in kernels if not _shares_its_file(c)]
    files = [File(Arch(c.arch), kernel_name(c) + wrapper_of(c).suffix, [c]) for c in apart]
    for arch in sorted(GRADIENTS_IN_ONE_FILE):
        word = FAMILIES[arch].name.replace("_", "")  # as in the names of kernels
        own = [c for c in forward if c.arch == arch and _shares_its_file(c)]
        served = [c for c in forward if SERVED_BY.get(Arch(c.arch)) == arch]
        backward = [c for c in kernels if c.arch == arch and c.op != Op.FORWARD]
        if own or served:
            files.append(File(arch, f"flash_fwd_{word}.c", own, served))
        if backward:
            files.append(File(arch, f"flash_bwd_{word}.c", backward))
    return files


def _cpu_source(file: File) -> str:
    family = FAMILIES[file.arch].name
    kernels = [_cpu_kernel(config, family) for config in file.kernels]
    if file.served:
        kernels.append(SERVICE)
    types = "" if file.arch == Arch.REFERENCE else _types_of([*file.kernels, *file.served])
    includes = f'#include "cpu/{family}.h"\n'
    includes += '#include "cpu/avx512_few_rows.h"\n' if file.served else ""
    return f"{types}{includes}\n" + "\n".join(kernels)


def _types_of(configs: Sequence[Config]) -> str:
    """Defines the element types of K and V of a file's kernels, a bit for each."""
    types = sorted({v for c in configs for v in rows_of(c.arch, c.op).v_types(c.dtype)})
    bits = " | \\\n     ".join(f"1u << FLASH_DTYPE_{dtype.name}" for dtype in types)
    return f"#define CPU_KERNEL_TYPES \\\n    ({bits})\n\n"


SERVICE = """\
void flash_avx512_few_rows(const flash_config_t *config, const flash_params_t *params,
                           const cpu_task_t *task, void *scratch) {
    tiled_forward(config, params, task, scratch);
}
"""


def _cpu_kernel(config: Config, family: str) -> str:
    return f"""\
/* {format_config(config)} */
{prototype(config)};

{prototype(config)} {{
    static const flash_config_t config =
        {indented_initialiser(config, "        ")};
    {family}_forward(&config, params, task, scratch);
}}
"""


def _cpu_backward_source(file: File) -> str:
    family = FAMILIES[file.arch].name
    kernels = [_cpu_backward_kernel(config, family) for config in file.kernels]
    return f'#include "cpu/{family}_backward.h"\n\n' + "\n".join(kernels)


def _cpu_backward_kernel(config: Config, family: str) -> str:
    return f"""\
/* {format_config(config)} */
{prototype(config)};

{prototype(config)} {{
    static const flash_config_t config =
        {indented_initialiser(config, "        ")};
    {family}_{Op(config.op).word}(&config, params, gradients, task, scratch);
}}
"""


_CPU_BACKWARD = Wrapper(
    suffix=".c",
    header="cpu/backward_kernel.h",
    parameters="const flash_params_t *params, const flash_gradients_t *gradients,\n"
    "    const cpu_task_t *task, void *scratch",
    source=_cpu_backward_source,
)


# CUDA kernels are in namespaces, so that one file can include the sources of several. Each has a
# file of its own.


def _alone(source: Callable[[Config], str]) -> Callable[[File], str]:
    return lambda file: source(file.kernels[0])


def _sm80_source(config: Config) -> str:
    return f"""\
/* {format_config(config)} */
#include "sm80/forward.cuh"

namespace {kernel_name(config)}_source {{

static constexpr flash_config_t config =
    {indented_initialiser(config, "    ")};

extern "C" __global__ void
__launch_bounds__(sm80_block_threads(&config), sm80_blocks_per_sm(&config))
{kernel_name(config)}(
    const __grid_constant__ flash_params_t params) {{
    sm80_forward<config>(params);
}}

}}
"""


def _sm80_keeps_ds(config: Config) -> bool:
    """Repeats sm80_backward_keeps_ds()."""
    has_dropout = bool(config.features & Feature.DROPOUT)
    return config.op == Op.BACKWARD_DKV and (config.d_head > 64 or has_dropout)


def _sm80_dq_of_ds(config: Config) -> str:
    return f"""\

static_assert(sm80_backward_keeps_ds(&config));
static constexpr flash_config_t of_ds = sm80_dq_of_ds_config(&config);

extern "C" __global__ void
__launch_bounds__(sm80_backward_threads(&of_ds), sm80_dq_of_ds_blocks_per_sm(&of_ds))
{dq_of_ds_name(config)}(
    const __grid_constant__ flash_backward_params_t params) {{
    sm80_dq_of_ds<of_ds>(params);
}}
"""


def _sm80_backward_source(config: Config) -> str:
    return f"""\
/* {format_config(config)} */
#include "sm80/backward.cuh"

namespace {kernel_name(config)}_source {{

static constexpr flash_config_t config =
    {indented_initialiser(config, "    ")};

extern "C" __global__ void
__launch_bounds__(sm80_backward_threads(&config), sm80_backward_blocks_per_sm(&config))
{kernel_name(config)}(
    const __grid_constant__ flash_backward_params_t params) {{
    sm80_backward<config>(params);
}}
{_sm80_dq_of_ds(config) if keeps_ds(config) else ""}
}}
"""


def _few_rows_source(config: Config, header: str, blocks_per_sm: str, function: str) -> str:
    return f"""\
/* {format_config(config)} */
#include "{header}"

namespace {kernel_name(config)}_source {{

static constexpr flash_config_t config =
    {indented_initialiser(config, "    ")};

extern "C" __global__ void
__launch_bounds__(decode_block_threads(&config), {blocks_per_sm}(&config))
{kernel_name(config)}(
    const __grid_constant__ sm80_decode_params_t params) {{
    {function}<config>(params);
}}

}}
"""


def _sm80_decode_source(config: Config) -> str:
    return _few_rows_source(config, "sm80/decode.cuh", "decode_blocks_per_sm", "sm80_decode")


def _sm80_mla_source(config: Config) -> str:
    return _few_rows_source(config, "sm80/mla.cuh", "sm80_mla_blocks_per_sm", "sm80_mla")


def _sm80_wide_source(config: Config) -> str:
    return _few_rows_source(config, "sm80/wide.cuh", "sm80_mla_blocks_per_sm", "sm80_wide")


def _wgmma_source(config: Config, header: str, params: str, function: str) -> str:
    return f"""\
/* {format_config(config)} */
#include "{header}"

namespace {kernel_name(config)}_source {{

static constexpr flash_config_t config =
    {indented_initialiser(config, "    ")};

extern "C" __global__ void __launch_bounds__(sm90_block_threads(&config), 1)
{kernel_name(config)}(
    const __grid_constant__ {params} params) {{
    {function}<config>(params);
}}

}}
"""


def _sm90_decode_source(config: Config) -> str:
    return _wgmma_source(config, "sm90/decode.cuh", "sm90_decode_params_t", "sm90_decode")


def _sm90_halves_source(config: Config) -> str:
    return _wgmma_source(config, "sm90/halves.cuh", "sm90_decode_params_t", "sm90_halves")


def _sm90_source(config: Config) -> str:
    return _wgmma_source(config, "sm90/forward.cuh", "sm90_params_t", "sm90_forward")


def _sm90_keeps_ds(config: Config) -> bool:
    """Says which rows have the second kernel, of those that sm90_keeps_ds() allows it."""
    return (
        config.op == Op.BACKWARD_DKV
        and config.d_head in (128, 192, 256)
        and config.features & ~Feature.VARLEN == Feature.CAUSAL
    )


def _sm90_gradient_kernel(name: str, config: str) -> str:
    return f"""\
extern "C" __global__ void __launch_bounds__(sm90_backward_threads(&{config}), 1)
{name}(
    const __grid_constant__ sm90_backward_params_t params) {{
    sm90_backward<{config}>(params);
}}
"""


def _sm90_backward_source(config: Config) -> str:
    kernels = _sm90_gradient_kernel(kernel_name(config), "config")
    if _sm90_keeps_ds(config):
        kernels += f"""
static_assert(sm90_keeps_ds(&config), "the kernel has dS stored where it is kept");
static constexpr flash_config_t of_ds = sm90_dq_of_ds(&config);

{_sm90_gradient_kernel(dq_of_ds_name(config), "of_ds")}"""
    return f"""\
/* {format_config(config)} */
#include "sm90/backward.cuh"

namespace {kernel_name(config)}_source {{

static constexpr flash_config_t config =
    {indented_initialiser(config, "    ")};

{kernels}
}}
"""


_SM80_BACKWARD = Wrapper(
    suffix=".cu",
    header="common/gradients.h",
    parameters="flash_backward_params_t params",
    source=_alone(_sm80_backward_source),
    keeps_ds=_sm80_keeps_ds,
)

_SM90_BACKWARD = Wrapper(
    suffix=".cu",
    header="sm90/backward_kernel.h",
    parameters="sm90_backward_params_t params",
    source=_alone(_sm90_backward_source),
    keeps_ds=_sm90_keeps_ds,
)

WRAPPERS = {
    ("cpu", Op.FORWARD): Wrapper(
        suffix=".c",
        header="cpu/cpu_kernel.h",
        parameters="const flash_params_t *params, const cpu_task_t *task, void *scratch",
        source=_cpu_source,
    ),
    ("cpu", Op.BACKWARD_DQ): _CPU_BACKWARD,
    ("cpu", Op.BACKWARD_DKV): _CPU_BACKWARD,
    # The host sees CUDA kernels as functions, which it launches and never calls.
    ("sm80", Op.FORWARD): Wrapper(
        suffix=".cu",
        header="common/params.h",
        parameters="flash_params_t params",
        source=_alone(_sm80_source),
    ),
    ("sm80_backward", Op.BACKWARD_DQ): _SM80_BACKWARD,
    ("sm80_backward", Op.BACKWARD_DKV): _SM80_BACKWARD,
    ("sm80_decode", Op.FORWARD): Wrapper(
        suffix=".cu",
        header="sm80/decode_kernel.h",
        parameters="sm80_decode_params_t params",
        source=_alone(_sm80_decode_source),
    ),
    ("sm80_mla", Op.FORWARD): Wrapper(
        suffix=".cu",
        header="sm80/decode_kernel.h",
        parameters="sm80_decode_params_t params",
        source=_alone(_sm80_mla_source),
    ),
    ("sm80_wide", Op.FORWARD): Wrapper(
        suffix=".cu",
        header="sm80/decode_kernel.h",
        parameters="sm80_decode_params_t params",
        source=_alone(_sm80_wide_source),
    ),
    ("sm90", Op.FORWARD): Wrapper(
        suffix=".cu",
        header="sm90/sm90_kernel.h",
        parameters="sm90_params_t params",
        source=_alone(_sm90_source),
    ),
    ("sm90_backward", Op.BACKWARD_DQ): _SM90_BACKWARD,
    ("sm90_backward", Op.BACKWARD_DKV): _SM90_BACKWARD,
    ("sm90_decode", Op.FORWARD): Wrapper(
        suffix=".cu",
        header="sm90/decode_kernel.h",
        parameters="sm90_decode_params_t params",
        source=_alone(_sm90_decode_source),
    ),
    ("sm90_mla", Op.FORWARD): Wrapper(
        suffix=".cu",
        header="sm90/decode_kernel.h",
        parameters="sm90_decode_params_t params",
        source=_alone(_sm90_halves_source),
    ),
    ("sm90_wide", Op.FORWARD): Wrapper(
        suffix=".cu",
        header="sm90/decode_kernel.h",
        parameters="sm90_decode_params_t params",
        source=_alone(_sm90_halves_source),
    ),
}


def wrapper_of(config: Config) -> Wrapper:
    return WRAPPERS[rows_of(config.arch, config.op).layout.name, Op(config.op)]

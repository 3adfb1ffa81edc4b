"""This module mirrors kernel configurations and the kernel table.

A configuration is the key of the table, a compiled kernel its value. docs/configurations.md
explains the fields, the rules of each family and the short form.
"""

from __future__ import annotations

import ctypes
import dataclasses
import enum
import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Callable, Union

from . import _abi, _numbers
from ._library import check, library, lookup_error


class Arch(enum.IntEnum):
    """Names the kernel families: each is the code for one kind of processor."""

    REFERENCE = _abi.FLASH_ARCH_REFERENCE
    AVX2 = _abi.FLASH_ARCH_AVX2
    AVX512 = _abi.FLASH_ARCH_AVX512
    AMX = _abi.FLASH_ARCH_AMX
    NEON = _abi.FLASH_ARCH_NEON
    AVX512_BF16 = _abi.FLASH_ARCH_AVX512_BF16
    NEON_BF16 = _abi.FLASH_ARCH_NEON_BF16
    SM80 = _abi.FLASH_ARCH_SM80
    SM80_DECODE = _abi.FLASH_ARCH_SM80_DECODE
    SM80_MLA = _abi.FLASH_ARCH_SM80_MLA
    SM80_WIDE = _abi.FLASH_ARCH_SM80_WIDE
    SM90 = _abi.FLASH_ARCH_SM90
    SM90_DECODE = _abi.FLASH_ARCH_SM90_DECODE
    SM90_MLA = _abi.FLASH_ARCH_SM90_MLA
    SM90_WIDE = _abi.FLASH_ARCH_SM90_WIDE
    MIXED = _abi.FLASH_ARCH_MIXED


class DType(enum.IntEnum):
    """Names the element types of Q, K, V and O."""

    FP16 = _abi.FLASH_DTYPE_FP16
    BF16 = _abi.FLASH_DTYPE_BF16
    FP32 = _abi.FLASH_DTYPE_FP32
    E4M3 = _abi.FLASH_DTYPE_E4M3
    LATENT_E4M3 = _abi.FLASH_DTYPE_LATENT_E4M3
    Q8_0 = _abi.FLASH_DTYPE_Q8_0
    Q4_0 = _abi.FLASH_DTYPE_Q4_0


class Op(enum.IntEnum):
    """Names what a kernel computes."""

    FORWARD = _abi.FLASH_OP_FORWARD
    BACKWARD_DQ = _abi.FLASH_OP_BACKWARD_DQ
    BACKWARD_DKV = _abi.FLASH_OP_BACKWARD_DKV


class Feature(enum.IntFlag):
    """Names what a kernel covers beyond full attention over equal lengths."""

    CAUSAL = _abi.FLASH_FEATURE_CAUSAL
    WINDOW = _abi.FLASH_FEATURE_WINDOW
    SOFTCAP = _abi.FLASH_FEATURE_SOFTCAP
    VARLEN = _abi.FLASH_FEATURE_VARLEN
    PAGED = _abi.FLASH_FEATURE_PAGED
    BIAS = _abi.FLASH_FEATURE_BIAS
    DROPOUT = _abi.FLASH_FEATURE_DROPOUT


class _ShortForm:
    """Adds to a configuration what it does besides holding its fields."""

    @classmethod
    def parse(cls, text: str) -> Config:
        """Reads a short form, as in "AVX512 (BF16, any, 96, 128): causal+softcap"."""
        config = _abi.flash_config_t()
        check(library().flash_config_parse(text.encode(), config))
        return from_c(config)

    def __str__(self) -> str:
        text = ctypes.create_string_buffer(_abi.FLASH_CONFIG_TEXT_SIZE)
        check(library().flash_config_format(to_c(self), text, len(text)))
        return text.value.decode()


FIELDS = _abi.CONFIG_FIELDS

Config = dataclasses.make_dataclass(
    "Config",
    [(name, int, 0) for name in FIELDS],
    bases=(_ShortForm,),
    namespace={"__module__": __name__},
    frozen=True,
    order=True,
)
Config.__doc__ = """A configuration (flash_config_t): everything that a kernel was compiled for.

docs/configurations.md explains the fields; those that mean nothing to a family are zero.
Configurations are ordered as in the kernel table. str(config) is the short form, which Config.parse
reads: Config.parse(str(c)) == c. Both raise ValueError with the library's message.
"""

# A call accepts as its configuration None (the library selects), a Config or a short form.
ConfigLike = Union[Config, str, None]


@dataclass(frozen=True)
class Kernel:
    """Holds a row of the kernel table: a configuration, and the name of its compiled kernel."""

    config: Config
    name: str

    @property
    def is_runnable(self) -> bool:
        """Says whether this machine can run the kernel."""
        return bool(library().flash_lookup_kernel(to_c(self.config)))


def lookup_kernel(config: Config | str) -> Kernel:
    """Returns the kernel of a configuration, or of its short form; it runs on this machine.

    Raises LookupError with the reason, which is also ValueError (the configuration breaks a rule),
    NotImplementedError (a legal kernel that is not in this library, or cannot run here) or
    FlashAttnError alone (no CUDA device). Raises ValueError for a text that is no short form,
    TypeError for what is neither a Config nor a text.
    """
    found = library().flash_lookup_kernel(to_c(_parsed(_checked(config))))
    if not found:
        raise lookup_error()
    return _kernel(found)


@dataclass(frozen=True)
class KernelResources:
    """Holds what a kernel of a CUDA family uses on a device: threads per block, registers per
    thread, bytes of local memory (spilled registers, stack) per thread, bytes of shared memory per
    block, and the blocks that a multiprocessor runs at the same time."""

    threads: int
    registers: int
    local_memory: int
    shared_memory: int
    blocks_per_multiprocessor: int


def kernel_resources(
    config: Config | str, device: int = _abi.FLASH_DEVICE_CUDA_CURRENT
) -> KernelResources:
    """Returns what the kernel of a configuration uses on a CUDA device, Device.CUDA + n or
    Device.CUDA_CURRENT.

    Raises LookupError (no such kernel in this library), NotImplementedError (a kernel or a device
    without such resources, or one that does not run the kernel), FlashAttnError (no such device).
    """
    resources = _abi.flash_kernel_resources_t()
    number = _numbers.int32("device", device)
    check(library().flash_kernel_resources(row(config), number, resources))
    values = {f.name: getattr(resources, f.name) for f in dataclasses.fields(KernelResources)}
    return KernelResources(**values)


def kernels() -> list[Kernel]:
    """Returns the whole kernel table in ascending order, also rows that this machine cannot run."""
    return [_kernel(pointer) for pointer in _rows()]


@functools.cache
def most_d_head_on_cuda() -> int:
    """Returns the largest head dimension that kernels for any K and V have on the current CUDA
    device: 256, which every device has, or more. Without a device it is 256."""
    of_any = (
        kernel.config.d_head
        for kernel in kernels()
        if kernel.config.arch >= Arch.SM80
        and kernel.config.arch not in (Arch.SM80_MLA, Arch.SM90_MLA)
        and kernel.is_runnable
    )
    return max(of_any, default=256)


def resolve(config: ConfigLike) -> int | None:
    """Returns what a call of the C API takes as its kernel: the row of a configuration; None stays
    None."""
    return None if config is None else row(config)


def row(config: Config | str) -> int:
    """Returns the table's row of a configuration, as the C API points to it, whether this machine
    can run it or not. Raises LookupError (no such row), ValueError (a text that is no short form),
    TypeError (neither a Config nor a text)."""
    return _row(_checked(config))


@functools.lru_cache(maxsize=256)
def _row(config: Config | str) -> int:
    wanted = _parsed(config)
    found = _rows_by_config().get(wanted)
    if found is None:
        library().flash_lookup_kernel(to_c(wanted))  # this call sets the error with the reason
        raise lookup_error()
    return found


@functools.cache
def _rows_by_config() -> dict[Config, int]:
    return {config_of(pointer): pointer for pointer in _rows()}


def _rows() -> list[int]:
    table = library()
    return [table.flash_kernel_at(i) for i in range(table.flash_kernel_count())]


def _parsed(config: Config | str) -> Config:
    return Config.parse(config) if isinstance(config, str) else config


def _checked(config: Config | str) -> Config | str:
    if isinstance(config, (Config, str)):
        return config
    raise TypeError(
        f"config is {config!r}: neither a flashattn.Config nor a short form such as "
        f'"{config_of(_rows()[0])}"'
    )


def to_c(config: Config) -> _abi.flash_config_t:
    fields = dataclasses.asdict(config)
    return _abi.flash_config_t(**{name: _numbers.int32(name, fields[name]) for name in fields})


def from_c(config: _abi.flash_config_t) -> Config:
    return Config(**{name: getattr(config, name) for name in FIELDS})


def parse_filters(texts: Iterable[str]) -> Callable[[Config], bool]:
    """Returns a predicate from filters and short forms, as the command line takes them.

    "arch=AVX512", "dtype=BF16" and "B_r=64" narrow the choice together; short forms are
    alternatives to each other. Without any, the predicate takes everything. Raises ValueError.
    """
    wanted: dict[str, int] = {}
    short_forms: set[Config] = set()
    for text in texts:
        field, equals, value = text.partition("=")
        if equals:
            wanted[_field_name(field.strip(), text)] = _field_value(field.strip(), value.strip())
        else:
            short_forms.add(_short_form(text))

    def matches(config: Config) -> bool:
        return (not short_forms or config in short_forms) and all(
            getattr(config, field) == value for field, value in wanted.items()
        )

    return matches


def _short_form(text: str) -> Config:
    try:
        return Config.parse(text)
    except ValueError as error:
        raise ValueError(
            f"filter {text!r}: not FIELD=VALUE, as in arch=AVX512, and not a short form: {error}"
        ) from None


def _field_name(field: str, text: str) -> str:
    if field not in FIELDS:
        raise ValueError(f"filter {text!r}: no field {field!r}, the fields are {', '.join(FIELDS)}")
    return field


def _field_value(field: str, value: str) -> int:
    names = {"arch": Arch, "op": Op, "dtype": DType, "operand_dtype": DType}.get(field, {})
    if isinstance(names, type) and value.upper() in names.__members__:
        return int(names[value.upper()])
    try:
        return int(value)
    except ValueError:
        known = ", ".join(names.__members__) if isinstance(names, type) else "an integer"
        raise ValueError(f"filter {field}={value}: not {known}") from None


def config_of(pointer: int) -> Config:
    """Returns the configuration of a row of the table."""
    config = _abi.flash_config_t()
    check(library().flash_kernel_config(pointer, config))
    return from_c(config)


def _kernel(pointer: int) -> Kernel:
    return Kernel(config_of(pointer), library().flash_kernel_name(pointer).decode())

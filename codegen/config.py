"""The key of the kernel table: flash_config_t, its order, its C initialiser and its kernel's name.

Any integers make a Config; legality.py says which are legal.
"""

from __future__ import annotations

from dataclasses import make_dataclass

from .facts import CONVERTED_TO, FAMILIES, FIELDS, Arch, Dtype, Feature, Op, Word, rows_of

Config = make_dataclass(
    "Config",
    [(name, int, 0) for name in FIELDS],
    namespace={
        "__doc__": "flash_config_t without its struct_size. The order of the fields is the sort "
        "order.",
        "__module__": __name__,
    },
    frozen=True,
    order=True,
)


def features_of(config: Config) -> list[Feature]:
    return [feature for feature in Feature if config.features & feature]


def operand_dtype(config: Config) -> Dtype:
    """Returns the type that a CUDA kernel's products are computed in."""
    dtype = Dtype(config.dtype)
    return Dtype(config.operand_dtype or CONVERTED_TO.get(dtype, dtype))


def converts(config: Config) -> bool:
    """Says whether a CUDA kernel converts K and V before it multiplies them."""
    return operand_dtype(config) != config.dtype


def is_latent(config: Config) -> bool:
    """Says whether K and V are of latent tokens."""
    return config.dtype == Dtype.LATENT_E4M3


def multiplies_e4m3(config: Config) -> bool:
    """Says whether a CUDA kernel's products are of e4m3."""
    return operand_dtype(config) == Dtype.E4M3


def c_initialiser(config: Config) -> str:
    """Returns the initialiser of a flash_config_t, with braces. Its enumerators must be known."""
    enumerators = {
        "arch": f"FLASH_ARCH_{Arch(config.arch).name}",
        "op": f"FLASH_OP_{Op(config.op).name}",
        "dtype": f"FLASH_DTYPE_{Dtype(config.dtype).name}",
        "features": " | ".join(f"FLASH_FEATURE_{f.name}" for f in features_of(config)) or "0",
    }
    if config.operand_dtype:
        enumerators["operand_dtype"] = f"FLASH_DTYPE_{Dtype(config.operand_dtype).name}"
    values = [enumerators.get(field, str(getattr(config, field))) for field in FIELDS]
    return "{" + ", ".join(["(uint32_t)sizeof(flash_config_t)", *values]) + "}"


def _types_part(config: Config) -> str:
    types = [config.dtype, *([config.operand_dtype] if config.operand_dtype else [])]
    return "x".join(Dtype(dtype).name.lower().replace("_", "") for dtype in types)


def _name_parts(config: Config, word: Word) -> list[str]:
    """Returns a word as parts of a kernel's name. A switch is one part, without underscores."""
    values = [getattr(config, field) for field in word.fields]
    if word.is_counts:
        return [word.word, *map(str, values)]
    return [word.word.replace("_", "")] if values[0] else []


def kernel_name(config: Config) -> str:
    """Returns the symbol of a legal configuration's kernel, which no other configuration has."""
    family = FAMILIES[Arch(config.arch)]
    layout = rows_of(config.arch, config.op).layout
    parts = [
        "flash",
        Op(config.op).symbol,
        family.name.replace("_", ""),
        _types_part(config),
        f"d{config.d_head or 'any'}" + (f"v{config.d_head_v}" if config.d_head_v else ""),
        f"{config.B_r}x{config.B_c}" if config.B_c else f"{config.B_r}",
    ]
    if config.n_warps:
        parts.append(f"w{config.n_warps}")
    for word in layout.words:
        parts += _name_parts(config, word)
    parts += [feature.word for feature in features_of(config)]
    return "_".join(parts)

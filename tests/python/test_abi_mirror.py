"""The ctypes mirror is compared with what a C compiler makes of the header."""

from __future__ import annotations

import ctypes
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from flashattn import _abi
from flashattn._library import library
from flashattn._torch import structs
from flashattn.config import Arch, DType, Feature, Op
from flashattn.device import Device, Isa

ROOT = Path(__file__).resolve().parents[2]
HEADER = ROOT / "include" / "flashattn.h"
STRUCTS = [
    _abi.flash_config_t,
    _abi.flash_kernel_resources_t,
    _abi.flash_device_info_t,
    _abi.flash_tensor_t,
    _abi.flash_forward_args_t,
    _abi.flash_backward_args_t,
    _abi.flash_combine_args_t,
    _abi.flash_quantise_args_t,
    _abi.flash_kv_append_args_t,
    _abi.flash_rotary_t,
    _abi.flash_executor_t,
    _abi.flash_paging_t,
    _abi.flash_quant_t,
    _abi.flash_dropout_t,
    _abi.flash_mask_t,
    _abi.flash_team_t,
]
ENUMERATIONS = {
    "FLASH_ARCH_": Arch,
    "FLASH_OP_": Op,
    "FLASH_DTYPE_": DType,
    "FLASH_FEATURE_": Feature,
    "FLASH_DEVICE_": Device,
    "FLASH_ISA_": Isa,
}
CONSTANTS = {
    name: value
    for name, value in vars(_abi).items()
    if re.match(r"FLASH_[A-Z]", name) and isinstance(value, int)
}


def _header_text() -> str:
    """Returns the header without its comments."""
    return re.sub(r"/\*.*?\*/", "", HEADER.read_text(), flags=re.DOTALL)


@pytest.fixture(scope="module")
def numbers_of_c(tmp_path_factory: pytest.TempPathFactory) -> dict[str, int]:
    """Prints every size, offset, member size and constant by a C program."""
    compiler = os.environ.get("CC") or shutil.which("cc") or shutil.which("gcc")
    assert compiler, "this test needs a C compiler"
    folder = tmp_path_factory.mktemp("mirror")
    lines = [f'P("{name}", {name})' for name in CONSTANTS]
    for struct in STRUCTS:
        type_name = struct.__name__
        lines.append(f'P("{type_name}", sizeof({type_name}))')
        for field, _ in struct._fields_:
            member = f"{type_name}.{field}"
            lines.append(f'P("{member}", offsetof({type_name}, {field}))')
            lines.append(f'P("sizeof {member}", sizeof((({type_name} *)0)->{field}))')
    source = folder / "mirror.c"
    source.write_text(
        '#include <stdio.h>\n#include "flashattn.h"\n'
        '#define P(name, value) printf("%s=%lld\\n", name, (long long)(value));\n'
        "int main(void) {\n" + "\n".join(lines) + "\nreturn 0;\n}\n"
    )
    program = folder / "mirror"
    command = [*compiler.split(), "-I", str(HEADER.parent), str(source), "-o", str(program)]
    subprocess.run(command, check=True)
    output = subprocess.run([program], check=True, capture_output=True, text=True).stdout
    return {name: int(value) for name, value in (line.split("=") for line in output.splitlines())}


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_struct_layout(struct: type, numbers_of_c: dict[str, int]) -> None:
    name = struct.__name__
    assert ctypes.sizeof(struct) == numbers_of_c[name]
    for field, _ in struct._fields_:
        descriptor = getattr(struct, field)
        assert descriptor.offset == numbers_of_c[f"{name}.{field}"], field
        assert descriptor.size == numbers_of_c[f"sizeof {name}.{field}"], field


# The structs that flashattn._torch packs, and members that stay 0 there.
PACKED = {
    "FORWARD": (_abi.flash_forward_args_t, {"executor"}),
    "PAGING": (_abi.flash_paging_t, set()),
    "QUANT": (_abi.flash_quant_t, set()),
    "DROPOUT": (_abi.flash_dropout_t, set()),
    "APPEND": (_abi.flash_kv_append_args_t, {"executor"}),
    "ROTARY": (_abi.flash_rotary_t, set()),
    "COMBINE": (_abi.flash_combine_args_t, {"o_partials", "lse_partials", "executor"}),
}


def _members(struct: ctypes.Structure, prefix: str = "") -> dict[str, float]:
    """Returns the numbers in a struct by their names, in the order of memory."""
    members: dict[str, float] = {}
    for name, kind in struct._fields_:
        value = getattr(struct, name)
        if kind is _abi.flash_tensor_t:
            members.update(_members(value, f"{name}."))
        else:
            members[prefix + name] = sum(value) if name == "reserved" else value or 0
    return members


@pytest.mark.parametrize("name", PACKED)
def test_packed_structs_are_those_of_the_mirror(name: str) -> None:
    packed, (mirror, zeros) = getattr(structs, name), PACKED[name]
    assert packed.size == ctypes.sizeof(mirror)
    n_values = len(packed.unpack(bytes(packed.size)))
    filled = mirror.from_buffer_copy(packed.pack(*range(1, n_values + 1)))
    members = _members(filled)
    reserved = {m for m in members if m.split(".")[-1] in ("reserved", "reserved32")}
    assert {m for m, value in members.items() if value == 0} == zeros | reserved
    assert [value for value in members.values() if value] == list(range(1, n_values + 1))


def test_packed_workspace_is_where_the_mirror_has_it() -> None:
    mirror = _abi.flash_forward_args_t
    assert structs.WORKSPACE_OFFSET == mirror.workspace.offset
    assert mirror.workspace_size.offset == mirror.workspace.offset + 8


# The type, a star for a pointer, the name, the length of an array.
MEMBER = r"\s*(?:const )?(\w+)\s+(?:\*const )?(\*?)(\w+)(\[\d+\])?\s*"


@pytest.mark.parametrize("struct", STRUCTS, ids=lambda struct: struct.__name__)
def test_struct_has_the_headers_members_and_types(struct: type) -> None:
    body = re.search(r"\{([^{}]*)\}\s*" + struct.__name__ + ";", _header_text()).group(1)
    members = [re.fullmatch(MEMBER, declaration).groups() for declaration in body.split(";")[:-1]]
    assert [name for _, _, name, _ in members] == [name for name, _ in struct._fields_]
    for (c_type, pointer, name, array), (_, mirror) in zip(members, struct._fields_):
        assert mirror is _ctypes_type(c_type, pointer, array), name


def _ctypes_type(c_type: str, pointer: str, array: str | None) -> type:
    if pointer:
        return ctypes.c_void_p
    if c_type.startswith("flash_"):
        return getattr(_abi, c_type)
    plain = getattr(ctypes, f"c_{c_type.removesuffix('_t')}")
    return plain * int(array[1:-1]) if array else plain


def test_constants(numbers_of_c: dict[str, int]) -> None:
    assert {name: numbers_of_c[name] for name in CONSTANTS} == CONSTANTS


@pytest.mark.parametrize("prefix", ENUMERATIONS)
def test_an_enumeration_has_every_constant(prefix: str) -> None:
    members = ENUMERATIONS[prefix].__members__
    assert {f"{prefix}{name}": int(member) for name, member in members.items()} == {
        name: value for name, value in CONSTANTS.items() if name.startswith(prefix)
    }


def test_no_struct_is_missing() -> None:
    defined = re.findall(r"typedef struct (\w+) \{", _header_text())
    assert [f"{name}_t" for name in sorted(defined)] == sorted(s.__name__ for s in STRUCTS)


def test_no_constant_is_missing() -> None:
    text = _header_text()
    named = {"FLASH_VERSION_NUMBER", *re.findall(r"\b(FLASH_\w+) = ", text)}
    named |= set(re.findall(r"#define (FLASH_\w+[A-Z]) \d+$", text, flags=re.MULTILINE))
    not_needed = {"FLASH_VERSION_MAJOR", "FLASH_VERSION_MINOR", "FLASH_VERSION_PATCH"}
    assert named - not_needed == set(CONSTANTS)


def test_strings() -> None:
    strings = re.findall(r'#define (FLASH_\w+) "(.*)"$', _header_text(), flags=re.MULTILINE)
    assert strings == [("FLASH_TUNING_HEADER", _abi.FLASH_TUNING_HEADER)]


def test_every_function_of_the_header_has_a_prototype() -> None:
    declared = set(re.findall(r"FLASH_API [^;]*?\b(flash_\w+)\(", _header_text()))
    assert declared == set(_abi.PROTOTYPES)


def test_prototypes_have_the_headers_parameters() -> None:
    declarations = re.findall(r"FLASH_API ([^;]*?)\b(flash_\w+)\(([^;]*)\);", _header_text())
    for result, name, parameters in declarations:
        restype, argtypes = _abi.PROTOTYPES[name]
        expected = [] if parameters.strip() == "void" else parameters.split(",")
        assert len(argtypes) == len(expected), name
        for parameter, argtype in zip(expected, argtypes):
            assert ctypes.sizeof(argtype) == (8 if "*" in parameter else _size(parameter)), name
        returned = 0 if restype is None else ctypes.sizeof(restype)
        assert returned == (8 if "*" in result else 0 if result.strip() == "void" else 4), name


def _size(parameter: str) -> int:
    eight = ("size_t", "double", "flash_stream_t", "flash_parallel_for_t", "flash_task_t")
    return 8 if any(word in parameter for word in eight) else 4


def test_the_loaded_library_has_every_function() -> None:
    for name, (restype, argtypes) in _abi.PROTOTYPES.items():
        function = getattr(library(), name)
        assert function.restype is restype and list(function.argtypes) == argtypes

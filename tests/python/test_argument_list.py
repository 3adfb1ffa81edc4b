"""Attention's public functions, the C struct and the docstrings have the arguments of one list,
flashattn._argument_list, and pass all of them on."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import flashattn
import pytest
from flashattn import _abi, _argument_list, _attention, _problem
from flashattn._argument_list import (
    APPEND,
    ATTENTION,
    FLAG,
    FOR_ALL_ARRAYS,
    LENGTHS,
    MEMBERS,
    OUTPUTS,
)

ROOT = Path(__file__).resolve().parents[2]
BINDINGS = ROOT / "bindings" / "python"
PADDED = [argument for argument in ATTENTION if argument.group != "ragged"]
FUNCTIONS = {"flash_attn_func": PADDED, "flash_attn_varlen_func": list(ATTENTION)}
# Arguments without which a ragged call makes no sense.
REQUIRED = {"cu_seqlens_q", "max_seqlen_q"}
# What operators have had since they were published.
OPERATORS = {
    "fwd": "softmax_scale causal window_left window_right softcap batch_invariant k_descale "
    "v_descale sinks seqused_q seqused_k alibi_slopes attn_mask mask_bits mask_keys "
    "attention_chunk leftpad_k n_multiprocessors mask_head_scale diagonal_offset page_holes "
    "q_descale dropout_p rng_state",
    "varlen_fwd": "cu_seqlens_q cu_seqlens_k max_seqlen_q max_seqlen_k page_table v_page_table "
    "page_indptr page_rows softmax_scale causal window_left window_right softcap batch_invariant "
    "k_descale v_descale sinks seqused_q seqused_k alibi_slopes attn_mask mask_bits mask_keys "
    "attention_chunk leftpad_k n_multiprocessors mask_head_scale diagonal_offset page_holes "
    "q_descale dropout_p rng_state",
    "decode": "seqused_k page_table v_page_table page_indptr page_rows max_seqlen_k softmax_scale "
    "causal window_left window_right softcap batch_invariant k_descale v_descale sinks seqused_q "
    "alibi_slopes attn_mask mask_bits mask_keys attention_chunk leftpad_k n_multiprocessors "
    "mask_head_scale diagonal_offset page_holes q_descale dropout_p rng_state",
}


def _keywords(function: Any) -> dict[str, tuple[Any, str]]:
    """Returns the defaults and the types of a function's arguments behind q, k and v."""
    parameters = list(inspect.signature(function).parameters.values())
    assert [parameter.name for parameter in parameters[:3]] == ["q", "k", "v"]
    assert all(parameter.kind is parameter.KEYWORD_ONLY for parameter in parameters[3:])
    return {x.name: (x.default, x.annotation) for x in parameters[3:]}


def _expected(name: str, for_torch: bool) -> dict[str, tuple[Any, str]]:
    expected = {}
    for argument in (*FUNCTIONS[name], *OUTPUTS):
        is_required = name == "flash_attn_varlen_func" and argument.name in REQUIRED
        default = inspect.Parameter.empty if is_required else argument.default
        annotation = argument.kind.annotation
        if not for_torch:
            annotation = "Any" if argument.kind.is_array else annotation
            annotation = annotation.replace("torch.dtype", "str")
        expected[argument.name] = default, annotation
    return expected if for_torch else {**expected, **FOR_ALL_ARRAYS}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_for_all_arrays_have_the_list(name: str) -> None:
    assert _keywords(getattr(flashattn, name)) == _expected(name, for_torch=False)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_for_torch_have_the_list(name: str) -> None:
    pytest.importorskip("torch")
    from flashattn import torch_ops

    assert _keywords(getattr(torch_ops, name)) == _expected(name, for_torch=True)


def test_every_argument_is_explained() -> None:
    """Once, in the docstring of the first function that has it."""
    lines = re.findall(r"^    (\w+)  +\S", flashattn.flash_attn_func.__doc__ or "", re.MULTILINE)
    of_padded = [name for name in lines if name not in ("q", "k", "v")]
    assert sorted(of_padded) == sorted(_keywords(flashattn.flash_attn_func))
    ragged = flashattn.flash_attn_varlen_func.__doc__ or ""
    for name in _argument_list.names_of("ragged"):
        assert re.search(rf"^    {name}  +\S", ragged, re.MULTILINE), name


def test_members_are_those_of_the_struct() -> None:
    """Their defaults are 0, and the last ones follow d_head_v in the order of the list."""
    args = _abi.flash_forward_args_t()
    of_structs = "dropout"  # what it points to has the arguments
    fields = [x for x, _ in args._fields_ if not x.startswith("reserved") and x != of_structs]
    last = fields[fields.index("d_head_v") + 1 :]
    names = [argument.name for argument in MEMBERS if argument.kind is not FLAG]
    assert [name for name in names if name in last] == last == names[-len(last) :]
    for name, default, number in _problem._NUMBERS:
        assert not number(name, default), name
    for argument in MEMBERS:
        if argument.kind is FLAG:
            assert argument.flag and not argument.default
        else:
            assert not getattr(args, argument.name), argument.name
        if argument.kind is LENGTHS:
            assert argument.default is None


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_for_all_arrays_pass_all_on(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Seen(Exception):
        pass

    def take(q: Any, k: Any, v: Any, options: dict[str, Any]) -> None:
        raise Seen({"q": q, "k": k, "v": v, **options})

    monkeypatch.setattr(_attention, "Problem", take)
    function = getattr(flashattn, name)
    values = {x: object() for x in inspect.signature(function).parameters}
    with pytest.raises(Seen) as raised:
        function(**values)
    own = {"out", "lse", "return_lse", "workspace", "config"}
    assert raised.value.args[0] == {x: value for x, value in values.items() if x not in own}


@pytest.mark.parametrize(
    "name", ["attention_chunk", "leftpad_k", "n_multiprocessors", "diagonal_offset"]
)
def test_an_argument_is_named_in_as_many_files_as_the_page_says(name: str) -> None:
    package, page = BINDINGS / "flashattn", (ROOT / "docs" / "an-argument.md").read_text()
    files = [*package.glob("_*.py"), package / "torch_ops.py", *(package / "_torch").glob("*.py")]
    files += (BINDINGS / "extension").glob("*")
    named = [file.name for file in files if re.search(rf"\b{name}\b", file.read_text())]
    assert sorted(named) == sorted(re.findall(r"^\d\. `\S+/(\w+\.py)`", page, re.MULTILINE))


def test_what_is_no_argument_is_refused() -> None:
    with pytest.raises(TypeError, match="'casual' is no argument"):
        flashattn.select_config(None, None, None, casual=True)


# ---- The call that writes to a cache ----


def _options_of_append(function: Any) -> dict[str, tuple[Any, str]]:
    parameters = list(inspect.signature(function).parameters.values())
    assert [x.name for x in parameters[:4]] == ["k_new", "v_new", "k_cache", "v_cache"]
    assert all(x.kind is x.KEYWORD_ONLY for x in parameters[4:])
    return {x.name: (x.default, x.annotation) for x in parameters[4:]}


def test_functions_that_append_have_the_list() -> None:
    options = _options_of_append(flashattn.flash_kv_append)
    assert options.pop("kv_dtype") == FOR_ALL_ARRAYS["kv_dtype"]
    expected = {x.name: (x.default, "Any" if x.kind.is_array else "bool") for x in APPEND}
    assert options == expected and list(options) == list(expected)
    for name in (*options, "kv_dtype"):
        assert re.search(rf"\b{name}\b", flashattn.flash_kv_append.__doc__ or ""), name


def test_functions_for_torch_that_append_have_the_list() -> None:
    pytest.importorskip("torch")
    from flashattn import torch_ops

    expected = {x.name: (x.default, x.kind.annotation) for x in APPEND}
    assert _options_of_append(torch_ops.flash_kv_append) == expected


def test_the_operator_that_appends_keeps_its_order() -> None:
    """Programs and saved graphs name arguments by their places."""
    torch = pytest.importorskip("torch")
    import flashattn.torch_ops  # noqa: F401

    schema = torch.ops.flashattn.kv_append.default._schema
    known = (
        "(Tensor k_new, Tensor? v_new, Tensor(a!) k_cache, Tensor(b!)? v_cache, "
        "Tensor? seqused_k=None, Tensor(c!)? seqused_k_out=None, Tensor? slot_mapping=None, "
        "Tensor? cu_seqlens_new=None, Tensor? page_table=None, Tensor? v_page_table=None, "
        "Tensor? page_indptr=None, Tensor? page_rows=None, Tensor? k_descale=None, "
        "Tensor? v_descale=None, Tensor? q=None, Tensor(d!)? q_out=None, "
        "Tensor? cu_seqlens_q=None, Tensor? rotary_cos=None, Tensor? rotary_sin=None, "
        "bool rotary_interleaved=False, Tensor? rotary_positions=None, "
        "Tensor? rotary_start=None, bool rotary_q_at_start=False"
    )
    assert str(schema).startswith(f"flashattn::kv_append{known}")


def test_torch_passes_on_what_it_appends_in_the_order_of_the_operator(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("torch")
    from flashattn import torch_ops
    from flashattn._torch import extension, schemas

    given: list[tuple] = []
    monkeypatch.setattr(extension, "append", lambda *arguments: given.append(arguments) or True)
    monkeypatch.setattr(torch_ops, "note_written", lambda *_: None)
    values = {name: object() for name in schemas.NAMES_OF_APPEND}
    tokens = [values[name] for name in schemas.NAMES_OF_APPEND[:4]]
    torch_ops.flash_kv_append(*tokens, **{x.name: values[x.name] for x in APPEND})
    assert given == [tuple(values.values())]


def test_the_extension_has_the_places_of_what_is_appended() -> None:
    source = (BINDINGS / "extension" / "append.c").read_text()
    places = re.search(r"enum \{([^}]*)N_ARGUMENTS\s*\}", source)
    assert places is not None
    names = ["k_new", "v_new", "k_cache", "v_cache", *(x.name for x in APPEND)]
    assert re.findall(r"\w+", places.group(1)) == [name.upper() for name in names]


# ---- torch ----


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_for_torch_put_each_argument_into_its_place(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from flashattn import torch_ops
    from flashattn._torch import call, extension

    given: list[tuple] = []
    monkeypatch.setattr(extension, "forward", lambda *arguments: given.append(arguments) or given)
    monkeypatch.setattr(torch_ops, "_noted", lambda *_: None)
    values = {x: object() for x in _keywords(getattr(torch_ops, name))}
    window = object(), object()
    q, k, v = object(), object(), object()
    getattr(torch_ops, name)(q, k, v, **{**values, "window_size": window})
    values.update(q=q, k=k, v=v, window_left=window[0], window_right=window[1])
    del values["window_size"]
    found = call.named(given[0])
    assert {x: value for x, value in found.items() if value is not None} == values
    assert set(found) - set(values) == (
        set(_argument_list.names_of("ragged")) if name == "flash_attn_func" else set()
    )


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_for_torch_pass_on_an_argument_that_is_given_alone(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    from flashattn import torch_ops
    from flashattn._torch import call, extension

    given: list[tuple] = []
    monkeypatch.setattr(extension, "forward", lambda *arguments: given.append(arguments) or given)
    monkeypatch.setattr(torch_ops, "_noted", lambda *_: None)
    least = dict.fromkeys(REQUIRED if name == "flash_attn_varlen_func" else ())
    for argument in FUNCTIONS[name]:
        value = {"window_size": (object(), object()), "dropout_p": 0.5}.get(argument.name, object())
        getattr(torch_ops, name)(None, None, None, **{**least, argument.name: value})
        found = call.named(given.pop())
        found["window_size"] = found.pop("window_left"), found.pop("window_right")
        assert found[argument.name] == value, argument.name


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_plain_call_leaves_the_last_arguments_out(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each argument that every call passes on costs it time."""
    pytest.importorskip("torch")
    from flashattn import torch_ops
    from flashattn._torch import call, extension

    given: list[tuple] = []
    monkeypatch.setattr(extension, "forward", lambda *arguments: given.append(arguments) or given)
    least = dict.fromkeys(REQUIRED if name == "flash_attn_varlen_func" else ())
    getattr(torch_ops, name)(None, None, None, **least)
    assert len(given.pop()) == call.N_FIRST


@pytest.mark.parametrize("operator", OPERATORS)
def test_operators_keep_their_order(operator: str) -> None:
    """Programs and saved graphs name arguments of operators by their places: new ones come last."""
    torch = pytest.importorskip("torch")
    import flashattn.torch_ops  # noqa: F401

    schema = getattr(torch.ops.flashattn, operator).default._schema
    names = [argument.name for argument in schema.arguments]
    known = ["q", "k", "v", *OPERATORS[operator].split()]
    assert names[: len(known)] == known and names[-1] == "out_dtype"


@pytest.mark.parametrize("operator", OPERATORS)
def test_a_call_of_an_operator_has_all_its_arguments(operator: str) -> None:
    pytest.importorskip("torch")
    from flashattn._torch import call, schemas

    values = {name: object() for name in schemas.NAMES[operator]}
    outputs = [object() for _ in OUTPUTS]
    made = call.named(schemas.call_maker(operator)(tuple(values.values()), *outputs))
    values.update(zip((argument.name for argument in OUTPUTS), outputs))
    assert {name: value for name, value in made.items() if value is not None} == values
    least = made["q"], made["k"], made["v"], made["seqused_k"]
    plain = schemas.call_maker("fwd")(least[:3], None, None, False, None)
    assert call.named(plain) == {**call.DEFAULTS, **dict(zip("qkv", least))}


def test_last_arguments_are_read_by_their_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    torch = pytest.importorskip("torch")
    from flashattn._torch import forward

    lengths = torch.tensor([1, 2], dtype=torch.int32)
    rows = {argument.name: argument for argument in MEMBERS}
    names = ("attention_chunk", "leftpad_k", "n_multiprocessors", "causal")
    monkeypatch.setattr(forward, "_LAST", [rows[name] for name in names])
    found = forward._last((7, lengths, 3, True), 2, -1)
    assert found == (_abi.FLASH_FLAG_CAUSAL, [7, lengths.data_ptr(), 3])
    assert forward._last((0, None, 0, False), 2, -1) == (0, [0, 0, 0])

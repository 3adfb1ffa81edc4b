"""Each environment variable is tested in a process of its own, because it is read once."""

import flashattn
import pytest
from problems import runnable_kernels
from subprocesses import run_python

CALL = """
import numpy as np, flashattn
q = np.ones((1, 4, 2, 16), np.float32)
def call(**options):
    try:
        flashattn.flash_attn_func(q, q, q, **options)
        print("ok")
    except Exception as error:
        print(f"{type(error).__mro__[2].__name__}: {error}")
"""
ISA = ["reference", "avx2", "avx512", "avx512_bf16", "amx", "neon", "neon_bf16"]
FAMILY = {isa: isa.upper() for isa in ISA}


def _python(code: str, **environment: str) -> str:
    result = run_python("-c", CALL + code, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def _families() -> list[str]:
    """Returns names of the families that this machine can run, oldest first."""
    names = {flashattn.Arch(kernel.config.arch).name for kernel in runnable_kernels()}
    return [FAMILY[isa] for isa in ISA if FAMILY[isa] in names]


SELECT = """
import ml_dtypes
half = q.astype(ml_dtypes.bfloat16)
call()
print(flashattn.select_config(half, half, half).config)
"""


@pytest.mark.parametrize("isa", ISA)
def test_cpu_isa_is_the_highest_that_is_selected(isa: str) -> None:
    """AVX512_BF16 is selected without its name only where its products are fast, as without the
    variable."""
    allowed = [FAMILY[name] for name in ISA[: ISA.index(isa) + 1]]
    expected = [family for family in _families() if family in allowed][-1]
    if expected == "AVX512_BF16" and isa != "avx512_bf16":
        expected = _python(SELECT).splitlines()[1].split()[0]
        assert expected in ("AVX512", "AVX512_BF16")
    output = _python(SELECT, FLASHATTN_CPU_ISA=isa)
    assert output.splitlines()[0] == "ok"
    assert output.splitlines()[1].startswith(f"{expected} ")


def test_cpu_isa_hides_families_from_look_up_and_device_info() -> None:
    output = _python(
        """
for kernel in flashattn.kernels():
    if kernel.config.arch >= flashattn.Arch.SM80:
        continue
    print(flashattn.Arch(kernel.config.arch).name, kernel.is_runnable)
    if not kernel.is_runnable:
        try:
            flashattn.lookup_kernel(kernel.config)
        except LookupError as error:
            assert "FLASHATTN_CPU_ISA" in str(error), error
print(int(flashattn.device_info().isa))
""",
        FLASHATTN_CPU_ISA="reference",
    )
    *rows, isa = output.splitlines()
    hidden = {f"{FAMILY[name]} False" for name in ISA[1:]}
    assert rows and set(rows) <= {"REFERENCE True", *hidden}
    assert isa == "0"


def test_hidden_families_are_refused_by_name() -> None:
    hidden = [k for k in runnable_kernels() if k.config.arch == flashattn.Arch.AVX512]
    if not hidden:
        pytest.skip("no AVX-512 here")
    config = next(k.config for k in hidden if k.config.dtype == flashattn.DType.FP32)
    output = _python(f"call(config={str(config)!r})", FLASHATTN_CPU_ISA="avx2")
    assert (
        output.startswith("NotImplementedError: flash_fwd_avx512") and "FLASHATTN_CPU_ISA" in output
    )


@pytest.mark.parametrize("n_threads", ["1", "3", "4096"])
def test_num_threads(n_threads: str) -> None:
    code = """
print(flashattn.num_threads(), flashattn.device_info().n_threads)
flashattn.set_num_threads(5); print(flashattn.num_threads())
flashattn.set_num_threads(0); print(flashattn.num_threads())
"""
    expected = [f"{n_threads} {n_threads}", "5", n_threads]
    assert _python(code, FLASHATTN_NUM_THREADS=n_threads).splitlines() == expected


def test_config_is_used_where_a_call_passes_none() -> None:
    for kernel in runnable_kernels():
        if kernel.config.dtype != flashattn.DType.FP32:
            continue
        code = "call(); s = flashattn.select_config(q, q, q); print(s.config); print(s.reason)"
        lines = _python(code, FLASHATTN_CONFIG=str(kernel.config)).splitlines()
        assert lines[:2] == ["ok", str(kernel.config)] and "FLASHATTN_CONFIG" in lines[2]


def test_config_that_cannot_serve_the_problem_is_refused() -> None:
    half = next(k.config for k in runnable_kernels() if k.config.dtype == flashattn.DType.FP16)
    single = next(k.config for k in runnable_kernels() if k.config.dtype == flashattn.DType.FP32)
    output = _python(f"call(); call(config={str(single)!r})", FLASHATTN_CONFIG=str(half))
    refused, own = output.splitlines()
    assert refused.startswith("NotImplementedError: FLASHATTN_CONFIG: ")
    assert "does not serve" in refused
    assert own == "ok"
    output = _python("call()", FLASHATTN_CONFIG="REFERENCE (FP32, 3, 5, 7)")
    assert output.startswith("NotImplementedError: FLASHATTN_CONFIG: ")
    assert "without a kernel" in output


@pytest.mark.parametrize(
    "name, value",
    [
        ("FLASHATTN_CPU_ISA", "avx9"),
        ("FLASHATTN_CPU_ISA", "AVX2 "),
        ("FLASHATTN_NUM_THREADS", "0"),
        ("FLASHATTN_NUM_THREADS", "-3"),
        ("FLASHATTN_NUM_THREADS", "4097"),
        ("FLASHATTN_NUM_THREADS", "two"),
        ("FLASHATTN_NUM_THREADS", "99999999999999999999"),
        ("FLASHATTN_CONFIG", "AVX512 (BF16"),
        ("FLASHATTN_TRACE", "yes"),
    ],
)
def test_a_value_that_cannot_be_understood_is_refused(name: str, value: str) -> None:
    output = _python("call(); call()", **{name: value})
    first, second = output.splitlines()
    assert first.startswith("ValueError: ") and name in first
    assert second == first, "every call that needs it is refused"


def test_trace_prints_each_choice_once() -> None:
    code = "call(); call(); call(causal=True); call(causal=True)"
    result = run_python("-c", CALL + code, FLASHATTN_TRACE="1")
    assert result.stdout.split() == ["ok"] * 4
    lines = result.stderr.splitlines()
    assert len(lines) == len(set(lines)) == 2
    selected = str(flashattn.select_config(*[_zeros()] * 3).config)
    assert all(line.startswith("flashattn: ") and selected in line for line in lines)
    assert "features none:" in lines[0] and "features causal:" in lines[1]


# Options of a call, and the features that a kernel must have for it.
FEATURES = {
    "": "none",
    "causal=True": "causal",
    "window_size=(1, 0)": "window",
    "attention_chunk=2": "window",
    "softcap=4.0": "softcap",
    "seqused_q=np.array([3], np.int32)": "varlen",
    "leftpad_k=np.array([1], np.int32)": "varlen",
    "alibi_slopes=np.ones(2, np.float32)": "bias",
    "attn_mask=np.zeros((4, 4), np.float32)": "bias",
    "mask_bits=np.ones((4, 1), np.uint32)": "bias",
}
PAGED = """
for page_size in (1, 4):
    pages = np.ones((4 // page_size, page_size, 2, 16), np.float32)
    table = np.arange(4 // page_size, dtype=np.int32)[None]
    length = np.array([4], np.int32)
    flashattn.flash_attn_func(q, pages, pages, page_table=table, seqused_k=length)
"""


def _traced_features(code: str) -> list[str]:
    result = run_python("-c", CALL + code, FLASHATTN_TRACE="1")
    return [line.split(" features ")[1].split(":")[0] for line in result.stderr.splitlines()]


@pytest.mark.parametrize("options", FEATURES)
def test_a_problem_needs_the_features_of_its_options(options: str) -> None:
    assert _traced_features(f"call({options})") == [FEATURES[options]]


def test_pages_of_any_size_are_a_feature() -> None:
    assert _traced_features(PAGED.replace("(1, 4)", "(1,)")) == ["varlen+paged"]
    assert _traced_features(PAGED.replace("(1, 4)", "(4,)")) == ["varlen+paged"]


@pytest.mark.parametrize("isa", ["amx", "neon_bf16", "NEON", "avx2", "reference"])
def test_the_reason_names_a_family_that_the_processor_lacks(isa: str) -> None:
    result = run_python("-c", CALL + "call()", FLASHATTN_TRACE="1", FLASHATTN_CPU_ISA=isa)
    has_it = isa == "reference" or flashattn.Isa[isa.upper()] in flashattn.device_info().isa
    says_so = "the processor lacks the family that FLASHATTN_CPU_ISA names" in result.stderr
    assert says_so != has_it


def _zeros():
    import numpy as np

    return np.zeros((1, 4, 2, 16), np.float32)


@pytest.mark.parametrize("value", ["", "0"])
def test_no_trace_unless_asked(value: str) -> None:
    assert run_python("-c", CALL + "call()", FLASHATTN_TRACE=value).stderr == ""

"""Configurations in Python: short form, order, look-up, filters."""

import dataclasses

import flashattn
import numpy as np
import pytest
from flashattn import config as flash_config
from flashattn.config import FIELDS, Arch, Config, DType, parse_filters
from hypothesis import given
from hypothesis import strategies as st
from strategies import random_problems

AVX512 = Config(arch=Arch.AVX512, dtype=DType.BF16, B_r=64, B_c=128, features=5)
SM80 = Config(
    arch=Arch.SM80,
    dtype=DType.FP16,
    d_head=128,
    B_r=64,
    B_c=64,
    n_warps=4,
    async_copy=1,
    eager_load_blocks=1,
    swizzled=1,
    K_mma_load_K_fragments=2,
    V_mma_load_K_fragments=2,
    mma_double_buffer_loads=1,
    optimized_softmax=1,
)


def test_short_forms_of_the_header() -> None:
    text = "(FP16, 128, 64, 64, 4): async+eager+swizzled+load_0_2_2_tiles+buffer+opt_softmax"
    assert str(SM80) == text and Config.parse(text) == SM80
    assert str(AVX512) == "AVX512 (BF16, any, 64, 128): causal+softcap"


def test_blanks_and_order_are_free() -> None:
    assert Config.parse(" AVX512( BF16,any , 64,128 ) :softcap + causal ") == AVX512


_counts = st.integers(0, 2**31 - 1)
_bits = st.integers(0, 1)
_cpu = st.builds(
    Config,
    arch=st.sampled_from([1, 2, 3]),
    dtype=st.integers(1, 3),
    d_head=_counts,
    B_r=_counts,
    B_c=_counts,
    features=st.integers(0, 15),
)
_sm80 = st.builds(
    Config,
    arch=st.just(80),
    dtype=st.integers(1, 3),
    d_head=_counts.filter(bool),
    B_r=_counts,
    B_c=_counts,
    n_warps=_counts,
    async_copy=_bits,
    eager_load_blocks=_bits,
    swizzled=_bits,
    Q_mma_load_K_fragments=_counts,
    K_mma_load_K_fragments=_counts,
    V_mma_load_K_fragments=_counts,
    mma_double_buffer_loads=_bits,
    optimized_softmax=_bits,
    features=st.integers(0, 15),
)


@random_problems
@given(st.one_of(_cpu, _sm80))
def test_parse_reads_what_str_wrote(config: Config) -> None:
    text = str(config)
    assert len(text) < 256
    assert Config.parse(text) == config


@random_problems
@given(st.text(max_size=60))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    try:
        config = Config.parse(text.replace("\0", ""))
    except ValueError as error:
        assert str(error)
    else:
        assert Config.parse(str(config)) == config


@pytest.mark.parametrize(
    "change, match",
    [
        ({"n_warps": 4}, "AVX512 family"),
        ({"swizzled": 1}, "AVX512 family"),
        ({"arch": 9}, "arch is 9"),
        ({"dtype": 0}, "dtype is 0"),
        ({"features": 128}, "features is 0x80"),
    ],
)
def test_str_of_what_has_no_short_form(change: dict, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        str(dataclasses.replace(AVX512, **change))


@pytest.mark.parametrize("text", ["AVX2", "fast", "REFERENCE (FP32", ""])
def test_a_text_that_is_no_short_form_is_answered_with_one(text: str) -> None:
    with pytest.raises(ValueError, match="a configuration looks like") as refusal:
        flashattn.lookup_kernel(text)
    example = str(refusal.value).split('"')[-2]
    assert str(flashattn.lookup_kernel(example).config) == example


@pytest.mark.parametrize("config", [3, ["AVX2"], {"arch": 3}, b"AVX2"])
def test_what_is_no_configuration_is_refused_by_its_type(config: object) -> None:
    q = np.zeros((1, 2, 1, 16), np.float32)
    for call in (flashattn.flash_attn_func, flashattn.query_support):
        with pytest.raises(TypeError, match=r"config is .*: neither a flashattn.Config") as refusal:
            call(q, q, q, config=config)
    with pytest.raises(TypeError, match=r"config is .*: neither a flashattn.Config") as refusal:
        flashattn.lookup_kernel(config)
    example = str(refusal.value).split('"')[-2]
    assert str(Config.parse(example)) == example


def test_fields_are_in_sort_order() -> None:
    assert FIELDS[:6] == ("arch", "op", "dtype", "d_head", "B_r", "B_c")
    assert sorted([SM80, AVX512]) == [AVX512, SM80]


HAS_CUDA = any(kernel.config.arch >= flashattn.Arch.SM80 for kernel in flashattn.kernels())
NO_SM80 = "without a kernel|CUDA device" if HAS_CUDA else "which was built without CUDA"


def test_lookup_says_why_not() -> None:
    """The message says why, and so does the class beside LookupError that a caller would expect."""
    for config, kind, match in (
        (SM80, flashattn.FlashAttnError, NO_SM80),
        (dataclasses.replace(SM80, n_warps=3), flashattn.FlashAttnInvalidConfigError, "n_warps"),
        (dataclasses.replace(AVX512, B_r=0), ValueError, "B_r is 0"),
        (dataclasses.replace(AVX512, op=1000), ValueError, "op is 1000"),
        (
            "AVX512 (BF16, 3, 5, 7)",
            flashattn.FlashAttnKernelUnavailableError,
            "without a kernel",
        ),
        ("AVX512 (BF16, 3, 5, 7)", NotImplementedError, "without a kernel"),
    ):
        with pytest.raises(LookupError, match=match) as refusal:
            flashattn.lookup_kernel(config)
        assert isinstance(refusal.value, kind)
        assert isinstance(refusal.value, flashattn.FlashAttnLookupError) and refusal.value.status


def test_a_row_is_found_once_however_it_is_written() -> None:
    kernel = flashattn.kernels()[0]
    first = flash_config.row(kernel.config)
    assert flash_config.row(str(kernel.config)) == flash_config.resolve(kernel.config) == first
    hits = flash_config._row.cache_info().hits
    assert flash_config.row(str(kernel.config)) == first
    assert flash_config._row.cache_info().hits == hits + 1
    assert flash_config.resolve(None) is None


def test_filters() -> None:
    def matching(*texts: str) -> list[Config]:
        return [c for c in (AVX512, SM80) if parse_filters(texts)(c)]

    assert matching() == [AVX512, SM80]
    assert matching("dtype=bf16") == [AVX512] and matching("arch=SM80") == [SM80]
    assert matching("B_r=64") == [AVX512, SM80] and matching("B_r=64", "B_c=64") == [SM80]
    assert matching(str(SM80)) == [SM80] and matching(str(SM80), str(AVX512)) == [AVX512, SM80]
    assert matching(str(SM80), "dtype=BF16") == []


@pytest.mark.parametrize(
    "text, match",
    [
        ("colour=3", "no field 'colour'"),
        ("dtype=FP64", "dtype=FP64"),
        ("B_r=many", "B_r=many"),
        ("AVX512", "position"),
    ],
)
def test_filters_that_mean_nothing(text: str, match: str) -> None:
    with pytest.raises(ValueError, match=match):
        parse_filters([text])

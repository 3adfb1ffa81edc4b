"""flash_quantise() in CUDA memory: the bits of the CPU, whose test compares them with numpy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import flashattn
import numpy as np
import pytest
import torch
from device_memory import LAYOUTS, Guarded, download, lengths, upload
from flashattn import _abi, torch_ops
from flashattn._library import check, library
from memory import dtype_of
from pairwise import combined

DTYPES = ("float16", "bfloat16", "float32")
D_HEADS = (1, 8, 20, 37, 64, 96, 128, 256, 320, 512)
ENDS = (0, 1, 1, 340, 470)


def _random(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    x = rng.standard_normal(shape) * rng.uniform(0.1, 3, shape[-2:]) + rng.standard_normal(
        shape[-1]
    )
    return x.astype(dtype_of(dtype))


def _assert_bits_of_the_cpu(x: np.ndarray, **options: object) -> flashattn.Quantised:
    """Returns what the device has quantised."""
    expected = flashattn.quantise(x, **options)
    ends = options.pop("cu_seqlens", None)
    found = flashattn.quantise(upload(x), cu_seqlens=lengths(ends), **options)
    for name, a, b in zip(found._fields, found, expected):
        assert (a is None) == (b is None)
        if a is not None:
            assert download(a).tobytes() == b.tobytes(), name
    return found


@combined(
    dtype=DTYPES,
    d_head=D_HEADS,
    tokens=(False, True),
    minus_mean=(False, True),
    hadamard=(False, True),
    seqlen=(1, 128, 300),
)
def test_has_the_bits_of_the_cpu(
    dtype: str, d_head: int, tokens: bool, minus_mean: bool, hadamard: bool, seqlen: int
) -> None:
    x = _random((2, seqlen, 4, d_head), dtype)
    _assert_bits_of_the_cpu(x, tokens=tokens, minus_mean=minus_mean, hadamard=hadamard)


@pytest.mark.parametrize("minus_mean", [False, True])
@pytest.mark.parametrize("n_scales", [1, 2, 6])
def test_heads_share_a_scale(n_scales: int, minus_mean: bool) -> None:
    x = _random((2, 150, 6, 64), "bfloat16")
    _assert_bits_of_the_cpu(x, n_scales=n_scales, minus_mean=minus_mean)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("minus_mean", [False, True])
@pytest.mark.parametrize("d_head", [64, 96])
def test_ragged_batches(tokens: bool, minus_mean: bool, d_head: int) -> None:
    x = _random((ENDS[-1], 3, d_head), "bfloat16")
    options = {"tokens": tokens, "minus_mean": minus_mean, "hadamard": True}
    _assert_bits_of_the_cpu(x, cu_seqlens=ENDS, max_seqlen=400, **options)


def test_means_of_many_tokens() -> None:
    """Sums of fp16 are exact in fp64, so that their order does not matter."""
    _assert_bits_of_the_cpu(_random((1, 5000, 2, 128), "float16"), minus_mean=True, hadamard=True)
    _assert_bits_of_the_cpu(_random((300, 40, 4, 64), "float16"), minus_mean=True)


# ---- Codes ----


def test_rounds_all_numbers_as_cpus_do() -> None:
    """Numbers of all exponents, and those in the middle of two codes, with a scale of 1."""
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 0x43E00000, 1 << 20, dtype=np.uint32)
    codes = np.arange(0x7E, dtype=np.uint8).view(dtype_of("float8_e4m3fn")).astype(np.float32)
    middle = (codes[1:] + codes[:-1]) / 2
    near = [np.nextafter(middle, np.float32(side)) for side in (0, 500)]
    x = np.concatenate([bits.view(np.float32), codes, middle, *near, [448]])
    x = np.concatenate([x, -x]).astype(np.float32)
    found = _assert_bits_of_the_cpu(x[: x.size // 64 * 64].reshape(1, -1, 1, 64)[:, ::-1].copy())
    assert download(found.descale) == 1


@pytest.mark.parametrize("largest", [0.0, 1e-45, 1e-38, 1e-30, 1e30, 3.4e38])
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("hadamard", [False, True])
def test_any_magnitude(largest: float, tokens: bool, hadamard: bool) -> None:
    x = (np.linspace(-1, 1, 64).reshape(1, 2, 1, 32) * largest).astype(np.float32)
    found = _assert_bits_of_the_cpu(x, tokens=tokens, hadamard=hadamard)
    assert largest > 0 or (download(found.descale) == 1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("d_head", [64, 37])
@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("minus_mean", [False, True])
@pytest.mark.parametrize("hadamard", [False, True])
def test_what_is_not_finite(
    dtype: str, d_head: int, tokens: bool, minus_mean: bool, hadamard: bool
) -> None:
    x = _random((2, 200, 3, d_head), dtype)
    x[0, 3, 0, 5], x[0, 190, 1, 7], x[1, 9, 1, 8], x[1, :, 2, :3] = np.nan, np.inf, -np.inf, np.nan
    x[1, 20] = np.inf
    x[0, :, 2] = 0
    found = _assert_bits_of_the_cpu(x, tokens=tokens, minus_mean=minus_mean, hadamard=hadamard)
    assert torch.isfinite(found.descale).all()
    assert (found.codes[0, 3, 0].view(torch.uint8) == 0x7F).any()


# ---- Memory ----


def _quantise_into(
    x: torch.Tensor, codes: torch.Tensor, scale: torch.Tensor, mean: torch.Tensor | None, flags: int
) -> None:
    def tensor(t: torch.Tensor, dtype: int) -> _abi.flash_tensor_t:
        return _abi.flash_tensor_t(t.data_ptr(), *t.stride()[:3], dtype=dtype)

    batch, seqlen, n_heads, d_head = x.shape
    dtypes = {torch.float16: _abi.FLASH_DTYPE_FP16, torch.float32: _abi.FLASH_DTYPE_FP32}
    args = _abi.flash_quantise_args_t(
        device=_abi.FLASH_DEVICE_CUDA, flags=flags, x=tensor(x, dtypes[x.dtype]),
        codes=tensor(codes, _abi.FLASH_DTYPE_E4M3), scale=scale.data_ptr(),
        mean=None if mean is None else mean.data_ptr(), batch=batch, seqlen=seqlen,
        n_heads=n_heads, d_head=d_head,
    )  # fmt: skip
    check(library().flash_quantise(args, torch.cuda.current_stream().cuda_stream))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("output", LAYOUTS)
@pytest.mark.parametrize("tokens", [False, True])
def test_layouts(dtype: str, layout: str, output: str, tokens: bool) -> None:
    x = _random((2, 200, 3, 64), dtype)
    codes = Guarded(x.shape, "float8_e4m3fn", output)
    scale = Guarded((2, 200, 3) if tokens else (2, 3), "float32")
    mean = Guarded((2, 3, 64), "float32")
    flags = _abi.FLASH_QUANTISE_MINUS_MEAN | (_abi.FLASH_QUANTISE_TOKENS if tokens else 0)
    _quantise_into(upload(x, layout), codes.tensor, scale.tensor, mean.tensor, flags)
    expected = flashattn.quantise(x, tokens=tokens, minus_mean=True)
    assert codes.take().tobytes() == expected.codes.tobytes()
    assert scale.take().tobytes() == expected.descale.tobytes()
    assert mean.take().tobytes() == expected.mean.tobytes()


def test_repeated_heads() -> None:
    x = _random((2, 140, 1, 64), "float16")
    found = flashattn.quantise(upload(x).expand(2, 140, 4, 64), minus_mean=True)
    expected = flashattn.quantise(np.broadcast_to(x, (2, 140, 4, 64)), minus_mean=True)
    assert download(found.codes).tobytes() == expected.codes.tobytes()


def test_more_heads_than_a_launch_has_blocks() -> None:
    x = _random((70_000, 1, 16, 8), "float16")
    for options in ({}, {"tokens": True}, {"minus_mean": True}):
        _assert_bits_of_the_cpu(x, **options)


@pytest.mark.parametrize("shape", [(0, 5, 2, 8), (2, 0, 2, 8)])
@pytest.mark.parametrize("minus_mean", [False, True])
def test_nothing_to_quantise(shape: tuple[int, ...], minus_mean: bool) -> None:
    found = _assert_bits_of_the_cpu(np.zeros(shape, np.float32), minus_mean=minus_mean)
    assert (found.descale == 1).all()


# ---- Streams and graphs ----


@pytest.mark.parametrize("options", [{}, {"tokens": True}, {"minus_mean": True}], ids=str)
def test_captured_calls_and_repeats(options: dict[str, bool]) -> None:
    first, second = (_random((2, 3000, 4, 128), "float16", seed) for seed in (0, 1))
    x = upload(first)
    flashattn.quantise(x, hadamard=True, **options)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        found = flashattn.quantise(x, hadamard=True, **options)
    for values in (first, second, first):
        x.copy_(upload(values))
        graph.replay()
        expected = flashattn.quantise(values, hadamard=True, **options)
        assert download(found.codes).tobytes() == expected.codes.tobytes()
        assert download(found.descale).tobytes() == expected.descale.tobytes()


def test_a_call_follows_its_stream() -> None:
    values = _random((1, 5000, 4, 128), "float16")
    side = torch.cuda.Stream()
    x = torch.zeros(values.shape, dtype=torch.float16, device="cuda")
    torch.cuda.synchronize()
    with torch.cuda.stream(side):
        torch.cuda._sleep(20_000_000)
        x.copy_(upload(values))
        found = flashattn.quantise(x)
    side.synchronize()
    assert download(found.codes).tobytes() == flashattn.quantise(values).codes.tobytes()


def test_the_operators() -> None:
    x = upload(_random((2, 150, 4, 64), "bfloat16"))
    expected = flashattn.quantise(x, minus_mean=True, hadamard=True)
    found = torch.compile(torch_ops.quantise, fullgraph=True, backend="aot_eager")
    for call in (torch_ops.quantise, found):
        for a, b in zip(call(x, minus_mean=True, hadamard=True), expected):
            assert torch.equal(a.view(torch.uint8), b.view(torch.uint8))


# ---- Refusals ----


def test_what_is_refused() -> None:
    x = torch.zeros(5, 2, 8, device="cuda")
    with pytest.raises(ValueError, match="cu_seqlens is on the CPU, x on CUDA device 0"):
        flashattn.quantise(x, cu_seqlens=[0, 5], max_seqlen=5)
    codes, scale = torch.empty(1, 5, 2, 8, device="cuda", dtype=torch.uint8), torch.ones(9).cuda()
    with pytest.raises(ValueError, match=r"scale is 0x[0-9a-f]+: not aligned to its elements"):
        _quantise_into(x[None], codes, scale.view(torch.uint8)[1:], None, 0)


# ---- Sanitizers ----


def _walk() -> None:
    """Quantises a few small tensors, whose allocations end where they do."""
    for shape in ((2, 200, 3, 64), (1, 130, 2, 37), (1, 20, 2, 320)):
        x = torch.from_numpy(_random(shape, "float32")).cuda()
        for kind in (x, x.half(), x.bfloat16()):
            for options in ({"tokens": True}, {"minus_mean": True}):
                flashattn.quantise(kind, hadamard=True, **options)
    flashattn.quantise(x[0], cu_seqlens=lengths((0, 3, 3, 20)), max_seqlen=17, minus_mean=True)
    torch.cuda.synchronize()


@pytest.mark.skipif(shutil.which("compute-sanitizer") is None, reason="no compute-sanitizer here")
@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_sanitizers(tool: str) -> None:
    command = ["compute-sanitizer", "--tool", tool, "--kernel-regex", "kns=flash_quantise"]
    own = {"PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [*command, "--error-exitcode", "1", sys.executable, str(Path(__file__).resolve())],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=7200,
        env={**os.environ, **own},
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " 0 errors" in done.stdout or " 0 hazards" in done.stdout, done.stdout[-4000:]


if __name__ == "__main__":
    _walk()

"""On a second CUDA device, a call runs where its tensors are, and leaves the current one alone."""

from __future__ import annotations

from collections.abc import Iterator

import flashattn
import pytest
import torch
from device_memory import download
from gpu_problems import configs_for, device_inputs
from problems import AttentionProblem

pytestmark = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two CUDA devices")

PROBLEM = AttentionProblem(2, 300, 400, 4, 2, 64, "bfloat16", causal=True)
FIRST, SECOND = torch.device("cuda", 0), torch.device("cuda", 1)


@pytest.fixture(autouse=True)
def current_device_stays() -> Iterator[None]:
    with torch.cuda.device(FIRST):
        yield
        assert torch.cuda.current_device() == FIRST.index


def _inputs(device: torch.device) -> list[torch.Tensor]:
    return [x.to(device) for x in device_inputs(PROBLEM)]


def _bits(tensor: torch.Tensor) -> bytes:
    return download(tensor).tobytes()


@pytest.mark.parametrize("config", configs_for(PROBLEM), ids=str)
def test_every_row_gives_the_same_bits(config: flashattn.Config) -> None:
    first, second = (
        flashattn.flash_attn_func(*_inputs(device), causal=True, return_lse=True, config=config)
        for device in (FIRST, SECOND)
    )
    assert all(x.device == SECOND for x in second)
    assert [_bits(x) for x in first] == [_bits(x) for x in second]


def test_a_call_follows_the_stream_of_its_device() -> None:
    q, k, v = _inputs(SECOND)
    expected = _bits(flashattn.flash_attn_func(q, k, v, causal=True))
    stream = torch.cuda.Stream(SECOND)
    torch.cuda.synchronize(SECOND)
    with torch.cuda.stream(stream):  # which also makes its device current
        torch.cuda._sleep(10_000_000)
        late = q.clone()
        o = flashattn.flash_attn_func(late, k, v, causal=True)
        taken = o.clone()
    stream.synchronize()
    assert _bits(taken) == expected


def test_combine_runs_on_the_second_device() -> None:
    partials = torch.randn(3, 2, 50, 4, 64, device=SECOND)
    lses = torch.randn(3, 2, 4, 50, device=SECOND)
    o, lse = flashattn.flash_combine(partials, lses, return_lse=True)
    on_host = flashattn.flash_combine(partials.cpu().numpy(), lses.cpu().numpy(), return_lse=True)
    assert o.device == SECOND and lse.device == SECOND
    torch.testing.assert_close(o.cpu(), torch.from_numpy(on_host[0]), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.cpu(), torch.from_numpy(on_host[1]), rtol=1e-5, atol=1e-5)


def test_tensors_of_two_devices_are_refused() -> None:
    q, k, v = _inputs(FIRST)
    with pytest.raises((ValueError, TypeError), match="device"):
        flashattn.flash_attn_func(q, k.to(SECOND), v)


def test_both_devices_are_described() -> None:
    numbers = [flashattn.Device.CUDA + device.index for device in (FIRST, SECOND)]
    first, second = map(flashattn.device_info, numbers)
    assert [first.device, second.device] == numbers
    assert first.name == torch.cuda.get_device_name(FIRST)
    assert second.name == torch.cuda.get_device_name(SECOND)

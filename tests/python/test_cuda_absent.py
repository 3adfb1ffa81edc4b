"""A CUDA device that is not there is refused with its reason, whether the library has no CUDA or
the machine no such device. The CPU goes on working.
"""

import absent_device
import flashattn
import numpy as np
import pytest
from flashattn.cli import main
from foreign_arrays import DLPackArray
from problems import AttentionProblem, make_inputs


def _arrays() -> list[DLPackArray]:
    inputs = make_inputs(AttentionProblem(1, 4, 4, 2, 2, 64, "float16"))
    return [DLPackArray(x, device=(2, absent_device.ORDINAL)) for x in inputs]


def test_device_is_refused_with_the_status_of_its_reason() -> None:
    with pytest.raises(flashattn.FlashAttnError, match=absent_device.MESSAGE) as refusal:
        flashattn.device_info(absent_device.NUMBER)
    assert refusal.value.status == absent_device.STATUS
    word = "CUDA device" if absent_device.HAS_CUDA else "without CUDA"
    assert word in str(refusal.value)


def test_attention_is_refused_and_the_cpu_goes_on() -> None:
    q, k, v = _arrays()
    for call in (flashattn.flash_attn_func, flashattn.select_config, flashattn.query_support):
        with pytest.raises(flashattn.FlashAttnError, match=absent_device.MESSAGE) as refusal:
            call(q, k, v)
        assert refusal.value.status == absent_device.STATUS
    cpu = [np.ones((1, 4, 2, 64), np.float16)] * 3
    assert (flashattn.flash_attn_func(*cpu) == 1).all()


def test_combine_is_refused() -> None:
    o = DLPackArray(np.zeros((2, 1, 3, 2, 8), np.float16), device=(2, absent_device.ORDINAL))
    lse = DLPackArray(np.zeros((2, 1, 2, 3), np.float32), device=(2, absent_device.ORDINAL))
    out = DLPackArray(np.zeros((1, 3, 2, 8), np.float16), device=(2, absent_device.ORDINAL))
    with pytest.raises(ValueError, match="DLPackArray in CUDA memory needs .* out="):
        flashattn.flash_combine(o, lse)
    with pytest.raises(flashattn.FlashAttnError, match=absent_device.MESSAGE) as refusal:
        flashattn.flash_combine(o, lse, out=out)
    assert refusal.value.status == absent_device.STATUS


def test_append_is_refused() -> None:
    new, cache = (
        DLPackArray(np.zeros((1, n, 2, 8), np.float16), device=(2, absent_device.ORDINAL))
        for n in (1, 5)
    )
    with pytest.raises(flashattn.FlashAttnError, match=absent_device.MESSAGE) as refusal:
        flashattn.flash_kv_append(new, new, cache, cache, seqused_k=[0])
    assert refusal.value.status == absent_device.STATUS


def test_devices_are_those_that_answer() -> None:
    numbers = [device.device for device in flashattn.cuda_devices()]
    assert numbers == [flashattn.Device.CUDA + n for n in range(len(numbers))]
    assert absent_device.NUMBER not in numbers


def test_kernel_resources_are_refused() -> None:
    cpu_kernel = next(k for k in flashattn.kernels() if k.config.arch == flashattn.Arch.REFERENCE)
    with pytest.raises(flashattn.FlashAttnError, match=absent_device.MESSAGE) as refusal:
        flashattn.kernel_resources(cpu_kernel.config, absent_device.NUMBER)
    assert refusal.value.status == absent_device.STATUS
    with pytest.raises(NotImplementedError, match="device is the CPU"):
        flashattn.kernel_resources(cpu_kernel.config, 0)


@pytest.mark.skipif(bool(flashattn.cuda_devices()), reason="for machines without a CUDA device")
def test_command_line_says_so_in_one_line(capsys: pytest.CaptureFixture) -> None:
    for command in (["bench", "--device", "cuda"], ["bench-decode"], ["bench-chunks"]):
        assert main(command) == 2
        error = capsys.readouterr().err
        assert "needs an NVIDIA GPU that the library can use" in error
        assert error.count("\n") == 1
    assert main(["info"]) == 0
    assert "cuda 0" not in capsys.readouterr().out

"""An access beyond the tests' own memory is always seen."""

import signal

import numpy as np
import pytest
from memory import LAYOUTS, Guarded, arrange, between_forbidden_pages
from subprocesses import run_python

_TOUCH = """
import ctypes, resource, sys
import numpy as np
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
sys.path.insert(0, {folder!r})
from memory import arrange
x = arrange(np.ones((2, 3, 4, 5), np.float32), {layout!r})
ctypes.c_char.from_address(x.ctypes.data + {offset}).value
print("touched")
"""


@pytest.mark.parametrize(
    "layout, offset, survives",
    [
        ("contiguous", 479, True),
        ("contiguous", 480, False),
        ("at_begin", 0, True),
        ("at_begin", -1, False),
    ],
)
def test_the_byte_beyond_ends_the_process(layout: str, offset: int, survives: bool) -> None:
    folder = __file__.rpartition("/")[0]
    result = run_python("-c", _TOUCH.format(folder=folder, layout=layout, offset=offset))
    assert result.returncode == (0 if survives else -signal.SIGSEGV)
    assert ("touched" in result.stdout) == survives


@pytest.mark.parametrize("shape", [(2, 3, 4, 5), (2, 0, 4, 5), (1, 1, 1, 1)], ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_holds_the_values(layout: str, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    assert (arrange(values, layout) == values).all()


def test_bytes_between_the_pages_can_all_be_written() -> None:
    for n_bytes in (0, 1, 4096, 4097):
        memory = between_forbidden_pages(n_bytes)
        assert memory.size >= max(n_bytes, 1)
        memory[:] = 7
        assert (memory == 7).all()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_write_beside_an_output_is_seen(layout: str) -> None:
    output = Guarded((2, 3, 4, 5), np.float32, layout)
    output.array[...] = 1
    assert (output.take() == 1).all()
    output._buffer[0 if layout != "at_begin" else -1] ^= 1
    with pytest.raises(AssertionError, match="1 bytes outside"):
        output.take()

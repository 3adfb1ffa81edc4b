"""Environment variables and gradients, each in a process of its own, because they are read once."""

from __future__ import annotations

import pytest
from subprocesses import run_python

CALL = """
import numpy as np, flashattn
q = np.ones((1, 4, 2, 16), np.float32)
def backward(x):
    o, lse = flashattn.flash_attn_func(x, x, x, return_lse=True)
    flashattn.flash_attn_backward(o, x, x, x, o, lse)
backward(q)
print("ok")
try:
    backward(q.astype(np.float16))
    print("ok")
except Exception as error:
    print(type(error).__name__, error)
"""
ROWS = {
    op: f"REFERENCE {op} (FP32, any, 16, 16): causal+window+softcap+varlen+bias"
    for op in ("backward_dq", "backward_dkv")
}


def _lines(**environment: str) -> tuple[list[str], str]:
    result = run_python("-c", CALL, **environment)
    assert result.returncode == 0, result.stderr
    return result.stdout.splitlines(), result.stderr


@pytest.mark.parametrize("op", ROWS)
def test_a_kernel_of_one_operation_is_forced_and_others_are_chosen(op: str) -> None:
    (first, second), trace = _lines(FLASHATTN_CONFIG=ROWS[op], FLASHATTN_TRACE="1")
    assert first == "ok"
    assert second.startswith("FlashAttnNotImplementedError FLASHATTN_CONFIG: ")
    assert "does not serve this problem: dtype" in second
    forced = [line for line in trace.splitlines() if "FLASHATTN_CONFIG" in line]
    assert len(forced) == 1 and forced[0].startswith(f"flashattn: {ROWS[op]} for a problem"), trace


def test_a_forced_kernel_of_attention_leaves_gradients_alone() -> None:
    forward = "REFERENCE (FP32, any, 16, 1): causal+window+softcap+varlen+paged+bias"
    (first, second), trace = _lines(FLASHATTN_CONFIG=forward, FLASHATTN_TRACE="1")
    assert first == "ok" and second.startswith("FlashAttnNotImplementedError FLASHATTN_CONFIG: ")
    assert " backward_dq (" in trace and " backward_dkv (" in trace


@pytest.mark.parametrize("isa", ["reference", "avx2"])
def test_the_highest_family_holds_for_gradients(isa: str) -> None:
    lines, trace = _lines(FLASHATTN_CPU_ISA=isa, FLASHATTN_TRACE="1")
    assert lines == ["ok", "ok"]
    chosen = {line.split()[1] for line in trace.splitlines() if " backward_d" in line}
    assert chosen and chosen <= {"REFERENCE", isa.upper()}, trace


def test_the_library_is_quiet_otherwise() -> None:
    assert _lines() == (["ok", "ok"], "")

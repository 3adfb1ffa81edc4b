"""Calls a library that has the toy operation, with rows of both operations and without one."""

import ctypes

import flashattn
from flashattn import _abi
from flashattn._library import library

FORWARD, COUNT = 0, 3
FP32 = 3
UNSUPPORTED, WORKSPACE_TOO_SMALL = 200, 102
C = library()
C.flash_count.restype = C.flash_count_workspace_size.restype = ctypes.c_int32


def last_error():
    return C.flash_last_error().decode()


def reference_row(op):
    """Returns the configuration and the pointer of the reference family's row for fp32."""
    config = next(
        kernel.config
        for kernel in flashattn.kernels()
        if (kernel.config.arch, kernel.config.dtype, kernel.config.op) == (1, FP32, op)
    )
    return config, ctypes.c_void_p(flashattn.config.row(config))


def check_forms():
    text = "REFERENCE count (FP32, any, 1)"
    config, _ = reference_row(COUNT)
    assert str(config) == text and flashattn.Config.parse(text) == config
    row = next(kernel for kernel in flashattn.kernels() if kernel.config == config)
    assert row.name == "flash_count_reference_fp32_dany_1", row.name
    refused = {
        "REFERENCE (FP32, any, 1)": "expected ','",
        "REFERENCE count (FP32, any, 1, 1)": "expected ')'",
        "SM80 count (FP32, any, 1)": "expected an operation of the family at position 5",
        "REFERENCE count (BF16, any, 1)": "dtype is 2: the family has no such value",
        "REFERENCE count (FP32, any, 4)": "B_r is 4: the family has no such value",
        "REFERENCE count (FP32, any, 1): window": "features is 0x2: the REFERENCE family does not",
        "REFERENCE count (FP32, any, 2)": "is a legal configuration without a kernel",
    }
    for form, reason in refused.items():
        try:
            flashattn.config.row(flashattn.Config.parse(form))
        except (ValueError, LookupError) as error:
            assert reason in str(error), error
        else:
            raise AssertionError(form)


class Problem:
    """Two queries of zeros see two keys: O of 8 elements, and an LSE of log 2."""

    def __init__(self):
        self.data = [(ctypes.c_float * 8)() for _ in range(4)]
        self.lse = (ctypes.c_float * 2)()
        self.memory = ctypes.create_string_buffer(1 << 21)
        strides = {"stride_batch": 8, "stride_seq": 4, "stride_head": 4}
        q, k, v, o = (_abi.flash_tensor_t(data=ctypes.addressof(x), **strides) for x in self.data)
        shape = {"batch": 1, "seqlen_q": 2, "seqlen_k": 2, "n_heads": 1, "n_heads_kv": 1}
        self.args = _abi.flash_forward_args_t(
            dtype=FP32, d_head=4, q=q, k=k, v=v, o=o, lse=ctypes.addressof(self.lse), **shape
        )
        self.args.workspace = ctypes.addressof(self.memory)
        self.args.workspace_size = len(self.memory)

    def count(self, row=None):
        """Returns the status, O and LSE of a call."""
        self.data[3][:], self.lse[:] = [-1] * 8, [-1] * 2
        status = C.flash_count(ctypes.byref(self.args), row)
        return status, set(self.data[3]), [round(x, 3) for x in self.lse]


def check_calls():
    problem, (_, forward), (_, count) = Problem(), reference_row(FORWARD), reference_row(COUNT)
    counted = (0, {2.0}, [0.693] * 2)
    assert problem.count() == counted
    assert problem.count(count) == counted
    status, o, _ = problem.count(forward)
    assert (status, o) == (UNSUPPORTED, {-1})
    assert "does not serve this problem: op. The kernel computes forward, the call count" in (
        last_error()
    )
    args = ctypes.byref(problem.args)
    assert C.flash_query_support(args, count, None, 0) == UNSUPPORTED
    problem.args.flags = _abi.FLASH_FLAG_CAUSAL
    assert problem.count(count)[0] == UNSUPPORTED and "features" in last_error()


def check_workspace():
    problem, size = Problem(), ctypes.c_uint64()
    args = ctypes.byref(problem.args)
    assert C.flash_count_workspace_size(args, None, ctypes.byref(size)) == 0
    assert size.value == 1 << 20
    problem.args.workspace_size = (1 << 20) - 1
    assert problem.count()[0] == WORKSPACE_TOO_SMALL
    assert "workspace_size is 1048575: needs 1048576 bytes" in last_error()


def check_measuring():
    problem, (_, forward), (_, count) = Problem(), reference_row(FORWARD), reference_row(COUNT)
    args, seconds = ctypes.byref(problem.args), (ctypes.c_double * 2)()
    for rows, expected in ((forward,), 0), ((forward, count), UNSUPPORTED):
        pointers = (ctypes.c_void_p * len(rows))(*rows)
        assert C.flash_measure(args, pointers, len(rows), 1, None, seconds) == expected
    assert "The kernel computes count, the call forward" in last_error()
    text = ctypes.create_string_buffer(512)
    assert C.flash_tuning_format(args, count, ctypes.c_double(1), text, 512) == UNSUPPORTED
    assert "The kernel computes count, the call forward" in last_error()


def check_tuning():
    key = "dtype=FP32 d_head=4 features=none q=2 k=2 heads=1 ns=7: "
    count, forward = (str(reference_row(op)[0]) for op in (COUNT, FORWARD))
    lines = {
        f"op=count {key}{count}": None,
        f"{key}{forward}": None,
        f"op=count {key}{forward}": "line 2: op is count, and the kernel's forward",
        f"{key}{count}": "line 2: op is forward, and the kernel's count",
        f"op=sum {key}{count}": "expected an operation (forward, backward_dq, backward_dkv, count)",
    }
    for line, reason in lines.items():
        try:
            flashattn.set_tuning(f"{flashattn.TUNING_HEADER}\ncc=90 sms=132 {line}\n")
        except ValueError as error:
            assert reason is not None and reason in str(error), error
        else:
            assert reason is None, line


for check in (check_forms, check_calls, check_workspace, check_measuring, check_tuning):
    check()
print("counted")

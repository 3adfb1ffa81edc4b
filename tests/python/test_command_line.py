"""`flashattn COMMAND`: each command, and bad input, which gets one line and exit code 2. The
benchmarks have files of their own."""

from __future__ import annotations

import io
import os
import re
import sys
from pathlib import Path

import flashattn
import ml_dtypes
import numpy as np
import pytest
from complaints import assert_complains
from flashattn import compare as compare_module
from flashattn.cli import check_gradients, forward, info, main, problem
from gradient_problems import OPS, gradient_kernels
from problems import AttentionProblem, make_inputs, runnable_kernels
from subprocesses import run_python


@pytest.fixture
def files(tmp_path: Path) -> list[str]:
    """Returns paths of q, k, v and o .npy files; o does not exist yet."""
    for name, array in zip("qkv", make_inputs(AttentionProblem(2, 9, 14, 4, 2, 16))):
        np.save(tmp_path / f"{name}.npy", array)
    return [str(tmp_path / f"{name}.npy") for name in "qkvo"]


def _assert_no_output(files: list[str]) -> None:
    folder = Path(files[3]).parent
    assert {path.name for path in folder.iterdir()} <= {"q.npy", "k.npy", "v.npy"}


# ---- info, list ----


def test_module_is_a_program() -> None:
    result = run_python("-m", "flashattn", "info")
    assert result.returncode == 0 and flashattn.version() in result.stdout
    result = run_python("-m", "flashattn", "list", "dtype=FP99")
    assert result.returncode == 2 and result.stderr.startswith("flashattn: filter dtype=FP99")
    assert run_python("-m", "flashattn").returncode == 2


def test_a_reader_that_stops_reading_needs_no_message() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    result = run_python("-m", "flashattn", "list", stdout=writing)
    os.close(writing)
    assert result.returncode == 141 and result.stderr == ""


def test_info_refuses_a_number_of_threads_that_is_none() -> None:
    result = run_python("-m", "flashattn", "info", FLASHATTN_NUM_THREADS="0")
    assert result.returncode == 2 and result.stdout == ""
    assert "FLASHATTN_NUM_THREADS" in result.stderr and len(result.stderr.splitlines()) == 1


def test_version() -> None:
    result = run_python("-m", "flashattn", "--version")
    assert result.returncode == 0 and result.stderr == ""
    assert result.stdout.startswith(f"flashattn {flashattn.version()}, ")
    result = run_python("-m", "flashattn", "--version", FLASHATTN_LIBRARY="/absent.so")
    assert result.returncode == 2 and result.stdout == ""
    assert len(result.stderr.splitlines()) == 1 and "/absent.so" in result.stderr


@pytest.mark.parametrize(
    "argv, parts",
    [
        ([], ["COMMAND", "flashattn --help"]),
        (["nonsense"], ["'nonsense'", "flashattn --help"]),
        (["bench", "--seqlen", "abc"], ["--seqlen", "'abc' is not an integer", "bench --help"]),
        (["bench", "--seqlen", "64,,128"], ["--seqlen", "'64,,128' is not an integer"]),
        (["tune", "--d-head", "64.5"], ["--d-head", "'64.5' is not an integer"]),
        (["bench-decode", "--page-size", "x"], ["--page-size", "'x' is not an integer"]),
        (["bench", "--batch", "two"], ["--batch", "'two'"]),
    ],
    ids=str,
)
def test_arguments_are_refused_in_one_line(argv: list[str], parts: list[str], capsys) -> None:
    with pytest.raises(SystemExit) as leave:
        main(argv)
    assert_complains(capsys, leave.value.code, *parts)


class OutOfMemoryError(RuntimeError):
    """As torch names its own."""


def test_a_gpu_without_memory_is_one_line(capsys, monkeypatch) -> None:
    def run(_) -> int:
        raise OutOfMemoryError("CUDA out of memory.\nTried to allocate 5 TiB")

    monkeypatch.setattr(info, "run", run)
    assert_complains(capsys, main(["info"]), "CUDA out of memory. Tried to allocate 5 TiB")


def test_other_errors_of_torch_are_not_hidden(monkeypatch) -> None:
    def run(_) -> int:
        raise RuntimeError("a bug")

    monkeypatch.setattr(info, "run", run)
    with pytest.raises(RuntimeError, match="a bug"):
        main(["info"])


def test_info(capsys) -> None:
    assert main(["info"]) == 0
    output = capsys.readouterr().out
    info = flashattn.device_info()
    assert info.name in output and f"threads   {info.n_threads}" in output
    for kernel in flashattn.kernels():
        assert f"family    {flashattn.Arch(kernel.config.arch).name}: " in output


def test_list(capsys) -> None:
    assert main(["list"]) == 0
    output = capsys.readouterr().out
    for kernel in flashattn.kernels():
        assert f"{kernel.config}" in output and kernel.name not in output
    assert output.endswith(f"{len(flashattn.kernels())} kernels\n")


def test_list_names(capsys) -> None:
    assert main(["list", "--names"]) == 0
    output = capsys.readouterr().out
    assert all(f"{kernel.config}  {kernel.name}" in output for kernel in flashattn.kernels())


def test_list_folds_lines_that_a_terminal_would_break(capsys, monkeypatch) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", "40")
    assert main(["list", "--names"]) == 0
    lines = capsys.readouterr().out.splitlines()
    words = [word for line in lines for word in re.findall(r"[^ +]*[ +]*", line.strip())]
    assert all(len(line) <= 40 or " " not in line.strip() for line in lines)
    joined = "".join(words)
    assert all(
        str(k.config).replace(" ", "") in joined.replace(" ", "") for k in flashattn.kernels()
    )


def test_list_filters(capsys) -> None:
    assert main(["list", "--short", "dtype=BF16", "arch=REFERENCE"]) == 0
    forms = capsys.readouterr().out.splitlines()
    assert forms and all(re.match(r"REFERENCE \w*\s*\(BF16, ", form) for form in forms)
    assert main(["list", "--short", forms[0]]) == 0
    assert capsys.readouterr().out.splitlines() == [forms[0]]
    assert main(["list", forms[0]]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == "1 kernel"


def test_list_complains(capsys) -> None:
    assert_complains(capsys, main(["list", "colour=3"]), "no field 'colour'", "dtype")
    assert_complains(capsys, main(["list", "AVX512 (BF16"]), "AVX512 (BF16", "position")
    assert_complains(capsys, main(["list", "AVX2"]), "filter 'AVX2'", "arch=AVX512")


def test_no_kernel_of_a_gpu_in_a_library_without_cuda(capsys, monkeypatch) -> None:
    on_cpu = [row for row in flashattn.kernels() if problem.is_cpu(row.config)]
    monkeypatch.setattr(problem, "kernels", lambda: on_cpu)
    assert main(["list", "arch=SM90"]) == 0
    assert capsys.readouterr().out == "0 kernels; this library was built without CUDA\n"
    assert_complains(capsys, main(["check", "arch=SM90"]), "no kernel", "built without CUDA")


# ---- forward ----


def test_forward(files: list[str], tmp_path: Path) -> None:
    lse = str(tmp_path / "lse.npy")
    options = ["--causal", "--window", "5", "-1", "--softcap", "3", "--scale", "0.5"]
    assert main(["forward", *files, *options, "--lse", lse, "--seqused-k", "14,6"]) == 0
    expected, expected_lse = flashattn.flash_attn_func(
        *map(np.load, files[:3]),
        causal=True,
        window_size=(5, -1),
        softcap=3.0,
        softmax_scale=0.5,
        seqused_k=[14, 6],
        return_lse=True,
    )
    assert (np.load(files[3]) == expected).all() and (np.load(lse) == expected_lse).all()


def test_forward_with_chunks_and_padding(files: list[str], tmp_path: Path) -> None:
    np.save(tmp_path / "padding.npy", np.array([0, 5]))
    for padding in ("0,5", str(tmp_path / "padding.npy")):
        options = ["--causal", "--attention-chunk", "4", "--leftpad-k", padding]
        assert main(["forward", *files, *options]) == 0
        expected = flashattn.flash_attn_func(
            *map(np.load, files[:3]), causal=True, attention_chunk=4, leftpad_k=[0, 5]
        )
        assert (np.load(files[3]) == expected).all()


def test_forward_ragged(files: list[str], tmp_path: Path) -> None:
    arrays = [np.load(path).reshape(-1, heads, 16) for path, heads in zip(files, (4, 2, 2))]
    for path, array in zip(files, arrays):
        np.save(path, array)
    np.save(tmp_path / "lengths.npy", np.array([0, 20, 28]))
    options = ["--cu-seqlens-q", "0,4,18", "--cu-seqlens-k", str(tmp_path / "lengths.npy")]
    assert main(["forward", *files, *options]) == 0
    expected = flashattn.flash_attn_varlen_func(
        *arrays, cu_seqlens_q=[0, 4, 18], cu_seqlens_k=[0, 20, 28], max_seqlen_q=14, max_seqlen_k=20
    )
    assert (np.load(files[3]) == expected).all()


def test_forward_on_a_kernel_of_choice(files: list[str], capsys) -> None:
    config = next(k.config for k in runnable_kernels() if k.config.dtype == flashattn.DType.FP32)
    assert main(["forward", *files, "--config", str(config)]) == 0
    capsys.readouterr()
    half = next(k.config for k in runnable_kernels() if k.config.dtype == flashattn.DType.FP16)
    Path(files[3]).unlink()
    code = main(["forward", *files, "--config", str(half)])
    assert_complains(capsys, code, "does not serve this problem")
    _assert_no_output(files)


def test_forward_bfloat16(files: list[str], capsys) -> None:
    arrays = [np.load(path).astype(ml_dtypes.bfloat16) for path in files[:3]]
    for path, array in zip(files, arrays):
        np.save(path, array)
    assert_complains(capsys, main(["forward", *files]), "q.npy", "say --dtype bf16")
    assert main(["forward", *files, "--dtype", "BF16"]) == 0
    o = np.load(files[3]).view(ml_dtypes.bfloat16)
    assert (o == flashattn.flash_attn_func(*arrays)).all()


def test_forward_fortran_order_is_served(files: list[str]) -> None:
    expected = flashattn.flash_attn_func(*map(np.load, files[:3]))
    np.save(files[0], np.asfortranarray(np.load(files[0])))
    assert main(["forward", *files]) == 0
    assert (np.load(files[3]) == expected).all()


def test_forward_replaces_a_file_and_leaves_no_other(files: list[str]) -> None:
    Path(files[3]).write_text("old")
    assert main(["forward", *files]) == 0
    assert np.load(files[3]).shape == (2, 9, 4, 16)
    assert len(list(Path(files[3]).parent.iterdir())) == 4


def _truncated(path: str) -> None:
    content = Path(path).read_bytes()
    Path(path).write_bytes(content[:-100])


def _huge(path: str) -> None:
    """Makes a header that announces 2^42 elements over a few bytes of data."""
    with open(path, "wb") as file:
        header = {"descr": "<f4", "fortran_order": False, "shape": (1, 2**32, 1, 2**10)}
        np.lib.format.write_array_header_1_0(file, header)


BAD_FILES = {
    "absent": (lambda path: Path(path).unlink(), ["No such file"]),
    "folder": (lambda path: (Path(path).unlink(), Path(path).mkdir()), ["directory"]),
    "empty": (lambda path: Path(path).write_bytes(b""), ["not a whole .npy file"]),
    "text": (lambda path: Path(path).write_text("hello" * 50), ["not a whole .npy file"]),
    "header_alone": (lambda path: Path(path).write_bytes(b"\x93NUMPY\x01\0"), ["not a whole"]),
    "bad_header": (
        lambda path: Path(path).write_bytes(b"\x93NUMPY\x01\0\x10\0" + b"{'descr': bad  }"),
        ["not a whole .npy file"],
    ),
    "truncated": (_truncated, ["not a whole .npy file"]),
    "huge": (_huge, ["q.npy"]),
    "objects": (lambda path: np.save(path, np.array([{}, []], object)), ["not a whole .npy file"]),
    "float64": (lambda path: np.save(path, np.zeros((2, 9, 4, 16))), ["float64"]),
    "integers": (lambda path: np.save(path, np.zeros((2, 9, 4, 16), np.int16)), ["int16"]),
    "big_endian": (lambda path: np.save(path, np.zeros((2, 9, 4, 16), ">f4")), ["byte order"]),
    "two_axes": (lambda path: np.save(path, np.zeros((9, 4), np.float32)), ["(9, 4)"]),
    "no_axes": (lambda path: np.save(path, np.float32(1)), ["()"]),
    "other_d_head": (lambda path: np.save(path, np.zeros((2, 9, 4, 8), np.float32)), ["16", "8"]),
    "other_batch": (lambda path: np.save(path, np.zeros((3, 9, 4, 16), np.float32)), ["batch"]),
    "other_dtype": (lambda path: np.save(path, np.zeros((2, 9, 4, 16), np.float16)), ["Q FP16"]),
    "bad_heads": (lambda path: np.save(path, np.zeros((2, 9, 3, 16), np.float32)), ["n_heads"]),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_FILES)
def test_forward_complains_about_files(name: str, files: list[str], capsys) -> None:
    spoil, parts = BAD_FILES[name]
    spoil(files[0])
    code = main(["forward", *files])
    assert_complains(capsys, code, *parts)
    _assert_no_output(files)


@pytest.mark.parametrize(
    "options, parts",
    [
        (["--dtype", "fp16"], ["q.npy", "float32, not float16"]),
        (["--softcap", "-1"], ["softcap is -1"]),
        (["--scale", "0"], ["softmax_scale is 0"]),
        (["--scale", "nan"], ["softmax_scale is nan"]),
        (["--window", "-5", "0"], ["window_left is -5"]),
        (["--attention-chunk", "-3"], ["attention_chunk is -3"]),
        (["--leftpad-k", "0,-1"], ["leftpad_k[1] is -1"]),
        (["--leftpad-k", "0"], ["leftpad_k has 1 values, not 2"]),
        (["--seqused-k", "3"], ["seqused_k has 1 values, not 2"]),
        (["--seqused-k", "3,x"], ["--seqused-k 3,x"]),
        (["--seqused-k", "3,99"], ["seqused_k[1] is 99"]),
        (["--seqused-k", "3,99999999999"], ["--seqused-k", "32 bits"]),
        (["--seqused-k", "absent.npy"], ["absent.npy", "No such file"]),
        (["--cu-seqlens-q", "0,9,18"], ["q has 4 axes, not 3"]),
        (["--cu-seqlens-q", ","], ["--cu-seqlens-q is empty"]),
        (["--config", "REFERENCE (FP32"], ["position"]),
    ],
    ids=str,
)
def test_forward_complains_about_options(options, parts, files: list[str], capsys) -> None:
    assert_complains(capsys, main(["forward", *files, *options]), *parts)
    _assert_no_output(files)


def test_forward_complains_about_its_output(files: list[str], capsys) -> None:
    target = str(Path(files[3]).parent / "absent" / "o.npy")
    assert_complains(capsys, main(["forward", *files[:3], target]), target, "cannot be written")
    _assert_no_output(files)
    Path(files[3]).mkdir()
    assert_complains(capsys, main(["forward", *files]), "o.npy", "cannot be written")
    Path(files[3]).rmdir()
    _assert_no_output(files)


def test_forward_writes_to_what_is_there_and_no_file(files: list[str], capsys) -> None:
    """A device or a pipe would be gone if a file took its name."""
    pipe = Path(files[3])
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    assert main(["forward", *files]) == 0
    assert pipe.is_fifo()
    with open(reader, "rb") as file:
        assert np.load(io.BytesIO(file.read())).shape == (2, 9, 4, 16)
    capsys.readouterr()
    assert_complains(capsys, main(["forward", *files[:3], "/dev/full"]), "/dev/full", "No space")


def test_forward_writes_through_links(files: list[str]) -> None:
    link = Path(files[3])
    target = link.with_name("folder") / "file.npy"
    target.parent.mkdir()
    link.symlink_to(target)
    assert main(["forward", *files]) == 0
    assert link.is_symlink() and np.load(target).shape == (2, 9, 4, 16)


@pytest.mark.parametrize("input_", [0, 1, 2])
def test_forward_writes_over_no_input(input_: int, files: list[str], capsys) -> None:
    before = Path(files[input_]).read_bytes()
    assert_complains(capsys, main(["forward", *files[:3], files[input_]]), "written over")
    link = Path(files[3])
    link.symlink_to(files[input_])
    assert_complains(capsys, main(["forward", *files]), "written over", files[input_])
    link.unlink()
    assert_complains(capsys, main(["forward", *files, "--lse", files[input_]]), "written over")
    assert Path(files[input_]).read_bytes() == before
    _assert_no_output(files)


def test_forward_writes_o_and_lse_to_two_files(files: list[str], tmp_path: Path, capsys) -> None:
    assert_complains(capsys, main(["forward", *files, "--lse", files[3]]), "the other output")
    np.save(tmp_path / "used.npy", np.array([14, 6]))
    lengths = str(tmp_path / "used.npy")
    code = main(["forward", *files, "--seqused-k", lengths, "--lse", lengths])
    assert_complains(capsys, code, "used.npy", "an input")


def test_forward_says_how_to_take_an_array_out_of_an_archive(files: list[str], capsys) -> None:
    path = files[0].replace(".npy", ".npz")
    np.savez(path, query=np.load(files[0]), other=np.zeros(3))
    code = main(["forward", path, *files[1:]])
    hint = f"np.save('q.npy', np.load({path!r})['query'])"
    assert_complains(capsys, code, "archive of arrays (query, other)", hint)
    code = main(["forward", *files[:3], files[3].replace(".npy", ".npz")])
    assert_complains(capsys, code, "o.npz", "a .npy file")


@pytest.mark.skipif(bool(flashattn.cuda_devices()), reason="for machines without a CUDA device")
def test_forward_on_a_device_that_is_not_there(files: list[str], capsys) -> None:
    code = main(["forward", *files, "--device", "cuda"])
    assert_complains(capsys, code, "--device cuda needs an NVIDIA GPU that the library can use")
    _assert_no_output(files)


@pytest.mark.skipif(bool(flashattn.cuda_devices()), reason="for machines without a CUDA device")
@pytest.mark.parametrize("command", ["tune", "bench-decode", "bench-chunks"])
def test_commands_for_gpus_say_so_without_one(command: str, capsys) -> None:
    """The user named no device: the message does not speak of one that was chosen."""
    assert main([command]) == 2
    message = capsys.readouterr().err
    assert message.startswith(f"flashattn: {command}") and message.count("\n") == 1
    assert "needs an NVIDIA GPU that the library can use; " in message
    assert "device is the current" not in message or "without CUDA" not in message


def test_forward_takes_all_that_belongs_to_a_call_to_the_device(files: list[str], capsys) -> None:
    """With a device that is the CPU by another name."""
    expected = flashattn.flash_attn_func(*map(np.load, files[:3]), causal=True, seqused_k=[14, 6])
    moved = []

    def to_tensor(array: np.ndarray, where: str) -> np.ndarray:
        moved.append((array.shape, where))
        return array

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(forward.gpu, "require", lambda _: None)
        patch.setattr(forward.extras, "require", lambda *_: None)
        patch.setattr(forward.torch_arrays, "to_tensor", to_tensor)
        patch.setattr(forward.torch_arrays, "to_array", lambda array: array)
        options = ["--device", "cuda", "--causal", "--seqused-k", "14,6"]
        assert main(["forward", *files, *options]) == 0
    assert (np.load(files[3]) == expected).all()
    shapes = [(2, 9, 4, 16), (2, 14, 2, 16), (2, 14, 2, 16), (2,)]
    assert moved == [(shape, "cuda") for shape in shapes]


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_forward_leaves_nothing_behind_when_the_disk_is_full(files, capsys, monkeypatch) -> None:
    def full(file, array, **_) -> None:
        file.write(b"partial")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert_complains(capsys, main(["forward", *files]), "No space left")
    _assert_no_output(files)


# ---- check ----


def test_check(capsys) -> None:
    assert main(["check", "dtype=FP32"]) == 0
    output = capsys.readouterr().out
    of_gradients = [k for op in OPS for k in gradient_kernels(op)]
    kernels = [*runnable_kernels(), *of_gradients]
    kernels = [k for k in kernels if k.config.dtype == flashattn.DType.FP32]
    assert all(str(kernel.config) in output for kernel in kernels)
    assert output.endswith(f"{len(kernels)} kernels, 0 failed problems (seed 0)\n")
    words = ("causal", "causal dq", "chunks dk", "leftpad_k dv", "max error")
    assert all(word in output for word in words)


def test_check_fails_when_a_kernel_is_wrong(capsys, monkeypatch) -> None:
    monkeypatch.setitem(compare_module.RELATIVE_ERROR, "float32", 1e-12)
    assert main(["check", "arch=REFERENCE", "dtype=FP32", "op=forward"]) == 1
    assert "FAILED" in capsys.readouterr().out


def test_check_fails_when_a_gradient_is_wrong(capsys, monkeypatch) -> None:
    def wrong(*arrays: object, **options: object) -> flashattn.Gradients:
        found = flashattn.flash_attn_backward(*arrays, **options)
        return found._replace(dk=-found.dk, dv=-found.dv)

    monkeypatch.setattr(check_gradients, "flash_attn_backward", wrong)
    assert main(["check", "arch=REFERENCE", "dtype=FP32", "op=backward_dkv"]) == 1
    output = capsys.readouterr().out
    assert "FAILED" in output and "dk: max error" in output and "dv: max error" in output


def test_check_complains(capsys) -> None:
    assert_complains(capsys, main(["check", "B_r=999"]), "no kernel")

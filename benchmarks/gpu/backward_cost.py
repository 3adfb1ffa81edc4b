"""Times gradients on a CUDA device beside torch's FlashAttention-2 and cuDNN, all on the same
tensors and in turns, in TFLOP/s of 6 * d_head + 4 * d_head_v operations for each query head, query
and key: all of them, half of them if causal, and those that a window shows.

    python3 benchmarks/gpu/backward_cost.py --d-head 64 128 256 --causal 1 0 --seqlen 4096 16384
    python3 benchmarks/gpu/backward_cost.py --d-head 128 --heads 32 --group 4 --causal 1
    python3 benchmarks/gpu/backward_cost.py --causal 1 --window 1024
    python3 benchmarks/gpu/backward_cost.py --causal 1 --lengths 4096 1024 2048 1536
    python3 benchmarks/gpu/backward_cost.py --d-head 192 --d-head-v 128 --heads 16 --causal 1

FA2 and cuDNN add up dQ by atomics; FA2d is FlashAttention-2 in its deterministic mode. cuDNN gets
K and V of every query head, and no windows or ragged batches; FA2 gets a V of as many columns as K
has, the others 0. "two" are calls that name a row of
dQ, and so keep no dS. With --rows, dQ and dKV are the kernels of this library each by itself, in
TFLOP/s of the same operations as the whole.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import flashattn
import torch

ATEN = torch.ops.aten
TOKENS, WIDTH = 16384, 2048
ROUNDS, SPIN_CYCLES = 9, 10_000_000


def median_times(runs: dict[str, Callable[[], object]]) -> dict[str, float]:
    """Returns the median milliseconds of each, in turns. A busy stream keeps the host's time out of
    them."""
    for run in runs.values():
        run()
    torch.cuda.synchronize()
    events = {name: [] for name in runs}
    for _ in range(ROUNDS):
        torch.cuda._sleep(SPIN_CYCLES)
        for name, run in runs.items():
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            run()
            end.record()
            events[name].append((begin, end))
        torch.cuda.synchronize()
    return {
        name: sorted(begin.elapsed_time(end) for begin, end in pairs)[ROUNDS // 2]
        for name, pairs in events.items()
    }


def deterministic(run: Callable[[], object]) -> Callable[[], None]:
    def inner() -> None:
        torch.use_deterministic_algorithms(True)
        run()
        torch.use_deterministic_algorithms(False)

    return inner


def count_pairs(length: int, causal: bool, window: int) -> float:
    """Counts the queries and keys of a sequence that see each other; half of them, if causal."""
    if window:
        return sum(min(i + 1, window) for i in range(length))
    return length**2 / (2 if causal else 1)


class Problem:
    """Holds the tensors of a call. lengths: of a ragged batch; empty: `seqlen` each."""

    def __init__(self, d_head: int, seqlen: int, causal: bool, args: argparse.Namespace) -> None:
        self.causal, self.window, self.lengths = causal, args.window, args.lengths
        heads = args.heads or WIDTH // d_head
        self.group = args.group
        lengths = self.lengths or [seqlen] * (TOKENS // seqlen)
        pairs = sum(count_pairs(n, causal, self.window) for n in lengths)
        d_head_v = args.d_head_v or d_head
        self.flops = (6 * d_head + 4 * d_head_v) * heads * pairs
        self.longest = max(lengths)
        tokens = (sum(lengths),) if self.lengths else (len(lengths), seqlen)
        dtype = getattr(torch, args.dtype)
        torch.manual_seed(0)
        kv_heads = heads // self.group
        sizes = ((heads, d_head), (kv_heads, d_head), (kv_heads, d_head_v), (heads, d_head_v))
        tensors = [torch.randn(*tokens, *x, device="cuda", dtype=dtype) for x in sizes]
        self.inputs, self.d_o = tensors[:3], tensors[3]
        self.of_fa2 = [torch.nn.functional.pad(x, (0, d_head - d_head_v)) for x in tensors[2:]]
        self.ends = None
        if self.lengths:
            self.ends = torch.zeros(len(lengths) + 1, dtype=torch.int32, device="cuda")
            self.ends[1:] = torch.tensor(lengths, device="cuda").cumsum(0)
        self.left, self.right = (args.window - 1, 0) if args.window else (None, None)
        found = ATEN._flash_attention_forward(
            *self.inputs[:2], self.of_fa2[0], self.ends, self.ends, self.longest, self.longest,
            0.0, causal, False,
            window_size_left=self.left, window_size_right=self.right,
        )  # fmt: skip
        self.o_of_fa2, self.lse, self.rest = found[0], found[1], found[2:4]
        self.o = found[0][..., :d_head_v].contiguous()

    def fa2(self) -> None:
        ATEN._flash_attention_backward(
            self.of_fa2[1], *self.inputs[:2], self.of_fa2[0], self.o_of_fa2, self.lse,
            self.ends, self.ends, self.longest, self.longest, 0.0, self.causal, *self.rest,
            window_size_left=self.left, window_size_right=self.right,
        )  # fmt: skip

    def cudnn(self) -> Callable[[], None]:
        q, k, v = (x.transpose(1, 2) for x in self.inputs)
        k, v = (x.repeat_interleave(self.group, 1) for x in (k, v))
        found = ATEN._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, self.causal)
        o, lse, cu_q, cu_k, most_q, most_k, seed, offset = found[:8]
        return lambda: ATEN._scaled_dot_product_cudnn_attention_backward(
            self.d_o.transpose(1, 2), q, k, v, o, lse, seed, offset, None,
            cu_q, cu_k, most_q, most_k, 0.0, self.causal,
        )  # fmt: skip

    @property
    def options(self) -> dict[str, object]:
        options: dict[str, object] = {"causal": self.causal}
        if self.window:
            options["window_size"] = (self.left, self.right)
        if self.lengths:
            ends = {"cu_seqlens_q": self.ends, "cu_seqlens_k": self.ends}
            options |= {**ends, "max_seqlen_q": self.longest, "max_seqlen_k": self.longest}
        return options

    def ours(self, **configs: object) -> Callable[[], object]:
        outputs = {x: torch.empty_like(y) for x, y in zip(("dq", "dk", "dv"), self.inputs)}
        call = (self.d_o, *self.inputs, self.o, self.lse)
        return lambda: flashattn.flash_attn_backward(*call, **outputs, **self.options, **configs)

    def kernel(self, config: flashattn.Config) -> str:
        call = (self.d_o, *self.inputs, self.o, self.lse)
        seconds = flashattn.measure_backward(*call, [config], **self.options, n_launches=7)[0]
        return f"{self.flops / seconds / 1e12:6.0f}"

    def rows(self, op: flashattn.Op) -> list[flashattn.Config]:
        """Returns the rows of the problem's d_head that serve it."""
        dtype = {torch.bfloat16: flashattn.DType.BF16, torch.float16: flashattn.DType.FP16}
        needed = flashattn.Feature(0)
        if self.causal:
            needed |= flashattn.Feature.CAUSAL
        if self.window:
            needed |= flashattn.Feature.WINDOW
        if self.lengths:
            needed |= flashattn.Feature.VARLEN
        return [
            x.config
            for x in flashattn.kernels()
            if x.config.op == op
            and x.config.arch >= flashattn.Arch.SM80
            and x.config.d_head == self.inputs[0].shape[-1]
            and (x.config.d_head_v or x.config.d_head) == self.inputs[2].shape[-1]
            and x.config.dtype == dtype[self.inputs[0].dtype]
            and x.is_runnable
            and not x.config.features & flashattn.Feature.BIAS
            and not needed & ~flashattn.Feature(x.config.features)
        ]

    def contenders(self) -> dict[str, Callable[[], object]]:
        dq = max(self.rows(flashattn.Op.BACKWARD_DQ), key=lambda x: (x.arch, -x.features))
        return {
            "FA2": self.fa2,
            "FA2d": deterministic(self.fa2),
            **({} if self.lengths or self.window else {"cuDNN": self.cudnn()}),
            "ours": self.ours(),
            "two": self.ours(dq_config=dq),
        }


COLUMNS = ("FA2", "FA2d", "cuDNN", "ours", "two")


def measure(problem: Problem, label: str, with_rows: bool) -> None:
    times = median_times(problem.contenders())
    rates = {name: problem.flops / time / 1e9 for name, time in times.items()}
    best = max(rates.get(x, 0.0) for x in ("FA2", "cuDNN"))
    cells = " ".join(f"{rates[x]:7.0f}" if x in rates else "      -" for x in COLUMNS)
    print(f"{label} | {cells} | {rates['ours'] / best:5.2f}", flush=True)
    for op in (flashattn.Op.BACKWARD_DQ, flashattn.Op.BACKWARD_DKV) if with_rows else ():
        for config in problem.rows(op):
            print(f"    {problem.kernel(config)}  {config}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--d-head", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--d-head-v", type=int, default=0, help="0: that of Q and K")
    parser.add_argument("--causal", type=int, nargs="+", default=[1, 0])
    parser.add_argument("--seqlen", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--lengths", type=int, nargs="+", default=[], help="of a ragged batch")
    parser.add_argument("--window", type=int, default=0, help="keys that a query sees; with causal")
    parser.add_argument("--heads", type=int, default=0, help="query heads; 0: 2048 / d_head")
    parser.add_argument("--group", type=int, default=1, help="query heads of a K/V head")
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--rows", action="store_true", help="each kernel by itself, too")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.dtype}, TFLOP/s")
    print("d_head causal seqlen |     FA2    FA2d   cuDNN    ours     two | to the best of both")
    for d_head in args.d_head:
        for causal in args.causal:
            for seqlen in args.lengths[:1] or args.seqlen:
                problem = Problem(d_head, seqlen, bool(causal), args)
                measure(problem, f"{d_head:6} {causal:6} {seqlen:6}", args.rows)


if __name__ == "__main__":
    main()

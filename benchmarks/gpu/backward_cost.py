"""Times gradients on a CUDA device beside torch's FlashAttention-2 and cuDNN, all on the same
tensors, in TFLOP/s of 10 * batch * heads * seqlen^2 * d_head operations, half of it if causal.

    python3 benchmarks/gpu/backward_cost.py --d-head 64 128 256 --causal 1 0 --seqlen 4096 16384

FA2 and cuDNN add up dQ by atomics; FA2d is FlashAttention-2 in its deterministic mode. Beside calls
of this library with the workspace that they gain by are those with the least, in which dS is not
kept. dQ and dKV are kernels each by itself, in TFLOP/s of the same operations as the whole.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable

import flashattn
import torch

ATEN = torch.ops.aten
TOKENS, WIDTH = 16384, 2048


def median_ms(run: Callable[[], object], runs: int = 9) -> float:
    """Returns the median time of a run. A busy stream keeps the host's time out of it."""
    for _ in range(2):
        run()
    torch.cuda.synchronize()
    torch.cuda._sleep(10_000_000)
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(runs)]
    for begin, end in events:
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize()
    return sorted(begin.elapsed_time(end) for begin, end in events)[runs // 2]


class Problem:
    def __init__(self, d_head: int, seqlen: int, causal: bool, group: int, dtype: torch.dtype):
        batch, heads = TOKENS // seqlen, WIDTH // d_head
        self.causal = causal
        self.flops = 10 * batch * heads * seqlen**2 * d_head / (2 if causal else 1)
        shapes = [(batch, seqlen, n, d_head) for n in (heads, heads // group, heads // group)]
        torch.manual_seed(0)
        self.q, self.k, self.v = (torch.randn(*x, device="cuda", dtype=dtype) for x in shapes)
        self.d_o = torch.randn_like(self.q)
        self.of_heads = [x.transpose(1, 2) for x in (self.q, self.k, self.v)]
        self.of_heads[1:] = [x.repeat_interleave(group, 1) for x in self.of_heads[1:]]
        results = ATEN._scaled_dot_product_flash_attention(*self.of_heads, 0.0, causal)
        self.o, self.lse, self.rest = results[0], results[1], results[2:8]

    def tflops(self, run: Callable[[], object]) -> str:
        try:
            return f"{self.flops / median_ms(run) / 1e9:6.0f}"
        except RuntimeError as error:
            return f"     - ({str(error)[:40]})"

    def fa2(self) -> None:
        ATEN._scaled_dot_product_flash_attention_backward(
            self.d_o.transpose(1, 2), *self.of_heads, self.o, self.lse, *self.rest[:4],
            0.0, self.causal, *self.rest[4:],
        )  # fmt: skip

    def cudnn(self) -> Callable[[], None]:
        found = ATEN._scaled_dot_product_cudnn_attention(
            *self.of_heads, None, True, 0.0, self.causal
        )
        o, lse, cu_q, cu_k, most_q, most_k, seed, offset = found[:8]
        return lambda: ATEN._scaled_dot_product_cudnn_attention_backward(
            self.d_o.transpose(1, 2), *self.of_heads, o, lse, seed, offset, None,
            cu_q, cu_k, most_q, most_k, 0.0, self.causal,
        )  # fmt: skip

    def least_workspace(self) -> torch.Tensor:
        """Returns a workspace for D and sums of rows, and hardly more."""
        rows = self.q.numel() // self.q.shape[-1]
        return torch.empty(8 * rows + 2048, dtype=torch.uint8, device="cuda")

    def ours(self, **keywords: object) -> Callable[[], object]:
        o = self.o.transpose(1, 2)
        outputs = {x: torch.empty_like(y) for x, y in zip(("dq", "dk", "dv"), self.inputs)}
        call = (self.d_o, *self.inputs, o, self.lse)
        return lambda: flashattn.flash_attn_backward(
            *call, **outputs, causal=self.causal, **keywords
        )

    @property
    def inputs(self) -> tuple[torch.Tensor, ...]:
        return self.q, self.k, self.v

    def kernel(self, config: flashattn.Config) -> str:
        call = (self.d_o, *self.inputs, self.o.transpose(1, 2), self.lse)
        seconds = flashattn.measure_backward(*call, [config], causal=self.causal, n_launches=7)[0]
        return f"{self.flops / seconds / 1e12:6.0f}"

    def rows(self, op: flashattn.Op) -> list[flashattn.Config]:
        """Returns the rows of the least features and d_head that serve the problem."""
        dtype = {torch.bfloat16: flashattn.DType.BF16, torch.float16: flashattn.DType.FP16}
        return [
            x.config
            for x in flashattn.kernels()
            if x.config.op == op
            and x.config.arch >= flashattn.Arch.SM80
            and x.config.d_head == self.q.shape[-1]
            and x.config.dtype == dtype[self.q.dtype]
            and x.is_runnable
            and not x.config.features & flashattn.Feature.BIAS
        ]


def measure(problem: Problem, label: str, with_rows: bool) -> None:
    peers = [problem.tflops(problem.fa2)]
    torch.use_deterministic_algorithms(True)
    peers.append(problem.tflops(problem.fa2))
    torch.use_deterministic_algorithms(False)
    try:
        peers.append(problem.tflops(problem.cudnn()))
    except RuntimeError as error:
        peers.append(f"     - ({str(error)[:40]})")
    ours = problem.tflops(problem.ours())
    least = problem.tflops(problem.ours(workspace=problem.least_workspace()))
    print(f"{label} | {' '.join(peers)} | {ours} {least}", flush=True)
    for op in (flashattn.Op.BACKWARD_DQ, flashattn.Op.BACKWARD_DKV) if with_rows else ():
        for config in problem.rows(op):
            print(f"    {problem.kernel(config)}  {config}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--d-head", type=int, nargs="+", default=[64, 128, 256])
    parser.add_argument("--causal", type=int, nargs="+", default=[1, 0])
    parser.add_argument("--seqlen", type=int, nargs="+", default=[4096, 16384])
    parser.add_argument("--group", type=int, default=1, help="query heads of a K/V head")
    parser.add_argument("--dtype", choices=["bfloat16", "float16"], default="bfloat16")
    parser.add_argument("--rows", action="store_true", help="each kernel by itself, too")
    args = parser.parse_args()
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {args.dtype}, TFLOP/s")
    print("d_head causal seqlen |    FA2   FA2d  cuDNN |   ours  least")
    for d_head in args.d_head:
        for causal in args.causal:
            for seqlen in args.seqlen:
                problem = Problem(
                    d_head, seqlen, bool(causal), args.group, getattr(torch, args.dtype)
                )
                measure(problem, f"{d_head:6} {causal:6} {seqlen:6}", args.rows)


if __name__ == "__main__":
    main()

"""Models that several processes train, by DistributedDataParallel and by FSDP2 over gloo, against
one process that has the whole batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
fsdp = pytest.importorskip("torch.distributed.fsdp")
import torch.distributed as dist  # noqa: E402
from flashattn.compat import fa2  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn.parallel import DistributedDataParallel  # noqa: E402

pytestmark = [
    pytest.mark.skipif(not dist.is_available() or not dist.is_gloo_available(), reason="no gloo"),
    pytest.mark.skipif(not hasattr(fsdp, "fully_shard"), reason="this torch has no FSDP2"),
]

KINDS = ("ddp", "fsdp2")
N_PROCESSES, N_STEPS, WIDTH = 2, 2, 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        qkv = self.qkv(x).unflatten(-1, (3, 2, -1))
        return x + self.out(fa2.flash_attn_qkvpacked_func(qkv, causal=True).flatten(2))


def _model_and_batch() -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    return nn.Sequential(Attention(), Attention()), torch.randn(2 * N_PROCESSES, 7, WIDTH)


def _train(model: nn.Module, micro_batches: tuple[Tensor, ...]) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        for x in micro_batches:
            (model(x).square().mean() / len(micro_batches)).backward()
        optimizer.step()


def _whole(x: Tensor) -> Tensor:
    return x.full_tensor() if hasattr(x, "full_tensor") else x.detach()


def _parallel(kind: str, model: nn.Module) -> Any:
    if kind == "ddp":
        return DistributedDataParallel(model)
    mesh = dist.init_device_mesh("cpu", (N_PROCESSES,))
    for module in (*model, model):
        fsdp.fully_shard(module, mesh=mesh)
    return model


def _work(rank: int, folder: str) -> None:
    """Is what each process does; the first one saves the weights of each kind."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=N_PROCESSES
    )
    for kind in KINDS:
        model, batch = _model_and_batch()
        _train(_parallel(kind, model), batch[2 * rank : 2 * rank + 2].split(1))
        weights = [_whole(x) for x in model.parameters()]
        if rank == 0:
            torch.save(weights, f"{folder}/{kind}")
    dist.destroy_process_group()
    # Threads of gloo may outlive Python and abort the process (torch 2.11, SDPA's too).
    os._exit(0)


def test_processes_train_the_model_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(_work, (str(tmp_path),), N_PROCESSES)
    model, batch = _model_and_batch()
    _train(model, (batch,))
    for kind in KINDS:
        for x, expected in zip(torch.load(tmp_path / kind), model.parameters(), strict=True):
            torch.testing.assert_close(x, expected, rtol=1e-5, atol=1e-6)

"""Models that are trained side by side: each step they read the same text."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .gpt import GPT, Attention, Sizes
from .text import batch_of

LEARNING_RATE, WARM_UP = 2e-3, 20


@dataclass
class Run:
    """Holds a model, and the loss and the seconds of each of its steps."""

    name: str
    model: GPT
    optimizer: torch.optim.Optimizer
    losses: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def step(self, ids: Tensor, learning_rate: float) -> None:
        begin = time.perf_counter()
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        with torch.autocast("cuda", torch.bfloat16, enabled=ids.is_cuda):
            logits = self.model(ids[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - begin)


def make_runs(
    sizes: Sizes, attentions: dict[str, Attention], seed: int, device: str = "cpu"
) -> list[Run]:
    """Returns a run for each attention; all begin with the same weights."""
    torch.manual_seed(seed)
    first = GPT(sizes, next(iter(attentions.values()))).to(device)
    runs = []
    for name, attention in attentions.items():
        model = copy.deepcopy(first)
        for block in model.blocks:
            block.attention = attention
        optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99))
        runs.append(Run(name, model, optimizer))
    return runs


def train(runs: list[Run], text: Tensor, n_steps: int, batch: int, seed: int) -> Iterator[int]:
    """Yields the number of steps that are done, after each of them."""
    generator = torch.Generator().manual_seed(seed)
    device = runs[0].model.token.weight.device
    for i in range(n_steps):
        ids = batch_of(text, batch, runs[0].model.sizes.context, generator).to(device)
        for run in runs:
            run.step(ids, _learning_rate(i, n_steps))
        yield i + 1


def _learning_rate(step: int, n_steps: int) -> float:
    """Returns a rate that rises at first, and falls to nothing as a cosine does."""
    rise = min(1.0, (step + 1) / WARM_UP)
    return LEARNING_RATE * rise * 0.5 * (1 + math.cos(math.pi * step / n_steps))

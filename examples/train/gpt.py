"""A GPT that reads characters. Attention is a function that the caller gives."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

# Attention returns O of q, k and v, all [batch, seqlen, n_heads, d_head], under a causal mask.
Attention = Callable[[Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Sizes:
    vocabulary: int
    context: int = 64
    width: int = 128
    n_layers: int = 4
    n_heads: int = 4


class Block(nn.Module):
    def __init__(self, sizes: Sizes, attention: Attention) -> None:
        super().__init__()
        self.attention, self.n_heads = attention, sizes.n_heads
        width = sizes.width
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:  # [batch, seqlen, width]
        qkv = self.qkv(self.norm_1(x)).unflatten(-1, (3, self.n_heads, -1))
        x = x + self.out(self.attention(*qkv.unbind(2)).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x))))


class GPT(nn.Module):
    def __init__(self, sizes: Sizes, attention: Attention) -> None:
        super().__init__()
        self.sizes = sizes
        self.token = nn.Embedding(sizes.vocabulary, sizes.width)
        self.position = nn.Embedding(sizes.context, sizes.width)
        self.blocks = nn.ModuleList(Block(sizes, attention) for _ in range(sizes.n_layers))
        self.norm = nn.LayerNorm(sizes.width)
        for embedding in (self.token, self.position):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, ids: Tensor) -> Tensor:
        """Returns the logits of the next characters, [batch, seqlen, vocabulary]."""
        x = self.token(ids) + self.position.weight[: ids.shape[1]]
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.token.weight.T  # the embedding reads and writes characters

    @torch.inference_mode()
    def continued(self, ids: Tensor, n_more: int, generator: torch.Generator) -> Tensor:
        """Returns ids [seqlen] with n_more characters that the model chooses at random."""
        for _ in range(n_more):
            logits = self(ids[None, -self.sizes.context :])[0, -1]
            chosen = torch.multinomial((logits / 0.8).softmax(0), 1, generator=generator)
            ids = torch.cat((ids, chosen))
        return ids


def flash_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Computes attention, and its gradients, by libflashattn. It reads views of qkv in place."""
    from flashattn.torch_ops import flash_attn_func

    return flash_attn_func(q, k, v, causal=True)


def torchs_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Computes the same by torch."""
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)

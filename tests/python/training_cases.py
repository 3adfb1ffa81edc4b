"""Random problems for the gradients of every door of torch, and what they are by the formulas in
float64 on the device of their tensors."""

from __future__ import annotations

import random
from dataclasses import dataclass

import torch
from flashattn import dropout
from torch import Tensor

D_HEADS = ((64, 64), (96, 96), (128, 128), (192, 128), (256, 256), (192, 192), (72, 72), (50, 50))
MASKS = ("bool", "numbers", "head", "row")
LEAST, MOST = -(2**63), 2**63 - 1


@dataclass(frozen=True)
class Case:
    """Holds what is computed. lengths_q and lengths_k are those of the sequences of a ragged batch;
    of padded tensors they say which keys there are, and leftpad which of them come first."""

    dtype: str
    heads: tuple[int, int]
    d_head: int
    d_head_v: int
    lengths_q: tuple[int, ...]
    lengths_k: tuple[int, ...]
    seqlen_k: int
    is_ragged: bool = False
    leftpad: tuple[int, ...] | None = None
    causal: bool = False
    window: tuple[int, int] = (-1, -1)
    chunk: int = 0
    softcap: float = 0.0
    scale: float | None = None
    has_sinks: bool = False
    has_slopes: bool = False
    mask: str | None = None
    dropout_p: float = 0.0
    with_lse: bool = False

    @property
    def batch(self) -> int:
        return len(self.lengths_q)

    @property
    def has_lengths(self) -> bool:
        return not self.is_ragged and set(self.lengths_k) != {self.seqlen_k}


@dataclass
class Data:
    """Holds the tensors of a case: those that have gradients, those of O and LSE, and the rest."""

    q: Tensor
    k: Tensor
    v: Tensor
    sinks: Tensor | None
    slopes: Tensor | None
    mask: Tensor | None
    rng_state: Tensor | None
    d_o: Tensor
    d_lse: Tensor

    @property
    def leaves(self) -> list[Tensor]:
        return [x for x in (self.q, self.k, self.v, self.sinks) if x is not None]


def draw(r: random.Random, door: str) -> Case:
    """Returns a case that this door can say."""
    is_ragged = "varlen" in door
    is_packed, is_square = "packed" in door, "qkvpacked" in door
    is_own = door.startswith("ops") or door == "function"
    d_head, d_head_v = r.choice(D_HEADS)
    if door.startswith("fa2") or is_packed or door == "sdpa":
        d_head_v = d_head
    n_kv = r.choice((1, 2, 2, 3))
    group = 1 if is_square and door.startswith("fa2") else r.choice((1, 1, 2, 4, 4))
    dropout_p = r.choice((0.1, 0.5)) if door[:3] not in ("fa3",) and r.random() < 0.2 else 0.0
    longest = 150 if dropout_p else r.choice((1, 40, 200, 400, 700))
    batch = r.choice((1, 2, 3))
    lengths_q = tuple(r.randint(0 if is_ragged else 1, longest) for _ in range(batch))
    lengths_k = tuple(r.randint(0 if is_ragged else 1, longest) for _ in range(batch))
    if not is_ragged:
        lengths_q = (lengths_q[0],) * batch
    pads = (is_own or door == "hf") and not is_ragged and r.random() < 0.4
    pads = pads and not (door == "hf" and dropout_p)  # the sequences that it drops in are unknown
    if is_square or (r.random() < 0.5 and not pads):
        lengths_k = lengths_q
    elif door == "hf" and pads:
        lengths_q = (max(lengths_k),) * batch
    seqlen_k = max(lengths_k)
    leftpad = None
    if not is_ragged and not pads:
        lengths_k = (seqlen_k,) * batch
    elif pads and (door == "hf" or r.random() < 0.5):
        leftpad = tuple(seqlen_k - x for x in lengths_k)
        if door != "hf" and r.random() < 0.5:
            leftpad = tuple(r.randint(0, x) for x in leftpad)
    kind = r.choice(("full", "causal", "causal", "window", "chunk"))
    if door == "sdpa":
        kind = r.choice(("full", "causal"))
    if door == "hf" and (kind == "chunk" or dropout_p):
        kind = "causal"
    window, chunk = (-1, -1), 0
    if kind == "window":
        window = r.choice(((30, 0), (64, -1), (17, 9), (-1, 5), (0, 0), (100, 100)))
        if door == "hf":
            window = (r.randint(0, 90),) * 2
    elif kind == "chunk":
        if is_own or door.startswith("fa3"):
            chunk = r.choice((16, 50, 128))
        else:
            kind = "causal"
    if door == "sdpa" and kind == "causal":
        lengths_k, seqlen_k = lengths_q, lengths_q[0]
    has_sinks = (is_own or door == "hf") and r.random() < 0.3
    has_slopes = (is_own or door.startswith("fa2")) and r.random() < 0.25
    with_lse = door not in ("hf", "sdpa") and not (dropout_p and door[:2] == "fa")
    # Slopes take LSE so far below a sink that its own gradient is lost in fp32.
    with_lse = with_lse and not (has_sinks and has_slopes) and r.random() < 0.4
    return Case(
        dtype=r.choice(("bfloat16", "bfloat16", "bfloat16", "float16", "float16", "float32")),
        heads=(n_kv * group, n_kv), d_head=d_head, d_head_v=d_head_v, lengths_q=lengths_q,
        lengths_k=lengths_k, seqlen_k=seqlen_k, is_ragged=is_ragged, leftpad=leftpad,
        causal=kind in ("causal", "chunk") or (kind == "window" and (pads or r.random() < 0.3)),
        window=window,
        chunk=chunk, softcap=r.choice((0.0, 0.0, 5.0)) if door != "sdpa" else 0.0,
        scale=r.choice((None, None, 0.2)),
        has_sinks=has_sinks, has_slopes=has_slopes,
        mask=r.choice(MASKS) if is_own and not is_ragged and r.random() < 0.25 else None,
        dropout_p=dropout_p, with_lse=with_lse,
    )  # fmt: skip


def data_of(case: Case, seed: int, device: str) -> Data:
    g = torch.Generator(device=device).manual_seed(seed)
    dtype = getattr(torch, case.dtype)
    n, n_kv = case.heads

    def normal(*shape: int, of: torch.dtype = dtype) -> Tensor:
        return torch.randn(shape, generator=g, device=device).to(of)

    if case.is_ragged:
        rows_q, rows_k = (sum(case.lengths_q),), (sum(case.lengths_k),)
        lse = n, *rows_q
    else:
        rows_q, rows_k = (case.batch, case.lengths_q[0]), (case.batch, case.seqlen_k)
        lse = case.batch, n, case.lengths_q[0]
    mask = None
    if case.mask is not None:
        shape = [case.batch, n, case.lengths_q[0], case.seqlen_k]
        if case.mask in ("head", "row"):
            shape[0] = 1
        if case.mask == "row":
            shape[1] = shape[2] = 1
        if case.mask == "bool":
            mask = torch.rand(shape, generator=g, device=device) < 0.7
        else:
            of = torch.float32 if case.mask == "numbers" else dtype
            mask = normal(*shape, of=of)
            mask = mask.masked_fill(mask > 1.2, -torch.inf)
    state = None
    if case.dropout_p:
        state = torch.randint(LEAST, MOST, (2,), dtype=torch.int64, device=device, generator=g)
    return Data(
        q=1.5 * normal(*rows_q, n, case.d_head), k=normal(*rows_k, n_kv, case.d_head),
        v=normal(*rows_k, n_kv, case.d_head_v),
        sinks=normal(n, of=torch.float32) if case.has_sinks else None,
        slopes=normal(n, of=torch.float32).abs() / 8 if case.has_slopes else None,
        mask=mask, rng_state=state, d_o=normal(*rows_q, n, case.d_head_v),
        d_lse=normal(*lse, of=torch.float32),
    )  # fmt: skip


@dataclass
class Expected:
    """Holds the gradients of data.leaves, O and LSE in float64; and how far the rounding of O alone
    takes each gradient, which may be more than itself where terms cancel."""

    gradients: list[Tensor]
    o: Tensor
    lse: Tensor
    roundings: list[float]


def reference(case: Case, data: Data) -> Expected:
    leaves = [x.detach().double().requires_grad_() for x in data.leaves]
    q, k, v, *rest = leaves
    sinks = rest[0] if rest else None
    parts, all_lse, totals, first_q, first_k = [], [], [], 0, 0
    for b in range(case.batch):
        len_q, len_k = case.lengths_q[b], case.lengths_k[b]
        if case.is_ragged:
            at_q, at_k = slice(first_q, first_q + len_q), slice(first_k, first_k + len_k)
            own = q[at_q], k[at_k], v[at_k]
            first_q, first_k = first_q + len_q, first_k + len_k
        else:
            at_q, first = b, case.leftpad[b] if case.leftpad else 0
            end = case.seqlen_k if case.leftpad else len_k
            own = q[b], k[b, first:end], v[b, first:end]
        o, lse, total = _of_sequence(case, data, b, *own, sinks)
        parts.append(o)
        all_lse.append(lse)
        # The gradient of a score has -P * sum(dO * O) in it, and P is the gradient of this sum.
        moved = ((o.to(data.q.dtype).double() - o) * data.d_o[at_q].double()).sum(-1).T.detach()
        totals.append((moved * total).sum())
    join, axis = (torch.cat, 1) if case.is_ragged else (torch.stack, 0)
    o, lse = torch.cat(parts) if case.is_ragged else torch.stack(parts), join(all_lse, axis)
    options = {"allow_unused": True, "retain_graph": True}
    roundings = torch.autograd.grad(torch.stack(totals).sum(), leaves, **options)
    total = (o * data.d_o.double()).sum()
    if case.with_lse:
        total = total + (torch.where(lse.isfinite(), lse, 0) * data.d_lse.double()).sum()
    found = torch.autograd.grad(total, leaves, allow_unused=True)
    found = [torch.zeros_like(x) if y is None else y for x, y in zip(leaves, found)]
    largest = [0.0 if x is None or not x.numel() else float(x.abs().max()) for x in roundings]
    return Expected(found, o.detach(), lse.detach(), largest)


def _of_sequence(
    case: Case, data: Data, b: int, q: Tensor, k: Tensor, v: Tensor, sinks: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns O, LSE, and LSE with the sinks, 0 where a query sees no key."""
    len_q, len_k, n = q.shape[0], k.shape[0], q.shape[1]
    k, v = (x.repeat_interleave(n // x.shape[1], 1) for x in (k, v))
    scores = torch.einsum("ihd,jhd->hij", q, k) * (case.scale or case.d_head**-0.5)
    if case.softcap:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    at_q = torch.arange(len_q, device=q.device)[:, None] + len_k - len_q
    at_k = torch.arange(len_k, device=q.device)[None]
    behind = at_k - at_q
    if data.slopes is not None:
        scores = scores - data.slopes.double()[:, None, None] * behind.abs()
    seen = torch.ones_like(behind, dtype=torch.bool).expand_as(scores)
    if case.causal:
        seen = seen & (behind <= 0)
    if case.window[0] >= 0:
        seen = seen & (behind >= -case.window[0])
    if case.window[1] >= 0:
        seen = seen & (behind <= case.window[1])
    if case.chunk:
        chunks = [torch.div(x, case.chunk, rounding_mode="floor") for x in (at_q, at_k)]
        seen = seen & (chunks[0] == chunks[1])
    if data.mask is not None:
        mask = data.mask.expand(case.batch, n, len_q, data.mask.shape[-1])[b, :, :, :len_k]
        hidden = ~mask if mask.dtype == torch.bool else mask == -torch.inf
        seen = seen & ~hidden
        if mask.dtype != torch.bool:
            scores = scores + mask.double().masked_fill(hidden, 0)
    scores = scores.masked_fill(~seen, -torch.inf)
    any_seen = seen.any(-1) if len_k else seen.new_zeros(n, len_q)
    safe = torch.where(any_seen[..., None], scores, 0.0)
    lse = safe.logsumexp(-1)
    total = lse if sinks is None else torch.logaddexp(lse, sinks[:, None])
    p = torch.where(seen, torch.exp(safe - total[..., None]), 0.0)
    if case.dropout_p:
        state = tuple(data.rng_state.tolist())
        factors = [
            dropout.factors(case.dropout_p, state, b, n, head, len_q, len_k) for head in range(n)
        ]
        for head, x in enumerate(factors):
            factors[head] = torch.as_tensor(x, device=q.device).double().expand(len_q, len_k)
        p = p * torch.stack(factors)
    o = torch.einsum("hij,jhd->ihd", p, v)
    return o, torch.where(any_seen, lse, -torch.inf), torch.where(any_seen, total, 0.0)

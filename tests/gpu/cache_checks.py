"""What holds of every row that reads a cache of keys: pages, neighbours in the batch, repetition
and graphs change no bit, and the workspace is what the library asks for. A test names the row
(None: the one that is selected) and a problem that it serves, whose seqused_k is on the device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import flashattn
import numpy as np
import pytest
import torch
from device_memory import torch_dtype
from flashattn import Feature, latent
from flashattn._attention import workspace_size
from flashattn._problem import Problem
from flashattn.config import resolve
from gpu_problems import (
    CONTIGUOUS,
    check_in_pages,
    device_inputs,
    device_options,
    device_pages,
    run,
    runnable_rows,
    same_bits,
)
from memory import LATENT
from paging import PagedProblem
from problems import AttentionProblem

Outputs = tuple[np.ndarray, np.ndarray]
_CANARY = 0xAB
_GUARD = 1024  # bytes on each side of a workspace


def dense_row(paged: flashattn.Config | None) -> flashattn.Config | None:
    """Returns the row that is the same without pages."""
    return paged and replace(paged, features=paged.features & ~Feature.PAGED)


def _as_given(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[torch.Tensor]:
    return [q, k, v]


@dataclass(frozen=True)
class CacheChecks:
    """Runs problems with one kind of tensors.

    tensors_of        makes the tensors of a call from q, k and v of a problem
    v_has_own_pages   whether pages of V may be found apart from those of K
    """

    tensors_of: Callable[..., list[torch.Tensor]] = _as_given
    v_has_own_pages: bool = True

    def inputs(self, p: AttentionProblem) -> list[torch.Tensor]:
        return self.tensors_of(*device_inputs(p))

    def pages(self, q: PagedProblem) -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
        tensors, where = device_pages(q)
        return self.tensors_of(*tensors), where

    def run(self, p: AttentionProblem, config: flashattn.Config | None = None) -> Outputs:
        return run(p, self.inputs(p), config)

    def run_in_pages(self, q: PagedProblem, config: flashattn.Config | None = None) -> Outputs:
        tensors, where = self.pages(q)
        return run(replace(q.p, seqused_k=None), tensors, config, **where)

    # ---- Pages ----

    def pages_change_no_bit(
        self, p: AttentionProblem, config: flashattn.Config | None, page_sizes: Iterable[int]
    ) -> None:
        expected = self.run(PagedProblem(p, 1).dense, dense_row(config))
        for page_size in page_sizes:
            v_apart = self.v_has_own_pages and page_size % 2 == 1
            q = PagedProblem(p, page_size, v_apart=v_apart)
            assert same_bits(self.run_in_pages(q, config), expected), page_size

    def pages_are_found(
        self, p: AttentionProblem, kind: str, config: flashattn.Config | None = None
    ) -> None:
        """kind: the way to find them, of paging.KINDS."""
        dense, contiguous = dense_row(config), replace(p, layouts=CONTIGUOUS)
        if dense is None or dense in (row.config for row in runnable_rows()):
            expected = self.run(contiguous, dense)
        else:
            expected = check_in_pages(PagedProblem(contiguous, 16), config)
        own = self.v_has_own_pages
        for page_size, v_apart in {(16, False), (16, own), (7, own)}:
            q = PagedProblem(p, page_size, kind, v_apart)
            assert same_bits(self.run_in_pages(q, config), expected), q

    def keys_of_no_page_read_as_zeros(
        self, p: AttentionProblem, config: flashattn.Config | None = None, page_size: int = 16
    ) -> None:
        plain = replace(p, seqused_k=None)
        zeroed, where = self.pages(PagedProblem(p, page_size))
        for x in zeroed[1:]:
            x.view(torch.uint8)[int(where["page_table"][0, 3])] = 0
        expected = run(plain, zeroed, config, **where)
        tensors, where = self.pages(PagedProblem(p, page_size))
        for bad in (-1, len(tensors[1]), 2**31 - 1, -(2**31)):
            where["page_table"][0, 3] = bad
            assert same_bits(run(plain, tensors, config, **where), expected), bad

    def keys_of_no_slot_read_as_zeros(
        self, p: AttentionProblem, config: flashattn.Config | None = None
    ) -> None:
        plain = replace(p, seqused_k=None)
        zeroed, where = self.pages(PagedProblem(p, 1, "slots64"))
        for x in zeroed[1:]:
            x.view(torch.uint8)[int(where["page_rows"][0])] = 0
        expected = run(plain, zeroed, config, **where)
        tensors, where = self.pages(PagedProblem(p, 1, "slots64"))
        slot = int(where["page_rows"][0])
        for bad in (-1, len(tensors[1]), 2**31, slot + 2**32, slot - 2**32, -(2**63)):
            where["page_rows"][0] = bad
            assert same_bits(run(plain, tensors, config, **where), expected), bad

    def lengths_beyond_the_table_are_cut(
        self, p: AttentionProblem, config: flashattn.Config | None = None, page_size: int = 16
    ) -> None:
        """p: one whose keys fill their pages."""
        tensors, where = self.pages(PagedProblem(p, page_size))
        where["page_table"] = where["page_table"][:, : p.seqlen_k // page_size].contiguous()
        plain = replace(p, seqused_k=None)
        expected = run(plain, tensors, config, **where)
        where["seqused_k"][0] = 5000
        assert same_bits(run(plain, tensors, config, **where), expected)
        ends = torch.tensor([0, *range(5000, 5000 * p.batch + 1, 5000)], dtype=torch.int32)
        where["seqused_k"], where["cu_seqlens_k"] = None, ends.cuda()
        assert same_bits(run(plain, tensors, config, **where), expected)

    # ---- Batches ----

    def neighbours_change_no_bit(
        self, p: AttentionProblem, config: flashattn.Config | None = None
    ) -> None:
        """Batch-invariant bits are the same alone, where the host knows the length, in the batch,
        and in pages if the row has them."""
        invariant = {"batch_invariant": True}
        tensors, dense = self.inputs(p), dense_row(config)
        o, lse = run(p, tensors, dense, **invariant)
        if config is None or config.features & Feature.PAGED:
            pages, where = self.pages(PagedProblem(p, 16))
            in_pages = run(replace(p, seqused_k=None), pages, config, **invariant, **where)
            assert same_bits(in_pages, (o, lse))
        q, k, v = tensors
        for b in range(0, p.batch, max(1, p.batch // 10)):
            keys = p.seqused_k[b]
            alone = replace(p, batch=1, seqlen_k=keys, seqused_k=None)
            own = [q[b : b + 1], k[b : b + 1, :keys], v[b : b + 1, :keys]]
            found = run(alone, own, dense, **invariant)
            assert same_bits(found, (o[b : b + 1], lse[b : b + 1])), b

    def repetition_changes_no_bit(
        self, p: AttentionProblem, config: flashattn.Config | None = None
    ) -> None:
        q = PagedProblem(p, 16)
        is_paged = config is not None and config.features & Feature.PAGED
        found = [
            self.run_in_pages(q, config) if is_paged else self.run(p, config) for _ in range(20)
        ]
        assert all(same_bits(x, found[0]) for x in found)

    # ---- Graphs and workspaces ----

    def replays_see_other_lengths_and_pages(
        self,
        p: AttentionProblem,
        config: flashattn.Config | None = None,
        n_replays: int = 200,
        compare_every: int = 1,
        kind: str = "table",
    ) -> None:
        """A graph, recorded with the longest lengths, has the bits of calls outside of it."""
        longest = replace(p, seqused_k=(p.seqlen_k,) * p.batch)
        tensors, where = self.pages(PagedProblem(longest, 16, kind))
        q, k, v = tensors
        dtype = torch_dtype(p.types[2])
        columns = latent.CODES if p.dtype == LATENT else v.shape[-1]
        o = torch.empty(*q.shape[:-1], columns, dtype=dtype, device=q.device)
        lse = torch.empty(p.batch, p.n_heads, p.seqlen_q, device=q.device)
        workspace = torch.empty(256 << 20, dtype=torch.uint8, device=q.device)
        keywords = {**device_options(replace(p, seqused_k=None)), **where}
        keywords |= {"out": o, "lse": lse, "workspace": workspace, "config": config}
        flashattn.flash_attn_varlen_func(*tensors, **keywords)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            flashattn.flash_attn_varlen_func(*tensors, **keywords)
        random = torch.Generator().manual_seed(1)
        for i in range(n_replays):
            used = torch.randint(0, p.seqlen_k + 1, (p.batch,), generator=random)
            if "seqused_k" in where:
                where["seqused_k"].copy_(used)
            else:
                where["cu_seqlens_k"][1:].copy_(used.cumsum(0))
            if i % 10 == 0:
                ids = torch.randint(0, len(k), where["page_table"].shape, generator=random)
                where["page_table"].copy_(ids)
            graph.replay()
            if i % compare_every == 0:
                replayed = o.clone(), lse.clone()
                flashattn.flash_attn_varlen_func(*tensors, **keywords)
                for found, expected in zip(replayed, (o, lse)):  # pages hold NaN
                    assert torch.equal(found.view(torch.uint8), expected.view(torch.uint8)), i

    def workspace_is_enough(
        self,
        p: AttentionProblem,
        config: flashattn.Config | None = None,
        offsets: Iterable[int] = (0,),
        **options: object,
    ) -> None:
        """A call stays within the bytes that it asks for, wherever they begin, and refuses fewer.

        offsets    from an aligned address to the workspace, in bytes
        options    more keywords of the call
        """
        tensors = self.inputs(p)
        options = {**device_options(p), **options}
        kernel = None if config is None else resolve(config)
        problem = Problem(*tensors, options)  # its arguments live as long as it does
        size = workspace_size(problem.args, kernel)
        options["config"] = config
        expected = flashattn.flash_attn_varlen_func(*tensors, **options)
        for offset in offsets:
            begin = _GUARD + offset
            shape = (begin + size + _GUARD,)
            memory = torch.full(shape, _CANARY, dtype=torch.uint8, device=tensors[0].device)
            workspace = memory[begin : begin + size]
            o = flashattn.flash_attn_varlen_func(*tensors, workspace=workspace, **options)
            assert torch.equal(o, expected)
            assert (memory[:begin] == _CANARY).all() and (memory[begin + size :] == _CANARY).all()
        message = f"workspace has {size - 1} bytes, and the call wants {size}"
        with pytest.raises(ValueError, match=message):
            flashattn.flash_attn_varlen_func(*tensors, workspace=workspace[:-1], **options)


CACHES = CacheChecks()

"""This module makes the mask of a model, once for all of its layers, in the form that attention()
takes.

What transformers says of a mask is a function, the pattern, and which tokens are padding. Both
together are the truth for all layers that get the mask, whatever the layers say themselves. Where
the library's own masks can say it, the mask that a model gets has no elements, but a plan.
Otherwise it is an array, attn_mask of the library.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import ref

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import masking_utils

from ._patterns import Pattern
from ._plan import Plan, Sizes, plan_of, settled


def mask_of(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = masking_utils.causal_mask_function,
    attention_mask: Tensor | None = None,
    use_vmap: bool = False,
    device: torch.device | str = "cpu",
    **kwargs: Any,
) -> Tensor:
    """Makes a model's mask, as a mask function of transformers' AttentionMaskInterface.

    q_length, kv_length   numbers of queries and of keys that attention() will get
    q_offset, kv_offset   positions of the first of them
    mask_function         the pattern, as transformers' masking_utils composes it
    attention_mask        [batch, seqlen]: which positions from 0 on are tokens
    use_vmap              the pattern has parts that do not come from transformers

    Returns a PatternMask, or for other patterns a bool mask [batch, 1, q_length, kv_length].
    """
    if isinstance(attention_mask, PatternMask):
        return attention_mask  # generate() makes the mask of a static cache before the model does
    return _mask_of(
        Sizes(batch_size, q_length, kv_length, q_offset, kv_offset, device),
        mask_function,
        attention_mask,
        use_vmap,
    )


@torch.compiler.disable
def _mask_of(
    sizes: Sizes,
    mask_function: Callable[..., Any],
    tokens: Tensor | None,
    use_vmap: bool,
) -> Tensor:
    pattern = None if use_vmap else Pattern.of(mask_function)
    sizes = settled(sizes, pattern)
    tokens = None if tokens is None else tokens.bool()
    plan = None if pattern is None else plan_of(pattern, sizes, tokens)

    def elements() -> Tensor:
        return masking_utils.sdpa_mask(
            sizes.batch,
            sizes.q_length,
            sizes.kv_length,
            sizes.q_offset,
            sizes.kv_offset,
            mask_function,
            tokens,
            allow_is_causal_skip=False,
            use_vmap=use_vmap,
            device=sizes.device,
        )

    if plan is None:
        return elements()
    shape = (sizes.batch, 1, sizes.q_length, sizes.kv_length)
    return PatternMask(shape, sizes.device, plan, elements)


class PatternMask(Tensor):
    """Stands for a bool mask [batch, 1, q_length, kv_length] whose elements nobody has asked for.

    plan   how attention() computes it; None after a model wrote to the elements, or may have: they
           are the mask then

    Whatever torch makes of it is made of the elements, and is a tensor without a plan: but what
    detach() gives is a mask with the same plan and the same elements, since reentrant checkpoints
    compute again with it.
    """

    plan: Plan | None

    __torch_function__ = torch._C._disabled_torch_function_impl  # __torch_dispatch__ sees it all

    @staticmethod
    def __new__(
        cls,
        shape: tuple[int, ...],
        device: torch.device | str,
        plan: Plan | None,
        make: Callable[[], Tensor] | None,
    ) -> PatternMask:
        mask = Tensor._make_wrapper_subclass(cls, shape, dtype=torch.bool, device=device)
        mask.plan, mask._make, mask._elements = plan, make, None
        mask.anchor = _anchor(mask.device)
        mask._twins = [ref(mask)]
        return mask

    def _twin(self) -> PatternMask:
        twin = PatternMask(self.shape, self.device, self.plan, lambda: self.elements)
        self._twins += twin._twins
        twin._twins = self._twins
        return twin

    def _forget_plan(self) -> None:
        for twin in self._twins:
            mask = twin()
            if mask is not None:
                mask.plan = None

    # To compilers the mask is an input of a class of tensors that they know by these two. They look
    # at the plan as an attribute of the input, and the tensor says no more than the device.

    def __tensor_flatten__(self) -> tuple[list[str], None]:
        return ["anchor"], None

    @staticmethod
    def __tensor_unflatten__(
        tensors: dict[str, Tensor], context: None, size: Any, stride: Any
    ) -> PatternMask:
        anchor = tensors["anchor"]
        mask = PatternMask(size, anchor.device, None, None)
        mask.anchor = anchor
        return mask

    @property
    def elements(self) -> Tensor:
        if self._elements is None:
            self._elements = self._make()
        return self._elements

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is torch.ops.aten.detach.default and args[0].plan is not None:
            return args[0]._twin()
        schema = func._schema
        is_shared = schema.is_mutable or any(x.alias_info is not None for x in schema.returns)

        def elements_of(mask: PatternMask) -> Tensor:
            if is_shared:
                mask._forget_plan()
            return mask.elements

        args, kwargs = tree_map_only(PatternMask, elements_of, (args, kwargs or {}))
        return func(*args, **kwargs)


@cache
def _anchor(device: torch.device) -> Tensor:
    return torch.empty(0, dtype=torch.bool, device=device)

"""flashattn.hf: the pattern of a mask decides, whatever a layer says of order and window."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
import flashattn.hf  # noqa: E402
from flashattn.hf import _attention  # noqa: E402
from flashattn.hf._masks import PatternMask, mask_of  # noqa: E402
from flashattn.hf._patterns import Pattern  # noqa: E402
from transformers import masking_utils as masks  # noqa: E402

NAME, PLAIN_NAME = "flashattn", "libfa"  # to names with "flash" transformers refuses some patterns


@pytest.fixture(autouse=True)
def registered() -> Iterator[None]:
    for name in (NAME, PLAIN_NAME):
        flashattn.hf.register(name)
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the problems are tiny
    with torch.no_grad():
        yield
    torch.set_num_threads(n_threads)
    for name in (NAME, PLAIN_NAME):
        flashattn.hf.unregister(name)


LAYERS = {
    "causal": {"is_causal": True},
    "not causal": {"is_causal": False},
    "causal window": {"is_causal": True, "sliding_window": 2},
    "window": {"is_causal": False, "sliding_window": 2},
}
every_layer = pytest.mark.parametrize("layer", LAYERS.values(), ids=LAYERS)


@every_layer
def test_three_queries_with_a_window_of_themselves(layer: dict[str, Any]) -> None:
    mask = mask_of(1, 3, 3, mask_function=masks.sliding_window_causal_mask_function(1))
    v = torch.arange(3.0).view(1, 1, 3, 1).expand(-1, -1, -1, 16)
    out, _ = _attention.attention(SimpleNamespace(), 0 * v, 0 * v, v, mask, **layer)
    assert out[0, :, 0, 0].tolist() == [0, 1, 2]


SEQLEN = 9
IDS = torch.tensor([0, 0, 0, 1, 1, 1, 1, 2, 2]).expand(2, -1)
POSITIONS = torch.tensor([0, 1, 2, 0, 1, 2, 3, 0, 1]).expand(2, -1)
BLOCKS = torch.tensor([-1, 0, 0, 0, -1, -1, 1, 1, -1]).expand(2, -1)
NO_PADS, PADS = torch.zeros(2, dtype=int), torch.tensor([2, 0])


def packed(inside: Callable[..., Any]) -> Callable[..., Any]:
    remapped = masks.remap_positions_for_packed_sequence(inside, POSITIONS)
    return masks.and_masks(remapped, masks.packed_sequence_mask_function(IDS))


causal, bidirectional = masks.causal_mask_function, masks.bidirectional_mask_function
PATTERNS: dict[str, Callable[..., Any]] = {
    "causal": causal,
    "bidirectional": bidirectional,
    **{f"causal window {n}": masks.sliding_window_causal_mask_function(n) for n in (0, 1, 4, 50)},
    **{f"window {n}": masks.sliding_window_bidirectional_mask_function(n) for n in (0, 1, 4, 50)},
    "left window": masks.and_masks(masks.sliding_window_overlay(3), bidirectional),
    "two windows": masks.and_masks(
        masks.sliding_window_overlay(5), masks.sliding_window_bidirectional_overlay(2)
    ),
    "causal, window of both sides": masks.and_masks(
        causal, masks.sliding_window_bidirectional_overlay(2)
    ),
    "chunks": masks.chunked_causal_mask_function(4, NO_PADS),
    "chunks behind padding": masks.chunked_causal_mask_function(4, PADS),
    "chunks and a window": masks.and_masks(
        masks.sliding_window_overlay(2), masks.chunked_causal_mask_function(4, NO_PADS)
    ),
    "bidirectional chunks": masks.chunked_overlay(4, NO_PADS),
    "packed": packed(causal),
    "packed windows": packed(masks.sliding_window_causal_mask_function(2)),
    "packed, bidirectional": packed(bidirectional),
    "packed without positions": masks.and_masks(causal, masks.packed_sequence_mask_function(IDS)),
    "causal or blocks": masks.or_masks(causal, masks.blockwise_overlay(BLOCKS)),
    "causal or causal": masks.or_masks(causal, masks.sliding_window_causal_mask_function(2)),
    "of another module": lambda b, h, q, k: (k <= q) & (k != 3),
}
every_pattern = pytest.mark.parametrize("pattern", PATTERNS.values(), ids=PATTERNS)


def padding(side: str) -> torch.Tensor | None:
    if side == "none":
        return None
    padded = {"left": slice(2), "right": slice(-2, None), "between": slice(4, 6)}
    tokens = torch.ones(2, SEQLEN, dtype=torch.bool)
    tokens[0, padded.get(side, slice(0))] = False
    return tokens


def check(
    layer: dict[str, Any],
    pattern: Callable[..., Any],
    tokens: torch.Tensor | None,
    *,
    n_queries: int = SEQLEN,
    n_keys: int = SEQLEN,
    first: int = 0,
    as_tensor: bool = False,
    change: Callable[[torch.Tensor], torch.Tensor] = lambda mask: mask,
) -> Any:
    """Asserts that attention is that of transformers' own array. Queries begin at position `first`,
    keys at 0. Returns the mask."""
    generator = torch.Generator().manual_seed(0)
    q, k, v = (
        torch.randn(2, heads, n, 16, generator=generator)
        for heads, n in ((4, n_queries), (2, n_keys), (2, n_keys))
    )
    sizes = 2, n_queries, n_keys, torch.tensor(first) if as_tensor else first, 0, pattern, tokens
    mask = mask_of(*sizes)
    out, _ = _attention.attention(SimpleNamespace(), q, k, v, change(mask), **layer)
    visible = change(masks.sdpa_mask(*sizes, allow_is_causal_skip=False))
    expected = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, attn_mask=visible, enable_gqa=True
    )
    counted = visible.any(-1).expand(2, 4, -1).clone()  # queries that see a key
    if tokens is not None:
        counted &= torch.nn.functional.pad(tokens, (0, 99), value=True)[
            :, None, first : first + n_queries
        ]
    found = out.transpose(1, 2)
    torch.testing.assert_close(found[counted], expected[counted], rtol=1e-5, atol=1e-5)
    return mask


@every_pattern
@pytest.mark.parametrize("side", ["none", "left", "right", "between", "all tokens"])
def test_patterns(pattern: Callable[..., Any], side: str) -> None:
    for layer in LAYERS.values():
        check(layer, pattern, padding(side))


@pytest.mark.parametrize("side", ["none", "left", "right"])
@pytest.mark.parametrize("name", ["causal", "bidirectional", "causal window 4", "window 1"])
@pytest.mark.parametrize("as_tensor", [False, True], ids=["", "static"])
@pytest.mark.parametrize("n_queries", [1, 3])
def test_queries_at_the_end_of_a_cache(
    side: str, name: str, as_tensor: bool, n_queries: int
) -> None:
    """The cache has places behind the last key, and where it is dynamic, none."""
    n_keys = SEQLEN + (4 if as_tensor else 0)
    for layer in LAYERS.values():
        check(
            layer,
            PATTERNS[name],
            padding(side),
            n_queries=n_queries,
            n_keys=n_keys,
            first=SEQLEN - n_queries,
            as_tensor=as_tensor,
        )


def test_which_patterns_need_no_array() -> None:
    no_array = {
        name
        for name, pattern in PATTERNS.items()
        if isinstance(mask_of(2, SEQLEN, SEQLEN, mask_function=pattern), PatternMask)
    }
    assert set(PATTERNS) - no_array == {
        "causal window 0",
        "two windows",
        "chunks behind padding",  # which is not given
        "chunks and a window",
        "bidirectional chunks",
        "packed without positions",
        "causal or blocks",
        "causal or causal",
        "of another module",
    }


def test_parts_of_a_pattern() -> None:
    found = Pattern.of(masks.sliding_window_causal_mask_function(4))
    assert found.is_causal and found.window == (3, -1) and not found.chunk
    found = Pattern.of(masks.sliding_window_bidirectional_mask_function(4))
    assert not found.is_causal and found.window == (4, 4)
    found = Pattern.of(masks.sliding_window_causal_mask_function(2**40))
    assert found.is_causal and found.window == (-1, -1)
    for window in (0, -1, torch.tensor(3), 2.5):
        assert Pattern.of(masks.sliding_window_causal_mask_function(window)) is None


# ---- What models do with masks ----


def write(mask: torch.Tensor) -> torch.Tensor:
    mask[:, :, 2, 4:6] = True
    return mask


CHANGES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "joined": lambda mask: torch.cat([mask, mask], 2)[:, :, :SEQLEN],
    "inverted": lambda mask: ~mask | True,
    "of every head": lambda mask: mask.expand(-1, 4, -1, -1),
    "moved to where it is": lambda mask: mask.to("cpu").bool().contiguous(),
    "written to": write,
    "of numbers": lambda mask: torch.zeros(mask.shape).masked_fill(~mask, -torch.inf),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_mask_is_what_it_became(name: str) -> None:
    for pattern in (causal, bidirectional):
        mask = check({"is_causal": False}, pattern, padding("left"), change=CHANGES[name])
        assert (mask.plan is None) == (name in ("written to", "of every head"))


def test_a_part_of_a_mask() -> None:
    q, k, v = (torch.randn(2, 2, n, 16) for n in (3, SEQLEN, SEQLEN))
    mask = mask_of(2, SEQLEN, SEQLEN)[:, :, -3:]
    out, _ = _attention.attention(SimpleNamespace(), q, k, v, mask, is_causal=False)
    seen = torch.ones(3, SEQLEN, dtype=torch.bool).tril(SEQLEN - 3)
    expected = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    torch.testing.assert_close(out.transpose(1, 2), expected, rtol=1e-5, atol=1e-5)


def test_a_mask_of_other_sizes_is_refused() -> None:
    q = torch.ones(2, 2, 4, 16)
    one, tokens = torch.ones(1, 2, 4, 16), padding("left")[:, :4]
    with pytest.raises(ValueError, match=r"for \[2, 1, 5, 5\].* are \[2, 1, 4, 4\]"):
        _attention.attention(SimpleNamespace(), q, q, q, mask_of(2, 5, 5))
    with pytest.raises(ValueError, match=r"for \[2, 1, 4, 4\].* are \[1, 1, 4, 4\]"):
        mask = mask_of(2, 4, 4, attention_mask=tokens)
        _attention.attention(SimpleNamespace(), one, one, one, mask)


# ---- Models whose layers say something else ----


def tokens_of(model: torch.nn.Module) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(3, model.config.vocab_size, (2, 24), generator=generator)


def assert_like_eager(model: torch.nn.Module, **inputs: torch.Tensor) -> None:
    for weights in model.parameters():
        if weights.ndim > 1:
            weights.normal_(0, 0.2)
    found = []
    for name in ("eager", NAME, PLAIN_NAME):
        model.set_attn_implementation(name)
        found.append(model(**inputs)[0])
    for other in found[1:]:
        torch.testing.assert_close(other, found[0], rtol=1e-3, atol=1e-3)


def test_phimoe_whose_layers_do_not_know_their_window() -> None:
    config = transformers.PhimoeConfig(
        vocab_size=100,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        num_local_experts=2,
        sliding_window=8,
    )
    torch.manual_seed(0)
    model = transformers.PhimoeForCausalLM._from_config(config, attn_implementation="eager").eval()
    assert_like_eager(model, input_ids=tokens_of(model))


def test_pegasus_x_whose_decoder_does_not_know_that_it_is_causal() -> None:
    config = transformers.PegasusXConfig(
        vocab_size=100,
        d_model=32,
        encoder_layers=2,
        decoder_layers=2,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        block_size=8,
        num_global_tokens=4,
    )
    torch.manual_seed(0)
    model = transformers.PegasusXModel._from_config(config, attn_implementation="eager").eval()
    ids = tokens_of(model)
    assert_like_eager(model, input_ids=ids, decoder_input_ids=ids.flip(1))

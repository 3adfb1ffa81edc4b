"""Embeds ragged random texts by an encoder in vLLM on the CPU. Prints the embeddings as JSON, with
the record of vllm_engine.py.

    python tests/engines/vllm_embed.py MODEL
"""

from __future__ import annotations

import json
import sys

import vllm_engine


def main() -> None:
    from vllm import LLM

    llm = LLM(model=sys.argv[1], runner="pooling", dtype="float32", **vllm_engine.SETTINGS)
    record = vllm_engine.Record()
    found = llm.embed(vllm_engine.prompts(), use_tqdm=False)
    print(json.dumps({"embeddings": [x.outputs.embedding for x in found], **vars(record)}))


if __name__ == "__main__":
    main()

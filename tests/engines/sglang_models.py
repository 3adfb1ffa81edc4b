"""Makes small random models of several families, as folders that SGLang loads.

python tests/engines/sglang_models.py FOLDER
"""

from __future__ import annotations

import sys
from pathlib import Path

import vllm_models

# A model with what its configuration has beside that of vLLM's tests: SGLang reads fields that
# transformers fills in by itself.
MODELS = {"llama": {}, "qwen3": {}, "gemma2": {"hidden_act": "gelu_pytorch_tanh"}}

if __name__ == "__main__":
    for name, own in MODELS.items():
        *classes, fields = vllm_models.MODELS[name]
        vllm_models.MODELS[name] = (*classes, {**fields, **own})
        vllm_models.make(name, Path(sys.argv[1]))

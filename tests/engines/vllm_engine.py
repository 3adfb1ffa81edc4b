"""What the programs that run vLLM share: its settings, prompts, how tokens are generated, and a
record of what each layer asked of this library. Imported before vLLM."""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import json
import os
import random
import sys
from collections.abc import Callable
from typing import Any

os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

SETTINGS = {
    "enforce_eager": True,
    "block_size": 32,  # prompts have several blocks
    "max_model_len": 256,
    "max_num_seqs": 4,
    "seed": 1,
}
LENGTHS = (5, 40, 97, 17, 97)
N_NEW = 12
N_LIKELIEST = 5


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


class Record:
    """Counts the calls of each layer from now on (a prefill of latent attention knows no layer's
    name), its writes to a cache, and with is_alone requests whose rows of O have other bits than
    those of a call for the request alone."""

    def __init__(self, is_alone: bool = False) -> None:
        self.calls: dict[str, int] = {}
        self.writes: dict[str, int] = {}
        self.requests_alone = self.differing = 0
        for module, (name, method) in CALLED.items():
            if module in sys.modules:  # else the layers are vLLM's own
                of_class = getattr(sys.modules[module], name)
                if method == "forward" and is_alone:
                    self._compare_each(of_class)
                self._count(of_class, method, self.calls)
                if method == "forward":
                    self._count(of_class, "do_kv_cache_update", self.writes)

    def _count(self, of_class: Any, method: str, counts: dict[str, int]) -> None:
        call = getattr(of_class, method)

        def counted(impl: Any, *arguments: Any, **named: Any) -> Any:
            layers = [x.layer_name for x in arguments if hasattr(x, "layer_name")]
            name = layers[0] if layers else "any"
            counts[name] = counts.get(name, 0) + 1
            return call(impl, *arguments, **named)

        setattr(of_class, method, counted)

    def _compare_each(self, of_class: Any) -> None:
        forward = of_class.forward
        arguments_of = inspect.signature(forward)

        def compared(impl: Any, *arguments: Any, **named: Any) -> Any:
            impl.options["batch_invariant"] = True
            o = forward(impl, *arguments, **named)
            self._compare(forward, arguments_of.bind(impl, *arguments, **named).arguments)
            return o

        of_class.forward = compared

    def _compare(self, forward: Callable, call: dict[str, Any]) -> None:
        """Computes each request of a call alone, over the same cache."""
        metadata, query, output = call["attn_metadata"], call["query"], call["output"]
        starts = metadata.query_start_loc
        for b, (begin, end) in enumerate(itertools.pairwise(starts.tolist())):
            alone = dataclasses.replace(
                metadata,
                num_actual_tokens=end - begin,
                query_start_loc=starts[b : b + 2] - begin,
                max_query_len=end - begin,
                seq_lens=metadata.seq_lens[b : b + 1],
                max_seq_len=int(metadata.seq_lens[b]),
                block_table=metadata.block_table[b : b + 1],
            )
            rows, o = slice(begin, end), output[begin:end].clone().fill_(7)
            forward(**{**call, "attn_metadata": alone, "query": query[rows], "output": o})
            self.requests_alone += 1
            self.differing += not o.equal(output[rows])


def generate(llm: Any, requests: list[Any], is_alone: bool = False) -> None:
    """Generates greedily, and prints a JSON object: tokens, for each the sorted logarithms of the
    probabilities of the likeliest, tokens of each prompt that were in the cache, and the record."""
    from vllm import SamplingParams

    record = Record(is_alone)
    sampling = SamplingParams(
        temperature=0, max_tokens=N_NEW, detokenize=False, ignore_eos=True, logprobs=N_LIKELIEST
    )
    outputs = llm.generate(requests, sampling, use_tqdm=False)
    cached = [x.num_cached_tokens for x in outputs]
    found = [x.outputs[0] for x in outputs]
    tokens = [list(x.token_ids) for x in found]
    likeliest = [[sorted(y.logprob for y in at.values()) for at in x.logprobs] for x in found]
    print(json.dumps({"tokens": tokens, "likeliest": likeliest, "cached": cached, **vars(record)}))

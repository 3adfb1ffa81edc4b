"""Measures a token of a model of transformers on a CUDA device, by flashattn.hf beside torch's
attention as transformers uses it, by hand:

    FLASHATTN_LIBRARY=build/release/libflashattn.so PYTHONPATH=bindings/python \
        python benchmarks/gpu/hf_cost.py [--repeats 7] [--tokens 32] [--layers 16]
            [--caches dynamic] [--without-cudnn] [--host]

The model is a Llama of 1.2 billion random weights in bfloat16, as Llama 3.2 1B is. Rows are batches
of prompts; "dynamic" is transformers' cache that grows, "static" a cache of fixed size with steps
that transformers compiles into CUDA graphs, as generate() does by itself. A time is the median over
the repeats, in which the attentions take turns, of the milliseconds of a token, from a device that
is idle to one that is idle again; beside it are the best repeat, and for "dynamic" what the host
needs to enqueue a token ("host"): where that is as much as the token, the host decides.

For a dynamic cache torch 2.11 takes cuDNN, which makes a plan for each length: 3 ms a layer.
--without-cudnn turns that off, so that torch takes its own kernels.

--host shows where the host's time goes, for one row and each attention, by cProfile.
"""

from __future__ import annotations

import argparse
import cProfile
import inspect
import os
import pstats
import statistics
import time
from collections.abc import Callable

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import flashattn.hf
import torch
import transformers

NAMES = "sdpa", "flashattn"
CACHES = "dynamic", "static"
ROWS = (1, 2048), (1, 32000), (8, 4096)
Token = Callable[[], None]


def llama(n_layers: int) -> torch.nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=128256,
        hidden_size=2048,
        intermediate_size=8192,
        num_hidden_layers=n_layers,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=64,
        max_position_embeddings=65536,
        tie_word_embeddings=True,
        pad_token_id=0,
        eos_token_id=None,
    )
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM._from_config(
            config, attn_implementation="sdpa", dtype=torch.bfloat16
        )
    return model.eval()


def cache_argument(model: torch.nn.Module) -> str:
    """The keyword by which the model takes its cache: transformers has renamed it."""
    names = inspect.signature(model.forward).parameters
    return next(name for name in ("cache", "past_key_values") if name in names)


class Decoding:
    """Holds a prompt's cache, and computes tokens behind it. The mask is made for each token, as
    generate() does for static caches."""

    def __init__(
        self, model: torch.nn.Module, name: str, cache: str, batch: int, prompt: int, room: int
    ) -> None:
        model.set_attn_implementation(name)
        self.model, self.is_static = model, cache == "static"
        ids = torch.randint(3, model.config.vocab_size, (batch, prompt), device="cuda")
        if self.is_static:
            self.cache = transformers.StaticCache(model.config, max_cache_len=prompt + room)
        else:
            self.cache = transformers.DynamicCache(config=model.config)
        self.keywords = {cache_argument(model): self.cache}
        model(ids, **self.keywords, logits_to_keep=1)
        self.ids = ids[:, -1:].clone()
        self.position = prompt
        self.forward = model.__call__
        if self.is_static:
            self.forward = torch.compile(model.__call__, mode="reduce-overhead")

    def token(self) -> None:
        positions = torch.full((1, 1), self.position, device="cuda")
        self.position += 1
        mask = None
        if self.is_static:
            mask = transformers.masking_utils.create_masks_for_generate(
                self.model.config,
                torch.empty((*self.ids.shape, 0), dtype=torch.bfloat16, device="cuda"),
                None,
                self.cache,
                position_ids=positions,
            )
        output = self.forward(
            self.ids, **self.keywords, attention_mask=mask, position_ids=positions
        )
        self.ids.copy_(output.logits[:, -1:].argmax(-1))


def times_of(token: Token, n: int) -> tuple[float, float]:
    """Returns the milliseconds of a token, and of them those until the host has enqueued it."""
    torch.cuda.synchronize()
    begin, host = time.perf_counter(), 0.0
    for _ in range(n):
        start = time.perf_counter()
        token()
        host += time.perf_counter() - start
        torch.cuda.synchronize()
    return (time.perf_counter() - begin) / n * 1e3, host / n * 1e3


def row(
    model: torch.nn.Module, cache: str, batch: int, prompt: int, repeats: int, n_tokens: int
) -> list[str]:
    wholes: dict[str, list[float]] = {name: [] for name in NAMES}
    hosts: dict[str, list[float]] = {name: [] for name in NAMES}
    n_warm = 8
    room = n_tokens * (repeats + 1) + n_warm
    decodings = {}
    for name in NAMES:
        decodings[name] = Decoding(model, name, cache, batch, prompt, room)
        times_of(decodings[name].token, n_warm)
    for _ in range(repeats):
        for name, decoding in decodings.items():
            model.set_attn_implementation(name)
            whole, host = times_of(decoding.token, n_tokens)
            wholes[name].append(whole)
            hosts[name].append(host)
    cells = [cache, f"{batch} x {prompt}"]
    for name in NAMES:
        cells += [
            f"{statistics.median(wholes[name]):.3f}",
            f"{min(wholes[name]):.3f}",
            f"{statistics.median(hosts[name]):.3f}",
        ]
    ratio = statistics.median(wholes["flashattn"]) / statistics.median(wholes["sdpa"])
    return [*cells, f"{ratio:.3f}"]


def show_host(model: torch.nn.Module, batch: int, prompt: int, n_tokens: int) -> None:
    for name in NAMES:
        decoding = Decoding(model, name, "dynamic", batch, prompt, 0)
        times_of(decoding.token, 8)
        profile = cProfile.Profile()
        profile.enable()
        times_of(decoding.token, n_tokens)
        profile.disable()
        print(f"\n{name}, {batch} x {prompt}, {n_tokens} tokens")
        pstats.Stats(profile).sort_stats("tottime").print_stats(30)


def main() -> None:
    parser = argparse.ArgumentParser()
    for option, default in (("--repeats", 7), ("--tokens", 32), ("--layers", 16)):
        parser.add_argument(option, type=int, default=default)
    parser.add_argument("--caches", nargs="+", choices=CACHES, default=CACHES)
    parser.add_argument("--without-cudnn", action="store_true")
    parser.add_argument("--host", action="store_true")
    arguments = parser.parse_args()
    torch.backends.cuda.enable_cudnn_sdp(not arguments.without_cudnn)
    flashattn.hf.register()
    model = llama(arguments.layers)
    n_parameters = sum(x.numel() for x in model.parameters())
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, transformers", end=" ")
    print(f"{transformers.__version__}, {n_parameters / 1e9:.2f} billion weights")
    print("milliseconds of a token: median, best, host")
    header = ["cache", "prompts", *(f"{name} {x}" for name in NAMES for x in ("", "best", "host"))]
    with torch.no_grad():
        if arguments.host:
            show_host(model, *ROWS[0], arguments.tokens)
            return
        print("  ".join(cell.strip().ljust(14) for cell in [*header, "ratio"]))
        for cache in arguments.caches:
            for batch, prompt in ROWS:
                cells = row(model, cache, batch, prompt, arguments.repeats, arguments.tokens)
                print("  ".join(cell.ljust(14) for cell in cells), flush=True)
                torch.cuda.empty_cache()


if __name__ == "__main__":
    main()

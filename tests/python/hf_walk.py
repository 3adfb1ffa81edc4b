"""Walks the models of the installed transformers with tiny random weights, against their own eager
attention: the cases of test_hf_walk.py. By hand it walks the model types that it is given, or all:

    FLASHATTN_LIBRARY=build/gcc/libflashattn.so PYTHONPATH=bindings/python \
        python tests/python/hf_walk.py [MODEL_TYPE...]

A model is compared in float32, without padding and with padding to the left and to the right, in
batches of 3, and where it generates, also by caches that grow and by static ones, which make their
windows' parts static, too. Weights are such that activations keep their size: a wrong mask changes
the result by much more than TOLERANCE of it.

Import this after pytest.importorskip("transformers").
"""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import flashattn.hf  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402
from transformers.models.auto import modeling_auto  # noqa: E402
from transformers.models.auto.configuration_auto import CONFIG_MAPPING  # noqa: E402

NAMES = "flashattn", "libfa"
LENGTHS, SEQLEN, N_NEW, VOCABULARY = (21, 13, 6), 21, 6, 128
SIDES, CACHES = ("none", "left", "right"), ("dynamic", "static")
TOLERANCE = 1e-3
PARAMETERS_MAX = 30_000_000

# ---- Tiny configurations ----

_SIZES: dict[int, tuple[str, ...]] = {
    64: (
        "hidden_size", "d_model", "n_embd", "dim", "embed_dim", "emb_dim", "embedding_size",
        "projection_dim", "hidden_dim", "intermediate_size", "ffn_dim", "encoder_ffn_dim",
        "decoder_ffn_dim", "d_ff", "n_inner", "ffn_hidden_size", "block_ff_dim", "dim_feedforward",
        "mlp_hidden_size", "intermediate_size_mlp", "dense_intermediate_size",
    ),
    32: (
        "moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size",
        "q_lora_rank", "kv_lora_rank", "hidden_size_per_layer_input", "o_lora_rank", "lru_width",
    ),
    16: (
        "head_dim", "d_kv", "attention_head_dim", "qk_nope_head_dim", "v_head_dim",
        "index_head_dim", "global_head_dim", "linear_key_head_dim", "linear_value_head_dim",
    ),
    8: (
        "qk_rope_head_dim", "rotary_dim", "sliding_window", "attention_window", "local_attention",
        "window_size",
    ),
    4: (
        "num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads",
        "decoder_attention_heads", "attention_heads", "num_encoder_attention_heads",
        "num_decoder_attention_heads", "num_experts", "num_local_experts", "n_routed_experts",
        "moe_num_experts", "index_n_heads", "linear_num_value_heads", "ngram",
    ),
    2: (
        "num_hidden_layers", "n_layer", "n_layers", "num_layers", "encoder_layers",
        "decoder_layers", "num_encoder_layers", "num_decoder_layers", "depth",
        "num_key_value_heads", "num_kv_heads", "n_kv_heads", "num_key_value_groups",
        "linear_num_key_heads", "num_global_key_value_heads",
    ),
    1: ("n_group", "topk_group", "num_experts_per_tok", "num_nextn_predict_layers"),
    VOCABULARY: ("vocab_size", "vocab_size_per_layer_input"),
    256: ("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len"),
}  # fmt: skip
SIZES = {name: size for size, names in _SIZES.items() for name in names}
TOKENS = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}

_MAY_BE_NONE = "sliding_window", "head_dim", "num_key_value_heads", "n_routed_experts"

# These models need more than the sizes above to be consistent.
OWN: dict[str, dict[str, Any]] = {"gpt_neo": {"attention_types": [[["global", "local"], 1]]}}


def tiny(model_type: str) -> transformers.PreTrainedConfig:
    return _shrunk(CONFIG_MAPPING[model_type], OWN.get(model_type, {}))


def _shrunk(kind: type, own: dict[str, Any]) -> transformers.PreTrainedConfig:
    """Returns a configuration with two layers and small sizes, and with a window where there can be
    one."""
    default = kind()
    found: dict[str, Any] = {}
    for name in (*SIZES, *TOKENS):
        value = _value(default, name)
        is_number = isinstance(value, int) and not isinstance(value, bool)
        if (is_number and value > 0) or (value is None and name in _MAY_BE_NONE):
            found[name] = SIZES.get(name, TOKENS.get(name))
        elif name in TOKENS and value is not None and value is not _UNKNOWN:
            found[name] = TOKENS[name]
    if "qk_rope_head_dim" in found:  # latent attention: heads of K and V are as many as of Q
        found.pop("head_dim", None)
        found["num_key_value_heads"] = SIZES["num_attention_heads"]
    if hasattr(default, "use_sliding_window"):
        found["use_sliding_window"] = True
    layers = _value(default, "layer_types")
    if isinstance(layers, (list, tuple)) and layers:
        kinds = list(dict.fromkeys(layers))
        found["layer_types"] = kinds if len(kinds) > 1 else kinds * 2
        found["num_hidden_layers"] = len(found["layer_types"])
    for name in default.sub_configs:
        sub = getattr(default, name, None)
        if isinstance(sub, transformers.PreTrainedConfig) and name not in own:
            found[name] = _shrunk(type(sub), OWN.get(sub.model_type, {})).to_dict()
    return kind(**{**found, **own})


_UNKNOWN = object()


def _value(config: transformers.PreTrainedConfig, name: str) -> Any:
    """Returns an attribute of a configuration; _UNKNOWN for one that it lacks, that cannot be
    set, or that differs from layer to layer."""
    own = getattr(type(config), config.attribute_map.get(name, name), None)
    if isinstance(own, property) and own.fset is None:
        return _UNKNOWN
    try:
        return getattr(config, name, _UNKNOWN)
    except Exception:
        return _UNKNOWN


# ---- Models and inputs ----


def model_of(config: transformers.PreTrainedConfig, auto: Any) -> torch.nn.Module:
    """Returns a model with eager attention, whose weights keep the size of activations."""
    with torch.device("meta"):
        empty = auto.from_config(config, attn_implementation="eager")
    n_parameters = sum(x.numel() for x in empty.parameters())
    if n_parameters > PARAMETERS_MAX:
        raise ValueError(f"the model has {n_parameters} parameters")
    torch.manual_seed(0)
    model = auto.from_config(config, attn_implementation="eager").eval().float()
    generator = torch.Generator().manual_seed(0)
    for weights in model.parameters():
        if weights.ndim > 1:
            weights.normal_(0, weights[0].numel() ** -0.5, generator=generator)
    for part in model.modules():
        if isinstance(part, torch.nn.Embedding):
            part.weight.normal_(0, 1, generator=generator)
    if getattr(model, "generation_config", None) is not None:
        model.generation_config.pad_token_id = 0
        model.generation_config.eos_token_id = None
    return model


def padding_of(side: str) -> torch.Tensor:
    mask = torch.ones(len(LENGTHS), SEQLEN, dtype=torch.long)
    for b, length in enumerate(LENGTHS):
        if side != "none":
            mask[b, slice(SEQLEN - length) if side == "left" else slice(length, None)] = 0
    return mask


def ids_of(seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (len(LENGTHS), SEQLEN), generator=generator)


Inputs = dict[str, torch.Tensor]


def inputs_of(config: transformers.PreTrainedConfig, name: str, side: str) -> list[Inputs]:
    """Returns what the model of this main_input_name may read, the likeliest first; nothing for
    padding that it does not know."""
    text = {"input_ids": ids_of(0), "attention_mask": padding_of(side)}
    if config.is_encoder_decoder:
        text["decoder_input_ids"] = ids_of(1)
    generator = torch.Generator().manual_seed(2)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(len(LENGTHS), *shape, generator=generator)

    vision = getattr(config, "vision_config", config)
    size = getattr(vision, "image_size", None) or 32
    height, width = (size, size) if isinstance(size, int) else size
    image = {"pixel_values": numbers(getattr(vision, "num_channels", 3), height, width)}
    if name == "input_ids":
        return [text, {**text, **image}]
    if side != "none":
        return []
    if name == "pixel_values":
        return [image, {**text, **image}]
    bins = getattr(config, "num_mel_bins", 80)
    decoder = {"decoder_input_ids": ids_of(1)} if config.is_encoder_decoder else {}
    shapes = {"input_values": [(4000,)], "input_features": [(64, bins), (bins, 64), (bins, 3000)]}
    return [{name: numbers(*shape), **decoder} for shape in shapes.get(name, [])]


def _first_tensor(output: Any) -> torch.Tensor:
    for name in ("logits", "last_hidden_state"):
        if isinstance(getattr(output, name, None), torch.Tensor):
            return getattr(output, name)
    return output[0]


Run = Callable[[], torch.Tensor]


def runs_of(model: torch.nn.Module) -> dict[str, list[Run]]:
    """Returns functions that compute what is compared, by names: one for each kind of inputs that
    the model may read."""

    def forward(inputs: Inputs) -> torch.Tensor:
        torch.manual_seed(0)  # some models draw numbers
        found = _first_tensor(model(**inputs))
        is_of_tokens = found.shape[:2] == (len(LENGTHS), SEQLEN) and "attention_mask" in inputs
        if is_of_tokens and not model.config.is_encoder_decoder:
            return found[inputs["attention_mask"].bool()]
        if not is_of_tokens and bool((inputs.get("attention_mask", torch.ones(1)) == 0).any()):
            raise ValueError("what comes out may be of a token that is padding")
        return found

    def generate(inputs: Inputs, cache: str) -> torch.Tensor:
        found = model.generate(
            **{name: x for name, x in inputs.items() if name != "decoder_input_ids"},
            **({} if cache == "dynamic" else {"cache_implementation": cache}),
            max_new_tokens=N_NEW,
            min_new_tokens=N_NEW,
            do_sample=False,
            output_logits=True,
            return_dict_in_generate=True,
            disable_compile=True,
        )
        return torch.stack(found.logits, 1)

    def kinds(side: str) -> list[Inputs]:
        return inputs_of(model.config, model.main_input_name, side)

    runs = {side: [partial(forward, x) for x in kinds(side)] for side in SIDES}
    if model.can_generate():
        for cache in CACHES:
            runs[cache] = [partial(generate, x, cache) for x in kinds("left") or kinds("none")]
    return runs


# ---- The walk ----


@contextmanager
def registered() -> Iterator[None]:
    for name in NAMES:
        flashattn.hf.register(name)
    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for name in NAMES:
            flashattn.hf.unregister(name)


def auto_of(model_type: str) -> Any:
    """Returns the class that makes a model of this type: with a head of language where it has
    one."""
    for auto in (transformers.AutoModelForCausalLM, transformers.AutoModelForSeq2SeqLM):
        if CONFIG_MAPPING[model_type] in auto._model_mapping.keys():
            return auto
    return transformers.AutoModel


def model_types() -> list[str]:
    mappings = modeling_auto.MODEL_MAPPING_NAMES, modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES
    return sorted(mappings[0].keys() | mappings[1].keys())


def walk(model_type: str) -> dict[str, str]:
    """Returns what came of each run under each name, "NAME RUN": "equal", "refused: ...",
    "FAILED: ..." or "WRONG: ...". Or of the model alone: {"model": "not built: ..."}. A run that
    eager attention cannot do is left out."""
    try:
        model = model_of(tiny(model_type), auto_of(model_type))
        all_runs = runs_of(model)
    except Exception as error:
        return {"model": f"not built: {_line(error)}"}
    runs: dict[str, tuple[Run, torch.Tensor]] = {}
    first_error = f"it reads {model.main_input_name}"
    for where, kinds in all_runs.items():
        for run in kinds:
            try:
                expected = run()
            except Exception as error:
                first_error = f"{where}: {_line(error)}"
                continue
            if expected.isfinite().all():
                runs[where] = run, expected
                break
    if not runs:
        return {"model": f"not run: {first_error}"}
    found = {}
    for name in NAMES:
        try:
            model.set_attn_implementation(name)
        except Exception as error:  # by this package, or by transformers
            found[name] = f"refused: {_line(error)}"
            continue
        with counted_calls() as calls:
            for where, (run, expected) in runs.items():
                found[f"{name} {where}"] = _compared(run, expected)
        if not calls:  # the model's attention is its own
            found = {x: result for x, result in found.items() if not x.startswith(name)}
            found[name] = "no call"
    return found


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    calls: list[int] = []
    mapping = transformers.AttentionInterface._global_mapping
    originals = {name: mapping[name] for name in NAMES}

    def counting(attention: Any) -> Any:
        return lambda *args, **kwargs: (calls.append(1), attention(*args, **kwargs))[1]

    mapping.update({name: counting(x) for name, x in originals.items()})
    try:
        yield calls
    finally:
        mapping.update(originals)


def _compared(run: Run, expected: torch.Tensor) -> str:
    try:
        found = run()
    except NotImplementedError as error:
        return f"refused: {_line(error)}"
    except Exception as error:
        return f"FAILED: {_line(error)}"
    if found.shape != expected.shape:
        return f"WRONG: {list(found.shape)} for {list(expected.shape)}"
    size = expected.abs().max().item()
    error = (found - expected).abs().max().item()
    return "equal" if error <= TOLERANCE * size else f"WRONG: by {error:.2e} of {size:.2e}"


def _line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:160]


def summary(found: dict[str, str]) -> str:
    """Returns one line for a model."""
    results = sorted(set(found.values()))
    if results == ["equal"]:
        return f"equal: {len(found)} runs"
    return "; ".join(f"{where}: {result}" for where, result in found.items() if result != "equal")


def main() -> None:
    transformers.logging.set_verbosity(transformers.logging.CRITICAL)
    torch.set_num_threads(1)
    with registered():
        for model_type in sys.argv[1:] or model_types():
            print(f"{model_type}: {summary(walk(model_type))}", flush=True)


if __name__ == "__main__":
    main()

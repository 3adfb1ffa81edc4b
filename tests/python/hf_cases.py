"""Models of transformers in 16 bits, by flashattn.hf and by flashattn.sdpa, against their own eager
attention: the cases of test_hf_models.py, and of tests/gpu/test_gpu_hf.py on CUDA devices.

The reference is the same model with the same weights in float32. Eager attention in 16 bits says
how far rounding alone takes a model from it, and another attention may be MARGIN times as far away.
Import this after pytest.importorskip("transformers").
"""

from __future__ import annotations

import copy
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import flashattn.hf  # noqa: E402
import flashattn.sdpa  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402
import transformers  # noqa: E402

NAME = "flashattn"
BATCHING_NAME = (
    "flashattn2"  # with a 2 continuous batching reads its pages in place on CUDA devices
)
PLAIN_NAME = "libfa"  # to names with "flash" transformers refuses chunks
MARGIN = 2.0

SIZES = {
    "vocab_size": 199,
    "hidden_size": 256,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
MODELS = {
    "llama": lambda: transformers.LlamaConfig(**SIZES, head_dim=64),
    "mistral": lambda: transformers.MistralConfig(**SIZES, head_dim=128, sliding_window=20),
    "gemma2": lambda: transformers.Gemma2Config(
        **SIZES,
        head_dim=128,
        sliding_window=20,
        query_pre_attn_scalar=128,
        attn_logit_softcapping=5.0,
    ),
    "gpt2": lambda: transformers.GPT2Config(
        vocab_size=199, n_embd=256, n_layer=2, n_head=4, **NO_DROPOUT
    ),
    "llama4": lambda: transformers.Llama4TextConfig(  # one expert: rounding may choose another one
        **SIZES,
        head_dim=64,
        intermediate_size_mlp=256,
        num_local_experts=1,
        no_rope_layer_interval=2,
        attention_chunk_size=20,
    ),
}
# TRAINED has those whose gradients are compared: also one with sinks, each token for all experts.
TRAINED = {
    **MODELS,
    "gpt_oss": lambda: transformers.GptOssConfig(
        **SIZES,
        head_dim=64,
        num_local_experts=2,
        num_experts_per_tok=2,
        sliding_window=20,
        layer_types=["sliding_attention", "full_attention"],
    ),
}
DTYPES = (torch.float16, torch.bfloat16)
SIDES = ("none", "left", "right")
CACHES = ("dynamic", "static")
OF_SDPA = ("llama", "gpt2")  # these give torch's function no mask where there is no padding
LENGTHS, SEQLEN, N_NEW = (67, 40, 3), 67, 12


@contextmanager
def registered() -> Iterator[None]:
    """The names are known and gradients are off, as in a program that uses a model."""
    names = NAME, BATCHING_NAME, PLAIN_NAME
    for name in names:
        flashattn.hf.register(name)
    try:
        with torch.no_grad():
            yield
    finally:
        for name in names:
            flashattn.hf.unregister(name)


def name_for(model: str) -> str:
    return PLAIN_NAME if model in ("llama4", "gpt_oss") else NAME


class Case:
    """Holds a model in 16 bits, the same in float32, and prompts with padding on one side."""

    def __init__(self, name: str, dtype: torch.dtype, device: str, side: str) -> None:
        generator = torch.Generator().manual_seed(1)
        self.ids = torch.randint(3, 199, (len(LENGTHS), SEQLEN), generator=generator).to(device)
        self.mask = torch.ones_like(self.ids)
        for b, length in enumerate(LENGTHS):
            if side != "none":
                self.mask[b, slice(SEQLEN - length) if side == "left" else slice(length, None)] = 0
        self.model = _model(name, dtype, device)
        self.exact = copy.deepcopy(self.model).float()

    def logits(self, model: torch.nn.Module, ids: torch.Tensor) -> torch.Tensor:
        """Returns those of all tokens, in float32, by one pass without a cache."""
        n_new = ids.shape[1] - SEQLEN
        mask = torch.nn.functional.pad(self.mask, (0, n_new), value=1)
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        output = model(ids, attention_mask=mask, position_ids=positions, use_cache=False)
        return output.logits.float()

    def gradients(self, model: torch.nn.Module) -> list[torch.Tensor]:
        """Returns those of all weights, in float32, of a loss that weighs the tokens."""
        model.zero_grad()
        with torch.enable_grad():
            weights = torch.linspace(-1, 1, self.ids.numel(), device=self.ids.device)
            logits = self.logits(model, self.ids).logsumexp(-1)
            (logits * weights.view_as(logits) * self.mask).sum().backward()
        return [x.grad.float() for x in model.parameters() if x.grad is not None]

    def generate(self, cache: str, **options: object) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns (ids, logits) of the prompts with N_NEW tokens more; the logits are those that
        each new token was chosen from, [batch, N_NEW, vocabulary]."""
        found = self.model.generate(
            self.ids,
            attention_mask=self.mask,
            max_new_tokens=N_NEW,
            do_sample=False,
            cache_implementation=cache,
            output_logits=True,
            return_dict_in_generate=True,
            **options,
        )
        return found.sequences, torch.stack(found.logits, 1).float()

    def assert_rounding_alone(
        self, found: torch.Tensor, ids: torch.Tensor, counted: torch.Tensor | slice
    ) -> None:
        """Asserts that logits are as near to those of `exact` as eager attention's.

        found     [..., vocabulary]
        ids       [batch, seqlen]: what the models read
        counted   which of the tokens `found` is of, as an index of [batch, seqlen]
        """
        expected = self.logits(self.exact, ids)[counted]
        self.model.set_attn_implementation("eager")
        allowed = (self.logits(self.model, ids)[counted] - expected).abs()
        error = (found - expected).abs()
        replay = f"errors of {error.max():.3e}, of eager attention {allowed.max():.3e}"
        assert error.isfinite().all() and error.max() <= MARGIN * allowed.max(), replay
        assert error.square().mean().sqrt() <= MARGIN * allowed.square().mean().sqrt(), replay


def _model(name: str, dtype: torch.dtype, device: str) -> torch.nn.Module:
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(
        TRAINED[name](), attn_implementation="eager"
    ).eval()
    for weights in model.parameters():  # scores large enough for softmax and softcap to matter
        if weights.ndim == 2:
            weights.mul_(4)
    model.generation_config.pad_token_id = 0
    model.generation_config.eos_token_id = None
    return model.to(device, dtype)


def check_prefill(name: str, dtype: torch.dtype, device: str, side: str) -> None:
    case = Case(name, dtype, device, side)
    case.model.set_attn_implementation(name_for(name))
    counted = case.mask.bool()
    found = case.logits(case.model, case.ids)[counted]
    case.assert_rounding_alone(found, case.ids, counted)


def check_training(name: str, dtype: torch.dtype, device: str, side: str) -> None:
    """Gradients of all weights are as near to those of `exact` as eager attention's, and have the
    same bits each time, recomputed in checkpoints too."""
    case = Case(name, dtype, device, side)
    case.model.set_attn_implementation(name_for(name))
    found = case.gradients(case.model)
    for again in (False, True):
        if again:
            case.model.train()  # which checkpoints need
            case.model.gradient_checkpointing_enable({"use_reentrant": False})
        for x, y in zip(case.gradients(case.model), found):
            assert torch.equal(x, y)
    case.model.gradient_checkpointing_disable()
    case.model.eval().set_attn_implementation("eager")
    for x, eager, expected in zip(
        found, case.gradients(case.model), case.gradients(case.exact), strict=True
    ):
        # The error of a sum whose terms cancel, as of a bias of two numbers, is a matter of chance.
        allowed = MARGIN * (eager - expected).norm() + 2.0**-9 * max(expected.norm(), 1.0)
        assert (x - expected).norm() <= allowed, (x.shape, (x - expected).norm(), allowed)


def skip_what_transformers_cannot(name: str, cache: str) -> None:
    """Before 5.20 generate() hands chunked masks an argument that they do not take."""
    chunked_mask = transformers.masking_utils.create_chunked_causal_mask
    knows_blocks = "block_sequence_ids" in inspect.signature(chunked_mask).parameters
    if name == "llama4" and cache == "static" and not knows_blocks:
        pytest.skip(f"transformers {transformers.__version__} fails to make this model's masks")


def check_generation(
    name: str,
    dtype: torch.dtype,
    device: str,
    cache: str,
    compile_options: dict[str, str] | None = None,
) -> None:
    """The tokens are the likeliest of logits that are right, so that near ties may go either way.

    compile_options   keywords of transformers' CompileConfig: transformers compiles a step, as it
                      does by itself for static caches on CUDA devices; None: it must not
    """
    skip_what_transformers_cannot(name, cache)
    case = Case(name, dtype, device, "left")
    case.model.set_attn_implementation(name_for(name))
    options: dict[str, object] = {"disable_compile": True}
    if compile_options is not None:
        config = transformers.CompileConfig(**compile_options)
        config._compile_all_devices = True
        options = {"compile_config": config}
    ids, logits = case.generate(cache, **options)
    assert torch.equal(ids[:, SEQLEN:], logits.argmax(-1))
    assert hasattr(case.model, "_compiled_call") == (compile_options is not None)
    every_row = slice(None)
    case.assert_rounding_alone(logits, ids, (every_row, slice(SEQLEN - 1, -1)))


def check_continuous_batching(name: str, dtype: torch.dtype, device: str) -> None:
    """The logits are not returned: each token must be the likeliest of `exact`, or nearly so."""
    case = Case(name, dtype, device, "left")
    case.model.set_attn_implementation(BATCHING_NAME)
    greedy = transformers.GenerationConfig(
        max_new_tokens=N_NEW, do_sample=False, eos_token_id=-1, pad_token_id=0
    )
    if "page_size" not in inspect.signature(transformers.ContinuousBatchingConfig).parameters:
        pytest.skip("continuous batching of this transformers knows no attention of others")
    small = transformers.ContinuousBatchingConfig(
        page_size=16,
        num_blocks=32,
        max_batch_tokens=128,
        max_blocks_per_request=8,
        max_requests_per_batch=4,
    )
    prompts = [row[mask.bool()].tolist() for row, mask in zip(case.ids, case.mask)]
    done = case.model.generate_batch(
        inputs=prompts,
        generation_config=greedy,
        continuous_batching_config=small,
        progress_bar=False,
    )
    new = torch.tensor([done[key].generated_tokens for key in sorted(done)], device=device)
    assert new.shape == (len(LENGTHS), N_NEW)
    ids = torch.cat([case.ids, new], 1)
    where = (slice(None), slice(SEQLEN - 1, -1))
    expected = case.logits(case.exact, ids)[where]
    case.model.set_attn_implementation("eager")
    error = (case.logits(case.model, ids)[where] - expected).abs().max()
    missing = expected.max(-1).values - expected.gather(-1, new[..., None])[..., 0]
    assert missing.max() <= 2 * MARGIN * error, (missing.max().item(), error.item())


def check_sdpa(name: str, dtype: torch.dtype, device: str) -> int:
    """transformers' own use of torch's function, which flashattn.sdpa serves. Returns how many
    calls the library got."""
    calls: list[int] = []
    attend = flashattn.sdpa._attend

    def counted(*arguments: object, **named: object) -> torch.Tensor:
        calls.append(1)
        return attend(*arguments, **named)

    case = Case(name, dtype, device, "none")
    case.model.set_attn_implementation("sdpa")
    flashattn.sdpa.register()
    torch.nn.attention.activate_flash_attention_impl(flashattn.sdpa.NAME)
    flashattn.sdpa._attend = counted
    flash = torch.nn.attention.SDPBackend.FLASH_ATTENTION
    try:
        with torch.nn.attention.sdpa_kernel(flash):
            found = case.logits(case.model, case.ids)
    finally:
        flashattn.sdpa._attend = attend
        torch.nn.attention.restore_flash_attention_impl()
    case.assert_rounding_alone(found, case.ids, slice(None))
    return len(calls)

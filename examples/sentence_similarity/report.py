"""What the demo prints: plain text, as wide as the terminal, and at most 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

import flashattn
import gpu
import numpy as np
from attention import Implementation, flash_kernel
from demo_support import columns, cpu_text, print_labelled, print_wrapped, why_no_gpu
from measure import Measurement
from model import Encoder
from text import Passage


def print_header(encoder: Encoder, sequences: Sequence[Sequence[int]]) -> None:
    lengths = np.array([len(s) for s in sequences], np.int32)
    no_gpu = why_no_gpu()
    find_kernel = flash_kernel if no_gpu else gpu.kernel
    kernel = find_kernel(lengths, encoder.n_heads, encoder.d_head)
    heads = f"{encoder.n_heads} heads of {encoder.d_head}"
    print_labelled("model", f"all-MiniLM-L6-v2, {encoder.n_layers} layers, {heads}, fp32")
    span = f"{lengths.min()} to {lengths.max()} tokens, {lengths.sum()} tokens in all"
    print_labelled("text", f"{len(lengths)} texts of {span}")
    print_labelled("device", cpu_text())
    print_labelled("gpu", no_gpu or gpu_use())
    family = flashattn.Arch(kernel.config.arch).name
    dtype = flashattn.DType(kernel.config.dtype).name
    print_labelled("kernel", f"of libflashattn's family {family}, in {dtype}")


def gpu_use() -> str:
    name = flashattn.cuda_devices()[0].name
    return f"{name}: attention runs there too, in fp16, with the copies to it and back"


def print_ranking(
    passages: Sequence[Passage], queries: Sequence[str], similarities: np.ndarray
) -> None:
    """Prints a line for each query: the nearest passage and the one after it, with their
    similarities, and a mark where the nearest is not the one that the query was written for."""
    print()
    print_wrapped(
        "Nearest passage by the cosine of flashattn's embeddings (the next one's in brackets):"
    )
    width = columns() - 44
    written = {p.query for p in passages if p.query}
    hits = 0
    for query, row in zip(queries, similarities):
        best, second = np.argsort(-row)[:2]
        hit = passages[best].query == query
        hits += hit
        mark = " " if hit or query not in written else "!"
        work = passages[best].title.split(",")[0]
        print(f"{mark} {query:{width}.{width}} {row[best]:.2f} ({row[second]:.2f}) {work}")
    print(f"{hits} of {len(written)} queries find the passage that they were written for.")


def print_comparison(measured: dict[str, Measurement], baseline: Measurement, repeats: int) -> None:
    attention_base, model_base = baseline.best_seconds()
    runs = "One run" if repeats == 1 else f"The best of {repeats} runs"
    print(f"\n{runs} over all texts; ratios to the first line:")
    print(f"{'':26}{'attention':>15}{'whole model':>16}{'largest deviation of':>22}")
    print(f"{'':26}{'ms':>8}{'ratio':>7}{'ms':>9}{'ratio':>7}{'embeddings':>12}{'attention':>10}")
    for name, measurement in measured.items():
        attention, model = measurement.best_seconds()
        print(
            f"{name:26}{attention * 1e3:8.1f}{attention_base / attention:6.1f}x"
            f"{model * 1e3:9.0f}{model_base / model:6.1f}x"
            f"{measurement.embedding_deviation(baseline):12.1e}"
            f"{max(measurement.layer_deviations(baseline)):10.1e}"
        )


def print_layers(measurement: Measurement, reference: Measurement) -> None:
    deviations = measurement.layer_deviations(reference)
    by_layer = " ".join(f"{x:.1e}" for x in deviations)
    print_wrapped(f"flashattn's attention, layer by layer: {by_layer}")


def print_verdict(failed: Sequence[Implementation]) -> None:
    for implementation in failed:
        print(f"FAILED: {implementation.name}: beyond {implementation.tolerance:.0e}")
    if not failed:
        print("OK: every deviation is within its tolerance (fp32 1e-04, fp16 1e-02).")

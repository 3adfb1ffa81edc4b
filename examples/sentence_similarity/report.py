"""What the demo prints: plain text, at most 100 columns."""

from __future__ import annotations

from collections.abc import Sequence

import flashattn
import gpu
import numpy as np
from attention import Implementation, flash_kernel
from demo_support import cpu_text, why_no_gpu
from measure import Measurement
from model import Encoder
from text import Passage


def print_header(encoder: Encoder, sequences: Sequence[Sequence[int]]) -> None:
    lengths = np.array([len(s) for s in sequences], np.int32)
    no_gpu = why_no_gpu()
    find_kernel = flash_kernel if no_gpu else gpu.kernel
    kernel = find_kernel(lengths, encoder.n_heads, encoder.d_head)
    print(
        f"model   all-MiniLM-L6-v2, {encoder.n_layers} layers, {encoder.n_heads} heads of "
        f"{encoder.d_head}, fp32\n"
        f"text    {len(lengths)} texts of {lengths.min()} to {lengths.max()} tokens, "
        f"{lengths.sum()} tokens in all\n"
        f"device  {cpu_text()}\n"
        f"gpu     {no_gpu or gpu_use()}\n"
        f"kernel  {kernel.config}\n"
        f"        {kernel.reason}"
    )


def gpu_use() -> str:
    name = flashattn.cuda_devices()[0].name
    return f"{name}: attention runs there too, in fp16, with the copies to it and back"


def print_ranking(
    passages: Sequence[Passage], queries: Sequence[str], similarities: np.ndarray
) -> None:
    """Prints a line for each query: the nearest passage and the one after it, with their
    similarities, and a mark where the nearest is not the one that the query was written for."""
    print("\nNearest passage by the cosine of flashattn's embeddings (the next one's in brackets):")
    written = {p.query for p in passages if p.query}
    hits = 0
    for query, row in zip(queries, similarities):
        best, second = np.argsort(-row)[:2]
        hit = passages[best].query == query
        hits += hit
        mark = " " if hit or query not in written else "!"
        work = passages[best].title.split(",")[0]
        print(f"{mark} {query:56.56} {row[best]:.2f} ({row[second]:.2f}) {work}")
    print(f"{hits} of {len(written)} queries find the passage that they were written for.")


def print_comparison(measured: dict[str, Measurement], baseline: Measurement, repeats: int) -> None:
    attention_base, model_base = baseline.best_seconds()
    runs = "One run" if repeats == 1 else f"The best of {repeats} runs"
    print(f"\n{runs} over all texts; ratios to the first line:")
    print(f"{'':26}{'attention':>17}{'whole model':>18}{'largest deviation of':>29}")
    print(f"{'':26}{'ms':>9}{'ratio':>8}{'ms':>10}{'ratio':>8}{'embeddings':>15}{'attention':>14}")
    for name, measurement in measured.items():
        attention, model = measurement.best_seconds()
        print(
            f"{name:26}{attention * 1e3:9.1f}{attention_base / attention:7.1f}x"
            f"{model * 1e3:10.0f}{model_base / model:7.1f}x"
            f"{measurement.embedding_deviation(baseline):15.1e}"
            f"{max(measurement.layer_deviations(baseline)):14.1e}"
        )


def print_layers(measurement: Measurement, reference: Measurement) -> None:
    deviations = measurement.layer_deviations(reference)
    print("flashattn's attention, layer by layer: " + " ".join(f"{x:.1e}" for x in deviations))


def print_verdict(failed: Sequence[Implementation]) -> None:
    for implementation in failed:
        print(f"FAILED: {implementation.name}: beyond {implementation.tolerance:.0e}")
    if not failed:
        print("OK: every deviation is within its tolerance (fp32 1e-04, fp16 1e-02).")

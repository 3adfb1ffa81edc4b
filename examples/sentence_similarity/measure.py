"""Runs the model with one attention after another: what each gives, and how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from attention import Implementation
from batch import Batch
from model import Attention, Encoder

BATCH_SIZE = 8  # sequences; small, so that padding wastes little


class Probe:
    """Passes calls on to an attention, and notes what they gave and how long they took."""

    def __init__(self, attention: Attention) -> None:
        self.attention = attention
        self.outputs: list[np.ndarray] = []
        self.seconds = 0.0

    def __call__(
        self, q: np.ndarray, k: np.ndarray, v: np.ndarray, lengths: np.ndarray
    ) -> np.ndarray:
        begin = perf_counter()
        o = self.attention(q, k, v, lengths)
        self.seconds += perf_counter() - begin
        self.outputs.append(o)
        return o


@dataclass(frozen=True)
class Run:
    """The model over all sequences, once."""

    embeddings: np.ndarray  # [sequences, width], in the order of the sequences
    attention: np.ndarray  # [layers, tokens, n_heads, d_head]: every layer's O, without padding
    attention_seconds: float
    model_seconds: float


class Measurement:
    """What one implementation gave in its first run, and its times in the later ones."""

    def __init__(self, first: Run) -> None:
        self.embeddings = first.embeddings
        self.attention = first.attention
        self._times: list[tuple[float, float]] = []

    def add(self, later: Run) -> None:
        self._times.append((later.attention_seconds, later.model_seconds))

    def best_seconds(self) -> tuple[float, float]:
        """In attention, and in the whole model, each of its best run: what else the machine does
        only ever adds to a time."""
        attention, model = zip(*self._times)
        return min(attention), min(model)

    def embedding_deviation(self, reference: Measurement) -> float:
        """The largest absolute difference of an element."""
        return float(np.abs(self.embeddings - reference.embeddings).max())

    def layer_deviations(self, reference: Measurement) -> list[float]:
        """The largest absolute difference in attention's output, layer by layer."""
        differences = np.abs(self.attention - reference.attention)
        return [float(x) for x in differences.max(axis=(1, 2, 3))]


def measure_all(
    encoder: Encoder,
    sequences: Sequence[Sequence[int]],
    implementations: Sequence[Implementation],
    repeats: int,
    progress: Callable[[str], None],
) -> dict[str, Measurement]:
    """By name. The implementations take turns, so that whatever else the machine does meets them
    all alike; a first run of each warms up and is not timed."""
    progress("warming up")
    measured = {i.name: Measurement(run(encoder, sequences, i)) for i in implementations}
    for n in range(1, repeats + 1):
        progress(f"timed run {n} of {repeats}")
        for implementation in implementations:
            measured[implementation.name].add(run(encoder, sequences, implementation))
    return measured


def batch_order(sequences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Indices of the sequences, a list a batch: like by like, so that padding wastes least."""
    order = sorted(range(len(sequences)), key=lambda i: -len(sequences[i]))
    return [order[i : i + BATCH_SIZE] for i in range(0, len(order), BATCH_SIZE)]


def run(
    encoder: Encoder, sequences: Sequence[Sequence[int]], implementation: Implementation
) -> Run:
    order = batch_order(sequences)
    batches = [implementation.make_batch([sequences[i] for i in part]) for part in order]
    probes = [Probe(implementation.attention) for _ in batches]
    begin = perf_counter()
    embedded = [encoder.embed(batch, probe) for batch, probe in zip(batches, probes)]
    seconds = perf_counter() - begin
    embeddings = np.empty((len(sequences), embedded[0].shape[1]), np.float32)
    embeddings[np.concatenate(order)] = np.concatenate(embedded)
    attention_seconds = sum(probe.seconds for probe in probes)
    return Run(embeddings, attention_outputs(batches, probes), attention_seconds, seconds)


def attention_outputs(batches: Sequence[Batch], probes: Sequence[Probe]) -> np.ndarray:
    per_batch = []
    for batch, probe in zip(batches, probes):
        per_batch.append(np.stack([real_rows(batch, o) for o in probe.outputs]))
    return np.concatenate(per_batch, axis=1)


def real_rows(batch: Batch, o: np.ndarray) -> np.ndarray:
    return batch.real_tokens(o.reshape(-1, *o.shape[-2:]))

"""The demo's main job: embed the passages and the queries with every attention implementation, rank
the passages for each query, compare and time the implementations.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import report
from attention import BASELINE, Implementation, implementations, preferred
from demo_support import print_progress, show_lines_at_once
from measure import Measurement, measure_all
from model import Encoder
from text import read_passages
from weights import Model, ModelError, load_model


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="sentence_similarity",
        description="Finds the passage that means the same as a sentence, with a pretrained "
        "transformer whose attention libflashattn computes, and compares it with other attentions.",
    )
    parser.add_argument("--query", action="append", default=[], help="a sentence of your own")
    parser.add_argument("--repeats", type=int, default=5, help="timed runs (%(default)s)")
    parser.add_argument("--model", type=Path, help="folder of the model (default: the package's)")
    parsed = parser.parse_args(arguments)
    if parsed.repeats < 1:
        parser.error(f"--repeats is {parsed.repeats}; at least 1 is needed")
    return parsed


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0, 1 when an implementation deviates too far, 2 when the demo cannot run."""
    options = parse_arguments(arguments)
    show_lines_at_once()
    try:
        model = load_model(options.model)
    except ModelError as error:
        print(f"sentence_similarity: {error}", file=sys.stderr)
        return 2
    return 0 if run_demo(model, options.query, options.repeats) else 1


def run_demo(model: Model, own_queries: Sequence[str], repeats: int) -> bool:
    """Whether every implementation stayed within the tolerance."""
    encoder = Encoder(model)
    passages = read_passages()
    queries = [p.query for p in passages if p.query] + list(own_queries)
    sequences = tokenize(model, queries + [p.text for p in passages])
    report.print_header(encoder, sequences)
    found = implementations()
    measured = measure_all(encoder, sequences, found, repeats, print_progress)
    baseline, ours = measured[BASELINE.name], measured[preferred().name]
    report.print_ranking(passages, queries, similarities(ours.embeddings, len(queries)))
    report.print_comparison(measured, baseline, repeats)
    report.print_layers(ours, baseline)
    failed = [i for i in found if not agrees(i, measured[i.name], baseline)]
    report.print_verdict(failed)
    return not failed


def tokenize(model: Model, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in model.tokenizer.encode_batch(list(texts))]


def similarities(embeddings: np.ndarray, n_queries: int) -> np.ndarray:
    """Cosines of queries and passages, which follow them: [queries, passages]."""
    return embeddings[:n_queries] @ embeddings[n_queries:].T


def agrees(
    implementation: Implementation, measurement: Measurement, reference: Measurement
) -> bool:
    deviations = measurement.layer_deviations(reference)
    deviations.append(measurement.embedding_deviation(reference))
    # Not "none is larger": a NaN is neither.
    return all(x <= implementation.tolerance for x in deviations)

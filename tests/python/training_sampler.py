"""`python tests/python/training_sampler.py` tries gradients of random problems by every door of
torch, in every way of calling it, against the formulas in float64. A problem is its number."""

from __future__ import annotations

import argparse
import importlib
import random
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import torch  # noqa: E402
from training_cases import LEAST, MOST, Case, Expected, data_of, draw, reference  # noqa: E402
from training_doors import DOORS, ON_CUDA_ALONE, WAYS, around  # noqa: E402

TOLERANCES = {"bfloat16": 2e-2, "float16": 5e-3, "float32": 2e-4}
RARE = {"inductor": 0.05, "graphed": 0.6, "captured": 0.6}


def choice(number: int, device: str, of_jax: bool = False) -> tuple:
    """Returns (door, way, case) of a number."""
    r = random.Random(number)
    while of_jax:
        door = r.choice(("ops", "ops_varlen"))
        case = draw(r, door)
        if not case.dropout_p:
            return door, r.choice(training_jax().WAYS), case
    while True:
        door, way = r.choice(list(DOORS)), r.choice(list(WAYS))
        case = draw(r, door)
        if r.random() < RARE.get(way, 1.0) and _goes(door, way, case, device):
            return door, way, case


def _goes(door: str, way: str, case: object, device: str) -> bool:
    if device == "cpu" and (way in ON_CUDA_ALONE or (door == "sdpa" and case.dropout_p)):
        return False
    if case.dtype == "float32" and (way == "autocast" or (door == "sdpa" and device != "cpu")):
        return False
    draws = case.dropout_p > 0 and not door.startswith("ops")
    if draws and way in ("inductor", "graphed", "captured", "twice", "transformed"):
        return False  # another state, or none that the test could know
    if door == "hf" and way in ("compiled", "inductor"):
        return False  # the graph breaks there
    return not (door == "hf" and case.leftpad and way in ("graphed", "captured"))


def training_jax() -> Any:
    return importlib.import_module("training_jax")


def _poison() -> None:
    """Leaves NaN in what torch's allocator hands out next."""
    torch.cuda.empty_cache()
    sizes = [2**26] + [2**17] * 32  # of the two pools
    leavings = [torch.full((size,), torch.nan, device="cuda") for size in sizes]
    del leavings


def check(number: int, device: str, of_jax: bool = False) -> tuple[str, str, float, str]:
    """Returns (door and way, verdict, error, what it was): ok, refused or FAILED."""
    door, way, case = choice(number, device, of_jax)
    data = data_of(case, number, device)
    if case.dropout_p and not door.startswith("ops"):
        torch.manual_seed(number)
        data.rng_state = torch.randint(LEAST, MOST, (2,), dtype=torch.int64, device=device)
    expected = reference(case, data)
    leaves = [x.detach().clone().requires_grad_() for x in data.leaves]
    name = f"{'jax_' * of_jax}{door}/{way}"
    replay = f"{number} {name} {case}"
    if device == "cuda":
        _poison()
    try:
        with around(door):
            torch.manual_seed(number)
            if of_jax:
                found, results = training_jax().run(way, case, data)
            else:
                found, results = WAYS[way](case, data, DOORS[door](case, data), leaves)
    except NotImplementedError as error:
        return name, "refused", 0.0, f"{str(error)[:150]}: {replay}"
    except Exception as error:
        return name, "FAILED", 0.0, f"{replay}: {type(error).__name__}: {str(error)[:400]}"
    try:
        worst = _compare(case, expected, found, results)
    except AssertionError as error:
        return name, "FAILED", 1.0, f"{error}: {replay}"
    return name, "ok", worst, replay


def _compare(case: Case, expected: Expected, found: list, results: tuple) -> float:
    """Returns the largest error, beside what is allowed. Raises AssertionError beyond that."""
    names, roundings = ("dq", "dk", "dv", "d_sinks"), expected.roundings
    pairs = [
        (name, x, y, rounding)
        for name, x, y, rounding in zip(names, found, expected.gradients, roundings)
        if x is not None
    ]
    largest = max((float(y.abs().max()) for _, _, y, _ in pairs if y.numel()), default=0.0)
    worst = 0.0
    for name, x, y, rounding in [("o", results[0], expected.o, 0.0), *pairs]:
        assert x.shape == y.shape, (name, tuple(x.shape), tuple(y.shape))
        if not y.numel():
            continue
        assert x.isfinite().all(), f"{name} is not finite"
        scale = max(float(y.abs().max()), largest / 10 if name != "o" else 0.0, 1e-3)
        allowed = TOLERANCES[case.dtype] * scale + 2 * rounding
        error = float((x.detach().double() - y).abs().max())
        assert error <= allowed, f"{name} is {error:.2e} away, allowed is {allowed:.2e}"
        worst = max(worst, error / allowed)
    if len(results) > 1 and expected.lse.numel():
        own, is_seen = results[1].detach().double(), expected.lse.isfinite()
        assert torch.equal(own.isfinite(), is_seen), "LSE of rows that see nothing"
        error = (own - expected.lse)[is_seen].abs() / expected.lse[is_seen].abs().clamp(min=1)
        assert not error.numel() or error.max() <= 2e-3, f"LSE is {error.max():.1e} away"
    return worst


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--first", type=int, default=0, help="the number of the first problem")
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--only", type=int, nargs="*", help="numbers to try, no others")
    parser.add_argument("--jax", action="store_true", help="the door of JAX")
    options = parser.parse_args()
    begin, counts, worst = time.perf_counter(), Counter(), (0.0, "")
    of_ways, shown = Counter(), Counter()
    numbers = iter(options.only or range(options.first, options.first + 10**6))
    for number in numbers:
        if time.perf_counter() - begin > options.seconds:
            break
        name, verdict, error, text = check(number, options.device, options.jax)
        counts[verdict] += 1
        of_ways[name] += 1
        if verdict == "ok":
            worst = max(worst, (error, text))
            continue
        key = verdict + text[:60]
        shown[key] += 1
        if shown[key] <= 2 or options.only:
            print(verdict, " ".join(text.split()), flush=True)
    print(f"worst of its tolerance: {worst[0]:.2f}: {worst[1]}")
    print(f"{len(of_ways)} of door x way; {dict(counts)}; repeats "
          + "; ".join(f"{n} x {k}" for k, n in shown.items() if n > 2))  # fmt: skip
    return int(counts["FAILED"] > 0)


if __name__ == "__main__":
    sys.exit(main())

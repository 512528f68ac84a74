"""How often intervals of a difference hold the truth: resampled evaluation sets of real models' outputs.

usage: python -m benchmarks.coverage [--sets 1000] [--sizes 100 400 2000] [--keep FOLDER]
       (needs QUANTMILL_DATA, default ../shared/data)

Each case is quantized once, and float and quantized outputs of its whole evaluation set are taken once (--keep holds
them for the next call). That set is the population: its difference is the truth. Evaluation sets are drawn from it
with replacement, and each gives a 95 % interval of the drop of top-1 and of what cross entropy (as perplexity) rises
by. A share of them between 93 and 97 % should hold the truth.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.cases import THREADS, W4A4, case_of, data_folder, source
from service.contracts.config import parse_config
from worker.quantizer.data import choose_batch_size, open_dataset
from worker.quantizer.evaluation.certainty import difference_of
from worker.quantizer.evaluation.contributions import Contributions, DenseSums, Hits, quotients
from worker.quantizer.evaluation.metrics.distances import log_softmax
from worker.quantizer.intake.inspect import open_model
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.runtime.session import Session

RECIPES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("MobileNetV1 0.75", "int8 per channel", {"preset": "int8", "weight": {"granularity": "per_channel"}}),
    ("ResNet20", "XINT8", {"preset": "xint8"}),
    ("ResNet20", "W4A4", W4A4),
    ("KWS DS-CNN", "XINT8", {"preset": "xint8"}),
)


class Outputs(NamedTuple):
    """Scores [n, class] of both models, and labels [n]."""

    float_: np.ndarray
    quantized: np.ndarray
    labels: np.ndarray


def collected(folder: Path, name: str, recipe: dict[str, Any]) -> Outputs:
    """Quantize and take all outputs."""
    case = case_of(name)
    calibration, evaluation = source(folder, case.calibration), source(folder, case.evaluation)
    config = parse_config({**recipe, "evaluation": {"latency_runs": 1, "layer_samples": 1}})
    model = quantize(folder / case.model, config, calibration, None, run=SilentRun(), threads=THREADS).model
    uploaded = open_model(folder / case.model)
    data = open_dataset(Path(evaluation.path), evaluation.preprocessing)
    inputs = uploaded.summary.inputs
    sessions = uploaded.session(threads=THREADS, what="model"), Session(model, threads=THREADS)
    found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
    for batch in data.batches(inputs, choose_batch_size(inputs, data, 8)):
        for session, kept in zip(sessions, found, strict=True):
            kept.append(batch.cut(session.run(batch.feeds)[0]).reshape(batch.valid, -1))
    return Outputs(np.concatenate(found[0]), np.concatenate(found[1]), np.asarray(data.labels))


def kept(folder: Path, keep: Path | None, name: str, words: str, recipe: dict[str, Any]) -> Outputs:
    """The outputs, taken or read."""
    path = None if keep is None else keep / f"{name} {words}.npz".replace(" ", "_")
    if path is None or not path.is_file():
        found = collected(folder, name, recipe)
        if path is not None:
            np.savez(path, **found._asdict())
        return found
    with np.load(path) as stored:
        return Outputs(**stored)


def top1(outputs: Outputs) -> tuple[Contributions, Contributions]:
    """Of the float and the quantized model."""
    found = []
    for scores in outputs[:2]:
        hits = Hits()
        right = scores.argmax(axis=1) == outputs.labels
        hits.add(np.stack([right, np.ones_like(right)], axis=1).astype(np.uint8), samples=len(right))
        found.append(hits)
    return found[0], found[1]


def perplexity(outputs: Outputs) -> tuple[Contributions, Contributions]:
    """Of the quantized and the float model: less is better."""
    found = []
    for scores in outputs[1::-1]:
        own = np.take_along_axis(_log_probability(scores), outputs.labels[:, None], axis=1)
        sums = DenseSums(lambda each: np.exp(quotients(each[:, 0], each[:, 1])))
        sums.add(np.concatenate([-own, np.ones_like(own)], axis=1), samples=len(own))
        found.append(sums)
    return found[0], found[1]


def _log_probability(scores: np.ndarray) -> np.ndarray:
    is_share = bool(scores.min() >= 0) and bool(np.allclose(scores.sum(axis=1), 1.0, atol=1e-3))
    return np.log(np.maximum(scores.astype(np.float64), 1e-12)) if is_share else log_softmax(scores)


METRICS: dict[str, Callable[[Outputs], tuple[Contributions, Contributions]]] = {"top1": top1, "perplexity": perplexity}


def coverage(outputs: Outputs, metric: str, size: int, sets: int) -> tuple[float, float, float]:
    """The true difference, the share of intervals that hold it in percent, and their mean width."""
    pair = METRICS[metric](outputs)
    truth = pair[0].value - pair[1].value
    draw, held, widths = np.random.default_rng(size), 0, []
    for _ in range(sets):
        chosen = draw.integers(0, len(outputs.labels), size)
        found = difference_of(*METRICS[metric](Outputs(*(array[chosen] for array in outputs))), 0.95)
        if found is None or found.interval is None:
            sys.exit(f"no interval of {metric} for {size} samples")
        held += found.interval.low <= truth <= found.interval.high
        widths.append(found.interval.high - found.interval.low)
    return truth, 100.0 * held / sets, float(np.mean(widths))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sets", type=int, default=1000)
    parser.add_argument("--sizes", type=int, nargs="+", default=[100, 400, 2000])
    parser.add_argument("--metrics", nargs="+", choices=list(METRICS), default=list(METRICS))
    parser.add_argument("--keep", type=Path, help="folder for the outputs")
    options = parser.parse_args()
    folder = data_folder()
    print("| model | recipe | metric | samples | true change for the worse | covered % | mean width |")
    print("|---|---|---|---|---|---|---|")
    for name, words, recipe in RECIPES:
        outputs = kept(folder, options.keep, name, words, recipe)
        for metric in options.metrics:
            for size in options.sizes:
                truth, held, width = coverage(outputs, metric, size, options.sets)
                print(f"| {name} | {words} | {metric} | {size} | {truth:.3f} | {held:.1f} | {width:.3f} |", flush=True)


if __name__ == "__main__":
    main()

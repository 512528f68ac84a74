"""How good estimates are: what ten earlier jobs, drawn at random, teach of all others.

python -m benchmarks.estimates RUNS.jsonl [--draws 500] [--history 10] [--stages]

RUNS.jsonl is of ``benchmarks.estimate_runs``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import statistics
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from service.contracts.config import parse_config
from service.contracts.dataset import DatasetSummary
from service.contracts.model import ModelSummary
from service.estimates.forecast import PastRun, forecast
from service.estimates.prior import START, prior_of


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path)
    parser.add_argument("--draws", type=int, default=500)
    parser.add_argument("--history", type=int, default=10)
    parser.add_argument("--stages", action="store_true", help="Also what each stage took beside what it should have.")
    asked = parser.parse_args()
    lines = [json.loads(line) for line in asked.runs.read_text().splitlines()]
    runs = [_run(line) for line in lines if line["observed"] is not None]
    print(f"{len(runs)} runs of {len({run.model for run in runs})} models")
    if asked.stages:
        _print_stages(runs)
    errors: dict[str, list[tuple[float, float, float, bool]]] = defaultdict(list)
    for draw in range(asked.draws):
        _replay(runs, random.Random(draw), asked.history, errors)
    every = [error for found in errors.values() for error in found]
    for basis, found in [*sorted(errors.items()), ("all", every)]:
        _print(basis, found)


@dataclass(frozen=True)
class _Run:
    """One of the file: of which model, the seconds of its stages, and how it is learned from."""

    model: str
    stages: dict[str, float]
    past: PastRun


def _run(line: dict[str, Any]) -> _Run:
    config = parse_config(line["config"])
    prior = prior_of(
        config,
        ModelSummary.model_validate(line["model_summary"]),
        DatasetSummary.model_validate(line["calibration"]),
        DatasetSummary.model_validate(line["evaluation"]),
    )
    stages: dict[str, float] = defaultdict(float)
    for stage in line["observed"]["stages"]:
        stages[stage["name"]] += stage["seconds"]
    stages[START] = max(line["seconds"] - sum(stages.values()), 0.0)
    memory = max(stage["peak_rss_bytes"] for stage in line["observed"]["stages"])
    size_bytes = line["observed"]["size_bytes"]
    return _Run(line["model"], stages, PastRun(line["preset"], prior, sum(stages.values()), memory, size_bytes))


def _replay(
    runs: Sequence[_Run], dice: random.Random, history: int, errors: dict[str, list[tuple[float, float, float, bool]]]
) -> None:
    """Some runs are what was; each of the others is what comes next."""
    before = dice.sample(range(len(runs)), history)
    for k, run in enumerate(runs):
        if k in before:
            continue
        came = run.past
        told = forecast(came.prior, came.recipe, [runs[j].past for j in before if runs[j].model == run.model])
        within = told.seconds[1] <= came.seconds <= told.seconds[2]
        errors[told.basis].append(
            (
                math.log(told.seconds[0] / came.seconds),
                told.memory_bytes[0] / came.memory_bytes,
                told.size_bytes[0] / came.size_bytes,
                within,
            )
        )


def _print(basis: str, found: Sequence[tuple[float, float, float, bool]]) -> None:
    seconds = [abs(error[0]) for error in found]
    close = statistics.mean(1 / 1.3 <= math.exp(e[0]) <= 1.3 for e in found)
    double = statistics.mean(value <= math.log(2) for value in seconds)
    short = statistics.mean(error[1] < 0.8 for error in found)
    sizes = statistics.mean(0.95 <= error[2] <= 1.05 for error in found)
    print(
        f"{basis:8} {len(found):6} estimates: seconds within 30 % {close:.0%}, within a factor of two {double:.0%}, "
        f"in their range {statistics.mean(error[3] for error in found):.0%}; memory too little by more than 20 % "
        f"{short:.2%} (least {min(error[1] for error in found):.2f}, "
        f"median {statistics.median(error[1] for error in found):.2f}); size within 5 % {sizes:.0%}"
    )


def _print_stages(runs: Sequence[_Run]) -> None:
    ratios, shares = defaultdict(list), defaultdict(float)
    for run in runs:
        for name, taken in run.stages.items():
            ratios[name].append((taken + 0.01) / (run.past.prior.stages.get(name, 0.0) + 0.01))
            shares[name] += taken / run.past.seconds / len(runs)
    for name, share in sorted(shares.items(), key=lambda item: -item[1]):
        found = sorted(ratios[name])
        tenth = len(found) // 10
        print(
            f"  {name:32} {share:6.1%} of a job; took {found[tenth]:.2f} .. {statistics.median(found):.2f} .. "
            f"{found[-1 - tenth]:.2f} of what it should"
        )


if __name__ == "__main__":
    main()

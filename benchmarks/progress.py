"""How well a job tells how far it has come: the error of its forecast, from half-way on, on real models.

python -m benchmarks.progress [--phases] [JOB ...]
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from benchmarks.cases import CASES, THREADS, W4A4, case_of, data_folder, source
from service.contracts.config import parse_config
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.run.progress import Phase, TimeLeft

JUDGED_FROM_SECONDS = 20.0
GRADIENT = {"method": "adaround", "solver": "gradient", "num_iterations": 300, "data_size": 64}
JOBS: dict[str, tuple[str, dict[str, Any]]] = {
    "mnist": ("MNIST CNN", {"preset": "int8"}),
    "kws": ("KWS DS-CNN", {"preset": "int8_accurate"}),
    "resnet20-adaround": ("ResNet20", {"preset": "int8", "algorithms": [{"method": "adaround"}]}),
    "resnet20-gradient": ("ResNet20", {"preset": "int8", "algorithms": [GRADIENT]}),
    "resnet20-qat": ("ResNet20", {**W4A4, "algorithms": [{"method": "qat", "epochs": 3, "data_size": 400}]}),
    "resnet32": ("ResNet32", {"preset": "int8_accurate"}),
    "mobilenet-v1": (
        "MobileNetV1 0.75",
        {
            "preset": "int8",
            "algorithms": [
                {"method": "cross_layer_equalization"},
                {"method": "bias_correction"},
                {"method": "adaround"},
            ],
        },
    ),
    "mobilenet-v2": ("MobileNetV2 1.0", {"preset": "int8"}),
    "kwt1-smooth": ("KWT-1", {"preset": "int8", "algorithms": [{"method": "smooth_quant"}]}),
}


@dataclass(frozen=True)
class Told:
    """What was told at one moment: seconds since the beginning, share, seconds left."""

    at: float
    share: float
    left: float


class Recorder(SilentRun):
    """Remembers what it is told of the whole."""

    def __init__(self) -> None:
        self.begin = time.monotonic()
        self.told: list[Told] = []
        self.expected: list[Phase] = []

    def overall(self, share: float, seconds_left: float) -> None:
        self.told.append(Told(time.monotonic() - self.begin, share, seconds_left))


def run_job(name: str, *, phases: bool) -> bool:
    """Run a job and print what its forecast was worth; False if it broke its promise."""
    case_name, settings = JOBS[name]
    case, folder, recorder = case_of(case_name), data_folder(), Recorder()
    expect = TimeLeft.expect

    def noted(forecast: TimeLeft, expected: Sequence[Phase]) -> None:
        recorder.expected = recorder.expected or list(expected)
        expect(forecast, expected)

    calibration, evaluation = (source(folder, part) for part in (case.calibration, case.evaluation))
    with mock.patch.object(TimeLeft, "expect", noted):
        result = quantize(
            folder / case.model, parse_config(settings), calibration, evaluation, run=recorder, threads=THREADS
        )
    total, told = time.monotonic() - recorder.begin, recorder.told
    assert all(one.share <= other.share for one, other in itertools.pairwise(told)), "the share went back"
    assert told[-1].share == 1.0 and told[-1].left == 0.0, "the end is not 100 %"
    late = [one for one in told[:-1] if one.at >= total / 2]
    half = late[0]
    off = max(abs(one.at + one.left - total) / total for one in late)
    share_off = max(abs(one.share - one.at / total) for one in late)
    left_off = abs(half.left - (total - half.at)) / (total - half.at)
    holds = total < JUDGED_FROM_SECONDS or off <= 0.25
    print(
        f"{name:20} {total:7.1f} s  at half-way {half.at / total:4.0%}: share {half.share:4.0%}, "
        f"left {half.left:6.1f} s of {total - half.at:6.1f} s ({left_off:4.0%} off); "
        f"worst from then on: end {off:4.0%} off, share {share_off:4.0%} off  {'' if holds else 'BROKEN'}",
        flush=True,
    )
    if phases:
        expected = {phase.name: phase.seconds for phase in recorder.expected}
        words = (f"{stage.name} {stage.seconds:.2f} ({_words(expected, stage.name)})" for stage in result.report.stages)
        print("    " + ", ".join(words))
        for share in (0.1, 0.25, 0.5, 0.75, 0.9):
            one = next(one for one in told if one.at >= share * total)
            print(
                f"    at {one.at:6.1f} s: share {one.share:4.0%}, left {one.left:6.1f} s (really {total - one.at:6.1f})"
            )
    return holds


def _words(expected: dict[str, float], name: str) -> str:
    return f"{expected[name]:.2f} expected" if name in expected else "not expected"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", nargs="*", help=f"of {', '.join(JOBS)}; default: all")
    parser.add_argument("--phases", action="store_true", help="what each stage took")
    given = parser.parse_args()
    assert {job[0] for job in JOBS.values()} <= {case.name for case in CASES}
    results = [run_job(name, phases=given.phases) for name in given.jobs or JOBS]
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()

"""Sensitivity against brute force, mixed precision, and the autopilot on real models.

usage: python -m benchmarks.precision [sensitivity | mixed | combinations | autopilot ...] [--models NAME ...]
                                                   (needs QUANTMILL_DATA, default ../shared/data)

sensitivity: cost of the ranking, in bare passes of the float model over the calibration set and in evaluations of one
quantized model on it, as a report's stage does them; and Spearman's correlation with one quantized model per layer,
evaluated on the whole calibration set. mixed: drop and share of 8-bit weights.
combinations: the named ones at the same limit of the output's distance: how many layers come out with which types.
autopilot: verdict, size and latency beside plain per-channel INT8.
"""

from __future__ import annotations

import argparse
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from benchmarks.calibration import bare_pass
from benchmarks.cases import CASES, THREADS, Case, data_folder, source
from service.contracts.algorithms.precision import Combination
from service.contracts.config import parse_config
from service.contracts.report import Report
from service.contracts.search import Sensitivity
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun

MOBILENETS = ("MobileNetV1 0.75", "MobileNetV2 1.0")
PILOTED = (*MOBILENETS, "ResNet20", "KWS DS-CNN", "KWT-1")
# Between what all layers give at the higher and at the lower level.
LIMITS_DB = {"ResNet20": 29.0, "KWT-1": 25.0}
_QUICK = {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}
PER_TENSOR: dict[str, Any] = {"preset": "plain", "weight": {"granularity": "per_tensor"}, "evaluation": _QUICK}


class Watch(SilentRun):
    """Takes the time of the ranking, from its first word to its last."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()
        self.told_at: list[float] = []

    def progress(self, stage: str, done: int = 0, total: int | None = None, unit: str = "", message: str = "") -> None:
        if stage == "sensitivity":
            self.told_at.append(time.perf_counter())


class Talking(Watch):
    """Prints what the run says, with the time."""

    def log(self, message: str, level: str = "info") -> None:
        print(f"    {time.perf_counter() - self._begin:6.1f} s  {message}", flush=True)


def run(
    folder: Path, case: Case, settings: dict[str, Any], *, on_calibration: bool = False, how: SilentRun | None = None
) -> Result:
    calibration = source(folder, case.calibration)
    evaluation = None if on_calibration else source(folder, case.evaluation)
    config = parse_config(settings)
    return quantize(folder / case.model, config, calibration, evaluation, run=how or SilentRun(), threads=THREADS)


def seconds(report: Report, stage: str) -> float:
    return sum(entry.seconds for entry in report.stages if entry.name == stage)


def sensitivity(folder: Path, case: Case) -> None:
    from scipy.stats import spearmanr

    # a goal that anything meets: no more than one evaluation follows the ranking
    step = {"method": "mixed_precision", "combination": "A8W16_A8W8", "goal": {"kind": "drop", "max_drop": 100.0}}
    watch = Watch()
    result = run(folder, case, {**PER_TENSOR, "algorithms": [step]}, on_calibration=True, how=watch)
    (file,) = [file for file in result.files if file.kind == "sensitivity_json"]
    found = Sensitivity.model_validate_json(file.content)
    spent = watch.told_at[-1] - watch.told_at[0]
    cost = spent / bare_pass(folder, case.name)["bare"]
    brute, evaluations = {}, []
    for layer in found.layers:
        alone = {**PER_TENSOR, "include": [{"node": layer.node}]}
        report = run(folder, case, alone, on_calibration=True).report
        brute[layer.node] = -(report.fidelity.sqnr_db or 0.0)
        evaluations.append(seconds(report, "evaluation"))
    whole = spent / float(np.median(evaluations))
    ranks = spearmanr([layer.levels["low"].both for layer in found.layers], list(brute.values())).statistic
    counts = f"{len(found.layers)} | {found.samples}"
    print(f"| {case.name} | {counts} | {spent:.1f} | {cost:.1f} | {whole:.1f} | {ranks:.3f} |", flush=True)


def mixed(folder: Path, case: Case) -> None:
    equalized, corrected = {"method": "cross_layer_equalization"}, {"method": "bias_correction", "mode": "full"}
    for combination in ("A16W16_A8W8", "A8W16_A8W8"):
        step = {"method": "mixed_precision", "combination": combination, "goal": {"kind": "drop", "max_drop": 0.5}}
        for name, steps in (("alone", [step]), ("equalized and corrected", [equalized, step, corrected])):
            report = run(folder, case, {**PER_TENSOR, "algorithms": steps}).report
            weights = [layer.weight_dtype for layer in report.layers if layer.weight_dtype is not None]
            share = 100.0 * np.mean([dtype == "int8" for dtype in weights])
            top1 = report.float_.metrics["top1"], report.quantized.metrics["top1"]
            spent = seconds(report, "mixed_precision")
            row = f"{combination} {name} | {top1[0]:.2f} | {top1[1]:.2f} | {share:.0f} %"
            print(f"| {case.name} | {row} | {spent:.1f} |", flush=True)


def combinations(folder: Path, case: Case) -> None:
    goal = {"kind": "distance", "metric": "sqnr", "limit": LIMITS_DB[case.name]}
    for combination in get_args(Combination):
        step = {"method": "mixed_precision", "combination": combination, "goal": goal}
        settings = {"preset": "plain", "calibration_samples": 200, "algorithms": [step]}
        report = run(folder, case, settings, on_calibration=True).report
        weights = Counter(layer.weight_dtype for layer in report.layers if layer.weight_dtype is not None)
        inputs = Counter(layer.activation_dtype for layer in report.layers if layer.weight_dtype is not None)
        words = [", ".join(f"{n} {dtype}" for dtype, n in sorted(found.items())) for found in (inputs, weights)]
        (step_figures,) = report.algorithms
        met = "met" if "goal met" in step_figures.summary else "missed"
        figures = f"{words[0]} | {words[1]} | {report.fidelity.sqnr_db:.1f} | {report.quantized.size_bytes}"
        print(f"| {case.name} | {combination} | {met} | {step_figures.nodes} | {figures} |", flush=True)


def autopilot(folder: Path, case: Case) -> None:
    step = {"method": "autopilot", "goal": {"kind": "drop", "max_drop": 0.5}}
    report = run(folder, case, {"preset": "plain", "algorithms": [step]}, how=Talking()).report
    plain = run(folder, case, {"preset": "plain"}).report
    rows = []
    for one in (report, plain):
        ratio = (one.quantized.latency_ms or 0.0) / (one.float_.latency_ms or 1.0)
        rows.append(f"{one.quantized.metrics['top1']:.2f} | {one.quantized.size_bytes} | {ratio:.2f}")
    chosen = next(trial.name for trial in report.algorithms[0].search.trials if trial.chosen)  # type: ignore[union-attr]
    spent = seconds(report, "autopilot")
    top1 = report.float_.metrics["top1"]
    print(
        f"| {case.name} | {top1:.2f} | {report.verdict} | {chosen} | {rows[0]} | {rows[1]} | {spent:.0f} |", flush=True
    )


TABLES = {
    "sensitivity": (
        sensitivity,
        MOBILENETS,
        "| model | layers | samples | s | x bare float pass | x evaluation | Spearman |\n|---|---|---|---|---|---|---|",
    ),
    "mixed": (mixed, MOBILENETS, "| model | mix | float | quantized | 8-bit weights | s |\n|---|---|---|---|---|---|"),
    "combinations": (
        combinations,
        tuple(LIMITS_DB),
        "| model | combination | goal | lowered | activations | weights | dB | bytes |\n" + "|---" * 8 + "|",
    ),
    "autopilot": (
        autopilot,
        PILOTED,
        "| model | float | verdict | recipe | top-1 | bytes | latency | plain top-1 | bytes | latency | s |\n"
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", default=list(TABLES), choices=[*TABLES, []])
    parser.add_argument("--models", nargs="+", help="beginnings of names")
    arguments = parser.parse_args()
    folder = data_folder()
    for table in arguments.tables:
        measure, names, head = TABLES[table]
        print(f"\n{head}")
        for case in CASES:
            if case.name in names and (not arguments.models or case.name.startswith(tuple(arguments.models))):
                measure(folder, replace(case))


if __name__ == "__main__":
    main()

"""What the advice of bad recipes gives, applied as it stands; prints a table of docs/benchmarks.md.

usage: python -m benchmarks.advice [--models WORD ...] [--recipes WORD ...] [--seconds S]
                                                                 (needs QUANTMILL_DATA, default ../shared/data)

Every row: a labelled model under a recipe that hurts it, the first advice of the report, and the figure of the model
that ``quantmill apply-advice`` and ``quantmill quantize --config`` make of it.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

from benchmarks.cases import CASES, THREADS, W4A4, Case, data_folder, source
from service.contracts.config import QuantizationConfig, advised_config, parse_config
from service.contracts.report import Report
from service.quark import read_config
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun


def quark(**options: Any) -> QuantizationConfig:
    """AMD Quark's recipe for its NPU with cross-layer equalization."""
    recipe = {
        "quant_format": "QDQ",
        "calibrate_method": "MinMSE",
        "activation_type": "QUInt8",
        "weight_type": "QInt8",
        "enable_npu_cnn": True,
        "include_cle": True,
        "extra_options": {"ActivationSymmetric": True, **options},
    }
    return read_config({"format": "quark", "config": {"global_quant_config": recipe}})


RECIPES: dict[str, QuantizationConfig] = {
    "Quark's XINT8 + CLE": quark(),
    "Quark's XINT8 + CLE, ReLU6 dropped": quark(ReplaceClip6Relu=True, CLESteps=1, CLEScaleAppendBias=True),
    "XINT8": parse_config({"preset": "xint8"}),
    "A8W8 per tensor": parse_config({"preset": "plain", "weight": {"granularity": "per_tensor"}}),
    "W4A4": parse_config({**W4A4, "algorithms": []}),
}


def report_of(case: Case, config: QuantizationConfig, seconds: float) -> Report:
    folder = data_folder()
    evaluation = {"layer_samples": 1, "latency_runs": 1, "advice_seconds": seconds}
    whole = parse_config({**config.model_dump(mode="json"), "evaluation": evaluation})
    calibration, measured = source(folder, case.calibration), source(folder, case.evaluation)
    return quantize(folder / case.model, whole, calibration, measured, run=SilentRun(), threads=THREADS).report


def row(case: Case, name: str, config: QuantizationConfig, seconds: float) -> str:
    before = report_of(case, config, seconds)
    lost = f"{before.float_.metrics['top1']:.2f} | {before.quantized.metrics['top1']:.2f}"
    advice = next((advice for advice in before.advice if advice.config), None)
    if advice is None:
        return f"| {case.name} | {name} | {lost} | none | | | |"
    begin = time.perf_counter()
    after = report_of(case, advised_config(before.manifest.config, advice.config), 0.0)
    told = "-" if advice.figure is None or advice.figure.after is None else f"{advice.figure.after:.2f}"
    spent = sum(stage.seconds for stage in before.stages if stage.name == "advice")
    figures = f"{told} | {after.quantized.metrics['top1']:.2f} | {spent:.0f} / {time.perf_counter() - begin:.0f}"
    return f"| {case.name} | {name} | {lost} | `{advice.code}` | {figures} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", default=[""], help="words of the models wanted")
    parser.add_argument("--recipes", nargs="+", default=[""], help="words of the recipes wanted")
    parser.add_argument("--seconds", type=float, default=60.0, help="evaluation.advice_seconds")
    arguments = parser.parse_args()
    print("| model | recipe | float | before | first advice | its figure | applied | advice / again s |")
    print("|---|---|---|---|---|---|---|---|")
    for case in CASES:
        for name, config in RECIPES.items():
            if any(word in case.name for word in arguments.models) and any(word in name for word in arguments.recipes):
                print(row(case, name, config, arguments.seconds), flush=True)


if __name__ == "__main__":
    main()

"""What equalization, smoothing and bias correction give without any finetuning; prints a table of docs/benchmarks.md.

usage: python -m benchmarks.equalization [--rows WORD ...] [--presets [NAME ...]]
                                                                 (needs QUANTMILL_DATA, default ../shared/data)

Every row is the emitted model, run by onnxruntime on the whole evaluation set. "steps" are the seconds that the
algorithms add to calibration, judging them included; "latency" is a multiple of the float model's.

With --presets: what cross-layer equalization alone changes, on every labelled model, under each preset named (default:
all of our own that calibrate).
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

from benchmarks.cases import CASES, THREADS, Case, data_folder, source
from service.contracts.config import parse_config
from service.contracts.presets.own import OWN_PRESETS
from service.contracts.report import Report
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

CLE: dict[str, Any] = {"method": "cross_layer_equalization"}
CORRECTION: dict[str, Any] = {"method": "bias_correction", "mode": "full"}
ALL_SAMPLES: dict[str, Any] = {**CORRECTION, "data_size": None}
FAST: dict[str, Any] = {"method": "bias_correction", "mode": "fast"}
SMOOTH: dict[str, Any] = {"method": "smooth_quant"}
EXACT, KEPT = {**CLE, "replace_relu6": "per_channel"}, {**CLE, "replace_relu6": "never"}
PER_TENSOR = {"preset": "plain", "weight": {"granularity": "per_tensor"}}
XINT8: dict[str, Any] = {"preset": "xint8"}
V1, V2, KWT = "MobileNetV1 0.75", "MobileNetV2 1.0", "KWT-1"
_STEPS = ("cross_layer_equalization", "smooth_quant", "bias_correction")


@dataclass(frozen=True)
class Row:
    model: str
    recipe: str
    settings: dict[str, Any]
    least: float | None = None


ROWS = (
    Row(V1, "A8W8 per tensor", {**PER_TENSOR, "algorithms": []}),
    Row(V1, "A8W8 per tensor, CLE + BC, exact limits", {**PER_TENSOR, "algorithms": [EXACT, CORRECTION]}, 85.3),
    Row(V1, "A8W8 per tensor, CLE + BC, Clip kept", {**PER_TENSOR, "algorithms": [KEPT, CORRECTION]}, 84.0),
    Row(V1, "XINT8", {**XINT8, "algorithms": []}),
    Row(
        V1,
        "XINT8, int32 bias, CLE + BC",
        {**XINT8, "bias": {"dtype": "int32"}, "target_options": {"int8_bias": False}, "algorithms": [CLE, CORRECTION]},
        85.5,
    ),
    Row(V1, "XINT8, CLE + BC", {**XINT8, "algorithms": [CLE, CORRECTION]}, 84.0),
    Row(V1, "A8W8 per channel, BC full", {"preset": "plain", "algorithms": [CORRECTION]}, 86.0),
    Row(V1, "A8W8 per channel, BC full on all samples", {"preset": "plain", "algorithms": [ALL_SAMPLES]}, 86.0),
    Row(V1, "A8W8 per channel, BC fast", {"preset": "plain", "algorithms": [FAST]}),
    Row(V2, "A8W8 per channel, BC full", {"preset": "plain", "algorithms": [CORRECTION]}, 89.3),
    Row(V2, "A8W8 per tensor, CLE + BC", {**PER_TENSOR, "algorithms": [CLE, CORRECTION]}, 88.0),
    Row(V2, "XINT8, CLE + BC", {**XINT8, "algorithms": [CLE, CORRECTION]}, 86.5),
    Row(KWT, "XINT8", {**XINT8, "algorithms": []}),
    Row(KWT, "XINT8, SmoothQuant", {**XINT8, "algorithms": [SMOOTH]}, 96.8),
    Row(KWT, "A8W8 per channel, SmoothQuant + BC", {"preset": "plain", "algorithms": [SMOOTH, CORRECTION]}, 97.3),
)


def equalize_everything(names: list[str]) -> None:
    """Print a line per preset and model: top-1 without and with equalization, and the standard error."""
    print("| preset | model | without | with | standard error | step | |")
    print("|---|---|---|---|---|---|---|")
    for name in names or [preset.name for preset in OWN_PRESETS]:
        if parse_config({"preset": name}).mode != "static":
            continue
        for case in CASES:
            without, equalized = (_report(case, {"preset": name, "algorithms": steps}) for steps in ([], [CLE]))
            before, after = without.quantized.metrics["top1"], equalized.quantized.metrics["top1"]
            share = before / 100
            error = 100 * (share * (1 - share) / without.fidelity.samples) ** 0.5
            step = "kept" if equalized.algorithms[0].kept else equalized.algorithms[0].summary.split(":")[0]
            verdict = "" if after >= before - error else "LOWER"
            print(
                f"| {name} | {case.name} | {before:.2f} | {after:.2f} | {error:.2f} | {step} | {verdict} |", flush=True
            )


def _report(case: Case, settings: dict[str, Any]) -> Report:
    folder = data_folder()
    config = parse_config({**settings, "evaluation": {"layer_samples": 1, "advice_seconds": 0}})
    calibration, evaluation = source(folder, case.calibration), source(folder, case.evaluation)
    return quantize(folder / case.model, config, calibration, evaluation, run=SilentRun(), threads=THREADS).report


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", nargs="+", default=[""], help="words of the rows wanted")
    parser.add_argument("--presets", nargs="*", help="equalization alone, under these presets")
    arguments = parser.parse_args()
    if arguments.presets is not None:
        equalize_everything(arguments.presets)
        return
    print("| model | recipe | float | top-1 | at least | SQNR dB | latency | steps s | whole s |")
    print("|---|---|---|---|---|---|---|---|---|")
    for row in ROWS:
        if not any(word in f"{row.model} {row.recipe}" for word in arguments.rows):
            continue
        case = next(case for case in CASES if case.name == row.model)
        report = _report(case, row.settings)
        spent = sum(stage.seconds for stage in report.stages if stage.name.startswith(_STEPS))
        whole = sum(s.seconds for s in report.stages if s.name not in ("evaluation", "layers", "latency", "advice"))
        undone = [outcome.method for outcome in report.algorithms if not outcome.kept]
        ratio = (report.quantized.latency_ms or 0.0) / (report.float_.latency_ms or 1.0)
        recipe = row.recipe + (f" (undone: {', '.join(undone)})" if undone else "")
        figures = f"{report.float_.metrics['top1']:.2f} | {report.quantized.metrics['top1']:.2f} | {row.least or '-'}"
        costs = f"{ratio:.2f} | {spent:.1f} | {whole:.1f}"
        print(f"| {row.model} | {recipe} | {figures} | {report.fidelity.sqnr_db} | {costs} |", flush=True)


if __name__ == "__main__":
    main()

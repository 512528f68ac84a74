"""Accuracy, size and latency of a preset on real models; prints a table of docs/benchmarks.md.

usage: python -m benchmarks.accuracy [PRESET ...]      (needs QUANTMILL_DATA, default ../shared/data)
"""

from __future__ import annotations

import sys
from pathlib import Path

from benchmarks.cases import CASES, THREADS, Case, data_folder, source
from service.contracts.config import parse_config
from service.contracts.report import Report
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun


def measure(folder: Path, case: Case, preset: str) -> Report:
    config = parse_config({"preset": preset})
    calibration, evaluation = source(folder, case.calibration), source(folder, case.evaluation)
    return quantize(folder / case.model, config, calibration, evaluation, run=SilentRun(), threads=THREADS).report


def drop_of(report: Report, name: str) -> str:
    """The drop of a metric with its interval: what holds 0 is no drop that these samples could tell."""
    found = next(one for one in report.metrics if one.name == name)
    interval = found.drop_interval
    return f"{found.drop:.2f}" + ("" if interval is None else f" ({interval.low:.2f} to {interval.high:.2f})")


def main() -> None:
    folder = data_folder()
    for preset in sys.argv[1:] or ["int8"]:
        print(f"\npreset {preset}\n")
        print("| model | float top-1 | quantized top-1 | drop | SQNR dB | size | latency | quantize s |")
        print("|---|---|---|---|---|---|---|---|")
        for case in CASES:
            report = measure(folder, case, preset)
            before, after = report.float_, report.quantized
            speed = (before.latency_ms or 0) / (after.latency_ms or 1)
            seconds = sum(
                s.seconds for s in report.stages if s.name not in ("evaluation", "layers", "latency", "advice")
            )
            print(
                f"| {case.name} | {before.metrics['top1']:.2f} | {after.metrics['top1']:.2f} "
                f"| {drop_of(report, 'top1')} | {report.fidelity.sqnr_db} "
                f"| 1/{before.size_bytes / after.size_bytes:.2f} "
                f"| 1/{speed:.2f} | {seconds:.1f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

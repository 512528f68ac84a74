"""What calibration method auto chooses under the NPU's rules, and what each of its candidates would have come to.

usage: python -m benchmarks.calibration_trial [MODEL ...]       (needs QUANTMILL_DATA, default ../shared/data)

Preset npu_int8 (int8, power-of-two scales, equalized and corrected) with every candidate by name, and with auto: top-1
in percent and SQNR of the outputs in dB on the evaluation data.
"""

from __future__ import annotations

import sys
from typing import Any

from benchmarks.cases import CASES, THREADS, case_of, data_folder, source
from service.contracts.config import parse_config
from service.contracts.report import Report
from service.contracts.specs import AutoCalibration
from worker.quantizer.pipeline import quantize
from worker.quantizer.refine.ranges import method_words
from worker.quantizer.run.interface import SilentRun

_QUICK = {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}


def measured(name: str, calibration: dict[str, Any]) -> Report:
    folder, case = data_folder(), case_of(name)
    config = parse_config({"preset": "npu_int8", "activation": {"calibration": calibration}, "evaluation": _QUICK})
    parts = (source(folder, part) for part in (case.calibration, case.evaluation))
    return quantize(folder / case.model, config, *parts, run=SilentRun(), threads=THREADS).report


def main() -> None:
    candidates = AutoCalibration().candidates
    names = " | ".join(map(method_words, candidates))
    print(f"| model (float) | {names} | auto chooses |\n{'|---' * (len(candidates) + 2)}|")
    for name in sys.argv[1:] or [case.name for case in CASES]:
        cells, float_ = [], 0.0
        for candidate in candidates:
            report = measured(name, candidate.model_dump(mode="json"))
            float_ = report.float_.metrics["top1"]
            cells.append(f"{report.quantized.metrics['top1']:.2f} ({report.fidelity.sqnr_db:.1f} dB)")
        chosen = measured(name, {"method": "auto"})
        method = method_words(chosen.manifest.config.activation.calibration)
        told = f"{method}: {chosen.quantized.metrics['top1']:.2f} ({chosen.fidelity.sqnr_db:.1f} dB)"
        print(f"| {name} ({float_:.2f}) | {' | '.join(cells)} | {told} |", flush=True)


if __name__ == "__main__":
    main()

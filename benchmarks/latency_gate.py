"""Whether a gate on latency says the same every time, with one core kept busy beside it.

usage: python -m benchmarks.latency_gate [TIMES]      (needs QUANTMILL_DATA, default ../shared/data)

Quantizes ResNet20 and MobileNetV2 to int8, then times each beside its float model TIMES times (20 by default) while
another process spins, and again without one. For some limits it prints how often max_latency_ratio would hold, be
undecided or be broken. The middle limit is the median ratio of all times: nothing is harder to decide.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from statistics import median

from benchmarks.cases import THREADS, Case, case_of, data_folder, source
from service.contracts.config import parse_config
from service.contracts.report import LatencyFigures
from worker.quantizer.data import open_dataset
from worker.quantizer.evaluation.latency import measure_latency
from worker.quantizer.evaluation.side_by_side import FloatReference
from worker.quantizer.intake.inspect import open_model
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

_TIMES, _FACTORS = 20, (0.5, 0.8, 0.9, 1.0, 1.1, 1.25, 2.0)


def timed(folder: Path, case: Case, quantized: Path, times: int) -> list[LatencyFigures]:
    reference, twin = open_model(folder / case.model), open_model(quantized)
    part = source(folder, case.evaluation)
    data = open_dataset(Path(part.path), part.preprocessing)
    one, other = (model.session(threads=THREADS, what="model") for model in (reference, twin))
    held_against, run = FloatReference(one, data, reference.summary.inputs), SilentRun()
    return [measure_latency(held_against, other, runs=20, threads=THREADS, run=run) for _ in range(times)]


def verdicts(found: list[LatencyFigures], limit: float) -> Counter[str]:
    return Counter(
        "holds" if one.ratio_interval.high <= limit else "broken" if one.ratio_interval.low > limit else "undecided"
        for one in found
    )


def show(name: str, beside: str, found: list[LatencyFigures], seconds: float) -> None:
    middle = median(one.ratio for one in found)
    width = median(one.ratio_interval.high - one.ratio_interval.low for one in found)
    busy = [one.load.other_busy_percent for one in found if one.load.other_busy_percent is not None]
    load = f"{median(busy):.0f} %" if busy else "unknown"
    ratios = f"{min(one.ratio for one in found):.3f} to {max(one.ratio for one in found):.3f}"
    print(f"\n{name}, {beside}: ratio {middle:.3f} ({ratios}), interval {width:.3f} wide,")
    print(f"others took {load} of the CPU, {median(one.runs for one in found):.0f} runs, ", end="")
    print(f"{seconds / len(found):.2f} s each; {verdict_words(found)}")
    for limit in sorted({*(round(middle * factor, 3) for factor in _FACTORS), 1.0}):
        counts = verdicts(found, limit)
        flips = "FLIPS" if counts["holds"] and counts["broken"] else "steady"
        told = ", ".join(f"{counts[word]} {word}" for word in ("holds", "undecided", "broken"))
        print(f"  max_latency_ratio {limit:.3f}: {told}: {flips}", flush=True)


def verdict_words(found: list[LatencyFigures]) -> str:
    return ", ".join(f"{count} {verdict}" for verdict, count in Counter(one.verdict for one in found).items())


def main() -> None:
    times = int(sys.argv[1]) if len(sys.argv) > 1 else _TIMES
    folder = data_folder()
    config = parse_config({"preset": "int8", "evaluation": {"latency_runs": 1, "layer_samples": 1}})
    with tempfile.TemporaryDirectory() as scratch:
        for name in ("ResNet20", "MobileNetV2 1.0"):
            case = case_of(name)
            parts = (source(folder, part) for part in (case.calibration, case.evaluation))
            quantized = Path(scratch, "quantized.onnx")
            quantized.write_bytes(quantize(folder / case.model, config, *parts, run=SilentRun(), threads=THREADS).model)
            for beside in ("one core busy", "nothing beside it"):
                spinning = beside == "one core busy"
                neighbour = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if spinning else None
                try:
                    begun = time.perf_counter()
                    found = timed(folder, case, quantized, times)
                    show(name, beside, found, time.perf_counter() - begun)
                finally:
                    if neighbour is not None:
                        neighbour.kill()
                        neighbour.wait()


if __name__ == "__main__":
    main()

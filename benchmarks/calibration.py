"""Cost of calibration, as a multiple of one bare onnxruntime pass over the same images, taken in one run.

usage: python -m benchmarks.calibration [--runs N]      (needs QUANTMILL_DATA, default ../shared/data)

Every recipe runs in a fresh process, in turn with the bare pass; the medians are compared. "calibration" is the
statistics stage;
"quantize" is everything from opening the file to the emitted model, without evaluation.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median

THREADS = 2
MODEL = "imagenet/mobilenet_v1_0.75_224.onnx"
DATA = "imagenet/calibration.npz"
RECIPES = {
    "minmax": {"preset": "int8", "algorithms": []},
    "percentile 99.999": {"preset": "int8_percentile", "algorithms": []},
    "minmax + bias correction": {"preset": "int8"},
}
LIMITS = {"minmax": 4.0, "percentile 99.999": 8.0}


def data_folder() -> Path:
    folder = Path(os.environ.get("QUANTMILL_DATA") or Path(__file__).resolve().parents[2] / "shared" / "data")
    if not (folder / MODEL).is_file():
        sys.exit(f"no {MODEL} in {folder}: set QUANTMILL_DATA to the folder with the real models and data")
    return folder


def bare_pass(folder: Path) -> dict[str, float]:
    """One onnxruntime forward pass at batch 1 over preprocessed images; seconds."""
    import numpy as np
    import onnxruntime as ort

    images = np.load(folder / DATA)["images"]
    inputs = ((images.astype(np.float32) / 255 - 0.5) / 0.5).transpose(0, 3, 1, 2)
    inputs = np.ascontiguousarray(inputs)
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(folder / MODEL), options, providers=["CPUExecutionProvider"])
    name = session.get_inputs()[0].name
    session.run(None, {name: inputs[:1]})
    begin = time.perf_counter()
    for k in range(len(inputs)):
        session.run(None, {name: inputs[k : k + 1]})
    return {"bare": time.perf_counter() - begin}


def recipe(folder: Path, config: dict[str, object]) -> dict[str, float]:
    """Seconds of the statistics stage and of the whole engine, and its peak memory in bytes."""
    from service.contracts.config import parse_config
    from service.contracts.dataset import InputSpec, PreprocessingSpec
    from service.contracts.runner import DatasetSource
    from worker.quantizer.pipeline import quantize
    from worker.quantizer.run import SilentRun

    spec = InputSpec(array="images", layout="NHWC", scale=1 / 255, mean=(0.5, 0.5, 0.5), std=(0.5, 0.5, 0.5))
    source = DatasetSource(path=str(folder / DATA), preprocessing=PreprocessingSpec(inputs={"input": spec}))
    resolved = parse_config({**config, "evaluation": {"latency_runs": 1, "layer_samples": 1}})
    report = quantize(folder / MODEL, resolved, source, run=SilentRun(), threads=THREADS).report
    engine = [s for s in report.stages if s.name not in ("evaluation", "layers", "latency")]
    statistics = next(s.seconds for s in engine if s.name == "statistics")
    return {
        "calibration": statistics,
        "quantize": sum(s.seconds for s in engine),
        "peak_rss_bytes": float(max(s.peak_rss_bytes for s in engine)),
    }


def in_fresh_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.calibration", *arguments]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--one", help="internal: measure one side and print JSON")
    arguments = parser.parse_args()
    folder = data_folder()
    if arguments.one:
        figures = bare_pass(folder) if arguments.one == "bare" else recipe(folder, RECIPES[arguments.one])
        print(json.dumps(figures))
        return
    bare: list[float] = []
    taken: dict[str, list[dict[str, float]]] = {name: [] for name in RECIPES}
    for _ in range(arguments.runs):
        bare.append(in_fresh_process("--one", "bare")["bare"])
        for name in RECIPES:
            taken[name].append(in_fresh_process("--one", name))
    floor = median(bare)
    print(f"bare onnxruntime pass, {MODEL}, {THREADS} threads, median of {arguments.runs}: {floor:.3f} s\n")
    print("| recipe | calibration s | x bare | limit | quantize s | x bare | peak MiB |")
    print("|---|---|---|---|---|---|---|")
    for name, runs in taken.items():
        calibration = median(run["calibration"] for run in runs)
        whole = median(run["quantize"] for run in runs)
        peak = median(run["peak_rss_bytes"] for run in runs) / 2**20
        limit = f"{LIMITS[name]:.0f}x" if name in LIMITS else "-"
        print(
            f"| {name} | {calibration:.2f} | {calibration / floor:.1f} | {limit} "
            f"| {whole:.2f} | {whole / floor:.1f} | {peak:.0f} |"
        )


if __name__ == "__main__":
    main()

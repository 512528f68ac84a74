"""Cost and accuracy of every calibration method, beside one bare onnxruntime pass over the same samples.

usage: python -m benchmarks.calibration [--runs N] [--models NAME ...] [--methods NAME ...]
           [--quark-python PYTHON --quark-script SCRIPT]            (needs QUANTMILL_DATA, default ../shared/data)

Every method runs in a fresh process, in turn with the bare pass; the least times of N runs are compared. "calibration"
is the statistics stage and the search for the ranges; "quantize" is everything from opening the file to the emitted
model, without evaluation.

SCRIPT is called as SCRIPT RECIPE MODEL.onnx CALIBRATION.npy OUT.onnx --size N, with preprocessed samples, by an
interpreter that has AMD Quark, and prints a line "JSON {...}" with seconds and peak_mib. Both paths may come from
QUANTMILL_QUARK_PYTHON and QUANTMILL_QUARK_SCRIPT.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import THREADS, Case, case_of, data_folder, source

MODELS = ("MobileNetV1 0.75", "MobileNetV2 1.0", "ResNet20", "KWT-1")
PO2: dict[str, Any] = {"dtype": "int8", "symmetric": True, "scale": "power_of_two"}
ACTIVATIONS: dict[str, dict[str, Any]] = {
    "minmax": {"calibration": {"method": "minmax"}},
    "minmax, moving": {"calibration": {"method": "minmax", "moving_average": 0.01}},
    "percentile": {"calibration": {"method": "percentile", "percentile": 99.999}},
    "layerwise percentile": {"calibration": {"method": "layerwise_percentile"}},
    "entropy": {"calibration": {"method": "entropy"}},
    "distribution": {"calibration": {"method": "distribution"}},
    "mse": {"calibration": {"method": "mse"}},
    "mse, 2^n": {**PO2, "calibration": {"method": "mse"}},
    "non-overflow, 2^n": {**PO2, "calibration": {"method": "non_overflow"}},
    "mse, uint16": {"dtype": "uint16", "calibration": {"method": "mse"}},
}
# Multiples of the bare pass on MobileNetV1 that "quantize" should stay below.
LIMITS = {"minmax": 3.0, "percentile": 6.0, "entropy": 6.0, "mse": 6.0, "mse, 2^n": 6.0}
QUARK_RECIPES = ("minmax", "percentile", "entropy", "xint8")
_NO_ENGINE = ("evaluation", "layers", "latency", "advice")


def bare_pass(folder: Path, name: str) -> dict[str, float]:
    """One onnxruntime forward pass at batch 1 over preprocessed samples; seconds."""
    import onnxruntime as ort

    samples = preprocessed(folder, case_of(name))
    options = ort.SessionOptions()
    options.intra_op_num_threads = THREADS
    session = ort.InferenceSession(str(folder / case_of(name).model), options, providers=["CPUExecutionProvider"])
    feed = session.get_inputs()[0].name
    session.run(None, {feed: samples[:1]})
    begin = time.perf_counter()
    for k in range(len(samples)):
        session.run(None, {feed: samples[k : k + 1]})
    return {"bare": time.perf_counter() - begin}


def preprocessed(folder: Path, case: Case) -> Any:
    """The calibration samples as the model takes them, float32 [n, ...]."""
    import numpy as np

    from worker.quantizer.data import open_dataset
    from worker.quantizer.intake.inspect import open_model

    inputs = open_model(folder / case.model).summary.inputs
    data = open_dataset(folder / case.calibration[0], case.calibration[1])
    return np.concatenate([batch.feeds[inputs[0].name] for batch in data.batches(inputs, 1)])


def measure(folder: Path, name: str, method: str) -> dict[str, float]:
    """Seconds, peak memory in bytes and top-1 of one method."""
    from service.contracts.config import parse_config
    from worker.quantizer.pipeline import quantize
    from worker.quantizer.run.interface import SilentRun

    case = case_of(name)
    evaluation = {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}
    config = parse_config({"activation": ACTIVATIONS[method], "algorithms": [], "evaluation": evaluation})
    report = quantize(
        folder / case.model,
        config,
        source(folder, case.calibration),
        source(folder, case.evaluation),
        run=SilentRun(),
        threads=THREADS,
    ).report
    engine = [stage for stage in report.stages if stage.name not in _NO_ENGINE]
    return {
        "calibration": sum(stage.seconds for stage in engine if stage.name in ("statistics", "parameters")),
        "quantize": sum(stage.seconds for stage in engine),
        "peak_rss_bytes": float(max(stage.peak_rss_bytes for stage in engine)),
        "top1": report.quantized.metrics["top1"],
    }


def quark(folder: Path, name: str, recipe: str, python: str, script: str) -> dict[str, float]:
    """The same figures of a Quark recipe."""
    import numpy as np

    from worker.quantizer.evaluation.command import evaluated
    from worker.quantizer.run.interface import SilentRun

    case = case_of(name)
    samples = preprocessed(folder, case)
    with tempfile.TemporaryDirectory() as scratch:
        calibration, out = Path(scratch) / "calibration.npy", Path(scratch) / "out.onnx"
        np.save(calibration, samples)
        command = [python, script, recipe, str(folder / case.model), str(calibration), str(out)]
        done = subprocess.run([*command, "--size", str(len(samples))], check=True, capture_output=True, text=True)
        line = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("JSON "))
        told = json.loads(line.removeprefix("JSON "))
        done = evaluated(out, source(folder, case.evaluation), None, threads=THREADS, run=SilentRun())
        found = done.report.to_json_dict()
    return {
        "quantize": told["seconds"],
        "peak_rss_bytes": told["peak_mib"] * 2.0**20,
        "top1": found["model"]["metrics"]["top1"],
    }


def in_fresh_process(*arguments: str) -> dict[str, float]:
    command = [sys.executable, "-m", "benchmarks.calibration", *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


def row(label: str, runs: list[dict[str, float]], floor: float, limit: float | None = None) -> str:
    whole = min(run["quantize"] for run in runs)
    calibration = min((run["calibration"] for run in runs if "calibration" in run), default=None)
    cells = [
        label,
        "-" if calibration is None else f"{calibration:.2f}",
        "-" if calibration is None else f"{calibration / floor:.1f}",
        f"{whole:.2f}",
        f"{whole / floor:.1f}",
        "-" if limit is None else f"{limit:.0f}",
        f"{min(run['peak_rss_bytes'] for run in runs) / 2**20:.0f}",
        f"{runs[0]['top1']:.2f}",
    ]
    return "| " + " | ".join(cells) + " |"


def compare(name: str, arguments: argparse.Namespace) -> None:
    """Print the table of one model."""
    bare: list[float] = []
    ours: dict[str, list[dict[str, float]]] = {method: [] for method in arguments.methods}
    theirs: dict[str, list[dict[str, float]]] = {}
    for _ in range(arguments.runs):
        bare.append(in_fresh_process("--one", "bare", "--models", name)["bare"])
        for method, runs in ours.items():
            runs.append(in_fresh_process("--one", method, "--models", name))
    if arguments.quark_python and arguments.quark_script:
        tools = ["--quark-python", arguments.quark_python, "--quark-script", arguments.quark_script]
        for recipe in QUARK_RECIPES:
            theirs[recipe] = [in_fresh_process("--one", f"quark {recipe}", "--models", name, *tools)]
    floor = min(bare)
    print(f"\n{name}: bare onnxruntime pass at batch 1, {THREADS} threads, least of {arguments.runs}: {floor:.3f} s\n")
    print("| method | calibration s | x bare | quantize s | x bare | limit | peak MiB | top-1 % |")
    print("|---|---|---|---|---|---|---|---|")
    for method, runs in ours.items():
        print(row(method, runs, floor, LIMITS.get(method) if name == MODELS[0] else None))
    for recipe, runs in theirs.items():
        print(row(f"Quark {recipe}", runs, floor), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--models", nargs="+", default=MODELS, choices=MODELS)
    parser.add_argument("--methods", nargs="+", default=list(ACTIVATIONS), choices=list(ACTIVATIONS))
    parser.add_argument("--quark-python", default=os.environ.get("QUANTMILL_QUARK_PYTHON"))
    parser.add_argument("--quark-script", default=os.environ.get("QUANTMILL_QUARK_SCRIPT"))
    parser.add_argument("--one", help="internal: measure one side and print JSON")
    arguments = parser.parse_args()
    folder = data_folder()
    if not arguments.one:
        for name in arguments.models:
            compare(name, arguments)
        return
    name = arguments.models[0]
    if arguments.one == "bare":
        figures = bare_pass(folder, name)
    elif arguments.one.startswith("quark "):
        recipe = arguments.one.removeprefix("quark ")
        figures = quark(folder, name, recipe, arguments.quark_python, arguments.quark_script)
    else:
        figures = measure(folder, name, arguments.one)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()

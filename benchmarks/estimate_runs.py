"""What jobs take: each model with each preset in a runner process of its own, as a worker starts it.

python -m benchmarks.estimate_runs OUT.jsonl [MODEL ...] [--presets PRESET ...]

A line per run: what a service knows before it (summaries of model and data, config), and what came of it. Runs that a
file already has are not repeated. ``benchmarks.estimates`` replays them.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.cases import CASES, THREADS, Case, data_folder, source
from benchmarks.zoo import zoo_cases
from service.contracts.config import parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.runner import (
    DatasetSource,
    InspectDatasetTask,
    InspectModelTask,
    QuantizeTask,
    RunnerTask,
)
from worker.quantizer.data import ArrayDataset

PRESETS = ("int8", "int8_accurate", "int8_transformer", "int8_dynamic", "int4_weights", "npu_int8_accurate")
_RESULTS = ("model", "dataset", "quantized", "error")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--presets", nargs="+", default=PRESETS)
    asked = parser.parse_args()
    there = {(run["model"], run["preset"]) for run in map(json.loads, _lines(asked.out))}
    with tempfile.TemporaryDirectory() as scratch, asked.out.open("a") as out:
        for name, model, calibration, evaluation in _jobs(Path(scratch)):
            wanted = [preset for preset in asked.presets if (name, preset) not in there]
            if not wanted or (asked.models and name not in asked.models):
                continue
            try:
                known = {
                    "model_summary": _result(InspectModelTask(model_path=str(model), threads=THREADS))["summary"],
                    "calibration": _summary(calibration),
                    "evaluation": _summary(evaluation),
                }
            except RuntimeError as error:
                print(f"{name}: {error}", file=sys.stderr)
                continue
            for preset in wanted:
                run = {"model": name, "preset": preset, **known, **_run(model, preset, calibration, evaluation)}
                out.write(json.dumps(run) + "\n")
                out.flush()
                print(name, preset, run["seconds"], run["error"] or "")


def _lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def _jobs(scratch: Path) -> Iterator[tuple[str, Path, DatasetSource, DatasetSource]]:
    folder = data_folder()
    stories = "text/stories_{}.npz"
    text = Case("stories260K", "text/stories260K.onnx", *((stories.format(part), _plain()) for part in "ce"))
    for case in (*CASES, text):
        if (folder / case.model).is_file():
            yield case.name, folder / case.model, source(folder, case.calibration), source(folder, case.evaluation)
    for name, path, calibration, evaluation in zoo_cases(folder):
        yield (
            name,
            path,
            _stored(scratch / f"{name}-c.npz", calibration),
            _stored(scratch / f"{name}-e.npz", evaluation),
        )


def _plain() -> PreprocessingSpec:
    return PreprocessingSpec()


def _stored(path: Path, data: ArrayDataset) -> DatasetSource:
    np.savez(path, **{name: array.open().read(data.samples) for name, array in data.selection.arrays.items()})
    return DatasetSource(path=str(path))


def _summary(data: DatasetSource) -> dict[str, Any]:
    found = _result(InspectDatasetTask(path=data.path, preprocessing=data.preprocessing))
    summary: dict[str, Any] = found["summary"]
    return summary


def _run(model: Path, preset: str, calibration: DatasetSource, evaluation: DatasetSource) -> dict[str, Any]:
    config = parse_config({"preset": preset})
    with tempfile.TemporaryDirectory() as output:
        task = QuantizeTask(
            model_path=str(model),
            config=config,
            calibration=calibration,
            evaluation=evaluation,
            output_dir=output,
            threads=THREADS,
        )
        begin = time.perf_counter()
        try:
            report, error = _result(task)["report"], None
        except RuntimeError as refused:
            report, error = None, str(refused)
        seconds = round(time.perf_counter() - begin, 3)
    observed = None
    if report is not None:
        observed = {"stages": report["stages"], "size_bytes": report["quantized"]["size_bytes"]}
    return {"config": config.model_dump(mode="json"), "seconds": seconds, "observed": observed, "error": error}


def _result(task: RunnerTask) -> dict[str, Any]:
    """The last line of a runner process.

    Raises:
        RuntimeError: it did not succeed.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "task.json"
        file.write_text(task.model_dump_json(by_alias=True))
        read, write = os.pipe()
        with os.fdopen(read, "rb") as lines:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f'exec "$0" -m worker.runner "$1" 3>&{write}', sys.executable, str(file)],
                pass_fds=(write,),
                stdin=subprocess.PIPE,  # its end would mean that nobody waits for the run any more
                stderr=subprocess.DEVNULL,
            )
            os.close(write)
            told = [json.loads(line) for line in lines]
            process.wait()
    last = next((line for line in reversed(told) if line["line"] in _RESULTS), {"line": "nothing"})
    if process.returncode != 0:
        raise RuntimeError(json.dumps(last)[:300])
    return dict(last)


if __name__ == "__main__":
    main()

"""A program of its own: runs a model with and without onnxruntime's optimizations, and may die of either.

``python program.py FOLDER`` finds there ``model.onnx``, ``feeds.npz`` (arrays named SAMPLE/INPUT) and ``spec.json``:

    threads     intra-op threads
    outputs     names of the outputs wanted
    samples     how many there are
    ways        of "optimized" and "plain", in this order

For each way it leaves ``WAY.npz`` with arrays named SAMPLE/OUTPUT, or ``WAY.txt`` with onnxruntime's refusal. A way of
which neither is there has ended the process. The sessions are those that any user makes: nothing but the number of
threads is set. It loads numpy and onnxruntime alone, which keeps its start short.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime as ort


def main(folder: Path) -> None:
    """Run every way; see the module's head."""
    spec = json.loads((folder / "spec.json").read_bytes())
    with np.load(folder / "feeds.npz", allow_pickle=False) as stored:
        feeds: list[dict[str, np.ndarray]] = [{} for _ in range(spec["samples"])]
        for key in stored.files:
            sample, _, name = key.partition("/")
            feeds[int(sample)][name] = stored[key]
    for way in spec["ways"]:
        try:
            found = run(folder / "model.onnx", feeds, spec, optimized=way == "optimized")
        except Exception as error:  # noqa: BLE001 - onnxruntime's errors have no common base; whoever asked reads it
            (folder / f"{way}.txt").write_text(str(error))
        else:
            np.savez(folder / f"{way}.part.npz", allow_pickle=False, **found)
            (folder / f"{way}.part.npz").rename(folder / f"{way}.npz")


def run(
    model: Path, feeds: list[dict[str, np.ndarray]], spec: dict[str, object], *, optimized: bool
) -> dict[str, np.ndarray]:
    """The outputs of every sample by SAMPLE/OUTPUT."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = spec["threads"]
    options.log_severity_level = 4
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    outputs = list(spec["outputs"])  # type: ignore[call-overload]
    found = {}
    for sample, fed in enumerate(feeds):
        for name, array in zip(outputs, session.run(outputs, fed), strict=True):
            found[f"{sample}/{name}"] = np.asarray(array)
    return found


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()

"""The models of QUANTMILL_DATA/zoo with real inputs, as datasets of whole inputs."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnxruntime as ort

from service.contracts.errors import UnsupportedModelError
from worker.quantizer.data import ArrayDataset
from worker.quantizer.intake.inspect import open_model

_SAMPLES = 40


def zoo_cases(folder: Path) -> Iterator[tuple[str, Path, ArrayDataset, ArrayDataset]]:
    """Name, model, calibration and evaluation data of every model that the engine takes and that has inputs."""
    zoo = folder / "zoo"
    spec = importlib.util.spec_from_file_location("zoo_feed", zoo / "feed.py")
    assert spec is not None
    assert spec.loader is not None
    feed = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(feed)
    paths = {path.stem: path for path in zoo.glob("*.onnx")} | {path.parent.name: path for path in zoo.glob("*/*.onnx")}
    for name, path in sorted(paths.items()):
        try:
            open_model(path)
        except UnsupportedModelError:
            continue
        session = ort.InferenceSession(str(path), providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]

        def run(sample: dict[str, np.ndarray], of: ort.InferenceSession = session, n: list[str] = names) -> dict:
            return dict(zip(n, of.run(None, sample), strict=True))

        feeds = feed.feeds(name, _SAMPLES, run=run)
        if feeds is None:
            continue
        feeds = list({b"".join(array.tobytes() for array in sample.values()): sample for sample in feeds}.values())
        halves = (feeds[: len(feeds) // 2], feeds[len(feeds) // 2 :])
        calibration, evaluation = (
            ArrayDataset({key: np.stack([sample[key] for sample in half]) for key in half[0]}) for half in halves
        )
        yield name, path, calibration, evaluation

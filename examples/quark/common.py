"""What the examples share: a reader of pictures, and the accuracy of a model on the rest of them.

The data is a folder with MODEL.onnx, calibration.npz and evaluation.npz: images [n, height, width, 3] as uint8, and
labels [n].
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort

from quantmill.quark import CalibrationDataReader, ModelQuantizer

MEAN, STD = np.float32([0.485, 0.456, 0.406]), np.float32([0.229, 0.224, 0.225])
BATCH = 50


class Pictures(CalibrationDataReader):
    """Gives one normalized picture after the other, [1, 3, height, width]."""

    def __init__(self, path: Path, count: int) -> None:
        with np.load(path) as stored:
            self.images, self.labels = stored["images"][:count], stored["labels"][:count]
        self.rewind()

    def rewind(self) -> None:
        self.left: Iterator[np.ndarray] = iter(self.images)

    def get_next(self) -> dict[str, np.ndarray] | None:
        image = next(self.left, None)
        return None if image is None else {"input": normalized(image[None])}


def normalized(images: np.ndarray) -> np.ndarray:
    """uint8 [n, height, width, 3] as the models take it: float32 [n, 3, height, width]."""
    return np.ascontiguousarray(((images / np.float32(255) - MEAN) / STD).transpose(0, 3, 1, 2))


def top1(model: Path, pictures: Pictures) -> float:
    """Share of pictures whose label has the highest score, in percent."""
    session = ort.InferenceSession(model, providers=["CPUExecutionProvider"])
    hits = 0
    for start in range(0, len(pictures.images), BATCH):
        part = slice(start, start + BATCH)
        scores = session.run(None, {"input": normalized(pictures.images[part])})[0]
        hits += int((scores.argmax(axis=1) == pictures.labels[part]).sum())
    return 100.0 * hits / len(pictures.images)


def arguments(about: str | None, given: list[str] | None = None) -> argparse.Namespace:
    """The command line of every example."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("data", type=Path, help="folder with calibration.npz and evaluation.npz")
    parser.add_argument("--model_input", type=Path, help="float model; default: resnet20.onnx in the folder")
    parser.add_argument("--model_output", type=Path, default=Path("quantized.onnx"))
    parser.add_argument("--calibration_samples", type=int, default=128)
    parser.add_argument("--evaluation_samples", type=int, default=1000)
    return parser.parse_args(given)


def run(config: Any, options: argparse.Namespace) -> dict[str, float]:
    """Quantize as ``config`` says; prints and returns the top-1 of both models, in percent."""
    model = options.model_input or options.data / "resnet20.onnx"
    quantizer = ModelQuantizer(config)
    reader = Pictures(options.data / "calibration.npz", options.calibration_samples)
    quantizer.quantize_model(str(model), str(options.model_output), reader)
    pictures = Pictures(options.data / "evaluation.npz", options.evaluation_samples)
    found = {"float": top1(model, pictures), "quantized": top1(options.model_output, pictures)}
    print(*quantizer.notes, quantizer.report.summary, sep="\n")
    print(f"top-1: float {found['float']:.2f} %, quantized {found['quantized']:.2f} %")
    return found

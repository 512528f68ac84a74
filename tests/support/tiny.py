"""A tiny model with data for it, for tests of the whole way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper

_HEAD = '<ir_version: 8, opset_import: ["" : 17]>'


@dataclass(frozen=True)
class Tiny:
    """A small model with data for it."""

    folder: Path
    model: Path
    calibration: Path
    evaluation: Path


def make_model(path: Path, *, external: str | None = None, channels: int = 16, convs: int = 1) -> None:
    """So many times Conv and Relu, then pool, Gemm: input ``x`` float32 [batch, 3, 8, 8], output ``y`` [batch, 5]."""
    rng = np.random.default_rng(0)
    weights = {
        "w1": rng.normal(0, 0.3, (channels, 3, 3, 3)),
        "b1": rng.normal(0, 0.1, channels),
        "w2": rng.normal(0, 0.3, (5, channels)),
        "b2": rng.normal(0, 0.1, 5),
    }
    steps, last = "", "x"
    for number in range(convs):
        end = f"_{number}" if number else ""
        given = f"{last}, w1{end}" if number else f"{last}, w1, b1"
        if number:
            weights[f"w1{end}"] = rng.normal(0, 0.1, (channels, channels, 3, 3))
        last = f"r{end}"
        steps += f"[conv{end}] c{end} = Conv<pads=[1, 1, 1, 1]>({given}) [relu{end}] {last} = Relu(c{end}) "
    steps += f"[pool] p = GlobalAveragePool({last}) [flatten] f = Flatten(p) [gemm] y = Gemm<transB=1>(f, w2, b2)"
    model = onnx.parser.parse_model(f"{_HEAD} tiny (float[batch,3,8,8] x) => (float[batch,5] y) {{ {steps} }}")
    stored = [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()]
    model.graph.initializer.extend(stored)
    onnx.checker.check_model(model)
    outside = {} if external is None else {"save_as_external_data": True, "location": external, "size_threshold": 0}
    onnx.save(model, path, **outside)


def make_nothing_to_quantize(path: Path) -> None:
    """One Identity: input ``x`` float32 [batch, 4]."""
    text = f"{_HEAD} nothing (float[batch,4] x) => (float[batch,4] y) {{ [same] y = Identity(x) }}"
    onnx.save(onnx.parser.parse_model(text), path)


def make_tiny(folder: Path, *, samples: int = 32, convs: int = 1) -> Tiny:
    """The model, calibration data, and evaluation data with labels that it is mostly right about, in ``folder``."""
    rng = np.random.default_rng(1)
    tiny = Tiny(folder, folder / "net.onnx", folder / "calibration.npz", folder / "evaluation.npz")
    make_model(tiny.model, convs=convs)
    np.savez(tiny.calibration, x=rng.normal(size=(samples, 3, 8, 8)).astype(np.float32))
    # A colour of its own for every sample: without, the pooled network decides alike for all.
    x = (rng.normal(size=(40, 3, 1, 1)) + 0.5 * rng.normal(size=(40, 3, 8, 8))).astype(np.float32)
    decided = onnxruntime.InferenceSession(str(tiny.model)).run(None, {"x": x})[0].argmax(axis=1)
    labels = np.where(np.arange(40) % 10 == 9, (decided + 1) % 5, decided)
    np.savez(tiny.evaluation, x=x, labels=labels)
    return tiny

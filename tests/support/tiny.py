"""A tiny model with data for it, for tests of the whole way."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper


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
    nodes, last = [], "x"
    for number in range(convs):
        end = f"_{number}" if number else ""
        given = [last, "w1", "b1"] if not number else [last, f"w1{end}"]
        if number:
            weights[f"w1{end}"] = rng.normal(0, 0.1, (channels, channels, 3, 3))
        last = f"r{end}"
        nodes += [
            helper.make_node("Conv", given, [f"c{end}"], name=f"conv{end}", pads=[1, 1, 1, 1]),
            helper.make_node("Relu", [f"c{end}"], [last], name=f"relu{end}"),
        ]
    graph = helper.make_graph(
        [
            *nodes,
            helper.make_node("GlobalAveragePool", [last], ["p"], name="pool"),
            helper.make_node("Flatten", ["p"], ["f"], name="flatten"),
            helper.make_node("Gemm", ["f", "w2", "b2"], ["y"], name="gemm", transB=1),
        ],
        "tiny",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 5])],
        [numpy_helper.from_array(value.astype(np.float32), name) for name, value in weights.items()],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.checker.check_model(model)
    outside = {} if external is None else {"save_as_external_data": True, "location": external, "size_threshold": 0}
    onnx.save(model, path, **outside)


def make_nothing_to_quantize(path: Path) -> None:
    """One Identity: input ``x`` float32 [batch, 4]."""
    graph = helper.make_graph(
        [helper.make_node("Identity", ["x"], ["y"], name="same")],
        "nothing",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", 4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 4])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


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

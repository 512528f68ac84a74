"""Models that look rows of a table up, what is made of them without a pipeline, and numpy's word on it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import numpy_helper

from tests.unit.quantizer.toolbox import config, make_model, normal, rng
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.graph.skeleton import copy_of
from worker.quantizer.modes.planning import Planned, plan_model, prepare_model
from worker.quantizer.modes.registry import MODES
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import QuantizationPlan

ROWS = 11
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}


def table_of(rows: int = ROWS, columns: int = 8) -> np.ndarray:
    """Rows of very different size, one of them positive, none of zeros."""
    table = normal(rows, columns, seed=5) * np.exp(rng(6).uniform(-3, 3, (rows, 1)))
    table[1] = np.abs(table[1])
    return table.astype(np.float32)


def lookup(columns: int = 8, opset: int = 17) -> onnx.ModelProto:
    return make_model(
        f"(int64[N,3] ids) => (float[N,3,{columns}] y) {{ [look] y = Gather(table, ids) }}",
        {"table": table_of(columns=columns)},
        opset=opset,
    )


def indices(samples: int = 4, *shape: int, rows: int = ROWS) -> np.ndarray:
    """Every row, some of them counted from the end."""
    found = rng(1).permutation(np.arange(samples * int(np.prod(shape))) % (2 * rows) - rows)
    return found.reshape(samples, *shape)


def emitted(
    model: onnx.ModelProto, edit: Callable[[QuantizationPlan], None] = lambda plan: None, **settings: Any
) -> tuple[onnx.ModelProto, Planned]:
    """The quantized model of a config that plans no activations, and its plan, which ``edit`` may change at last."""
    chosen, copy = config(**settings), onnx.ModelProto()
    copy.CopyFrom(model)
    prepared, _ = prepare_model(ir.from_proto(copy), chosen)
    planned = plan_model(prepared, chosen)
    Parameters(prepared.graph, planned.plan).fill()
    edit(planned.plan)
    made = MODES[chosen.mode].form.emit(copy_of(prepared.model), planned.plan).model
    prepared.restore_interface(made)
    found = onnx.load_from_string(to_bytes(made))
    onnx.checker.check_model(found)
    return found, planned


def rounded(table: np.ndarray, spec: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What MinMax makes of a table [rows, columns]: steps from the zero point, scale of every element, values."""
    width = {"per_tensor": table.size, "per_channel": table.shape[1]}.get(spec["granularity"], spec.get("block_size"))
    source = table.reshape(1, -1) if spec["granularity"] == "per_tensor" else table
    low, high = np.zeros((2, *source.shape))
    for first in range(0, source.shape[1], width or 1):
        part = np.s_[:, first : first + (width or 1)]
        low[part] = np.minimum(source[part].min(1, keepdims=True), 0)
        high[part] = np.maximum(source[part].max(1, keepdims=True), 0)
    smallest, largest = LIMITS[spec["dtype"]]
    if spec["symmetric"]:
        high = np.maximum(-low, high)
        low, smallest = -high, -largest if smallest else 0
    scale = (high - low) / (largest - smallest)
    if spec.get("scale") == "float16":
        scale = scale.astype(np.float16).astype(np.float64)
    zero = np.round((smallest + largest) / 2) if spec["symmetric"] else np.round(smallest - low / scale)
    scale, zero = scale.astype(np.float32), np.clip(zero, smallest, largest).astype(np.float32)
    steps = np.clip(np.rint(source / scale), smallest - zero, largest - zero)
    return tuple(array.reshape(table.shape) for array in (steps, scale, steps * scale))


def arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    """All constants by name, those of Constant nodes left out."""
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def large(model: onnx.ModelProto, elements: int) -> list[np.ndarray]:
    """The constants of that many elements or more, as they are stored; indices left out."""
    return [array for array in arrays(model).values() if array.size >= elements and array.dtype != np.int64]

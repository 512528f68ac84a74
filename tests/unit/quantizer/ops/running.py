"""One node, and what onnxruntime makes of arrays with it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
from onnx import TensorProto, helper

from tests.unit.quantizer.toolbox import run_onnx

Run = Callable[..., list[np.ndarray]]


def node_and_run(
    op_type: str,
    inputs: Mapping[str, tuple[int, ...]],
    constants: Mapping[str, np.ndarray] | None = None,
    *,
    outputs: int = 1,
    opset: int = 17,
    **attributes: Any,
) -> tuple[ir.Node, Run]:
    """A node that reads ``inputs`` of these shapes and then ``constants``, with shapes inferred; and what runs it."""
    held, made = dict(constants or {}), [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op_type, [*inputs, *held], made, name="n", **attributes)
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()]
    results = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in made]
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in held.items()]
    graph = helper.make_graph([node], "g", values, results, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)

    def run(**arrays: np.ndarray) -> list[np.ndarray]:
        found = run_onnx(model, arrays)
        return [found[name] for name in made]

    return ir.from_proto(model).graph[0], run

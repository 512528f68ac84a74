"""Runs a plan without Q/DQ nodes: the float graph node by node, every planned tensor put on its grid in between.

Each node is computed by onnxruntime in float on its own, so nothing of emission or of the runtime's fusion takes part.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import QuantizationPlan


def simulate(model: ir.Model, plan: QuantizationPlan, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """All tensors by name, as float32.

    Integer nodes read values on their grids, float nodes read them too if an integer node made them.
    """
    proto = ir.to_proto(model)
    values = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in proto.graph.initializer} | dict(feeds)
    on_grid = {
        name: weight.quantization.dequantize(weight.integers)
        if isinstance(weight.quantization, IntegerGrid)
        else weight.quantization.fake(values[name])
        for name, weight in plan.weights.items()
    }
    producers = {output: node.name for node in proto.graph.node for output in node.output}
    for name in feeds:
        _put_on_grid(name, plan, values, on_grid)
    for node in proto.graph.node:
        quantized = plan.nodes[node.name].quantized
        inputs = {}
        for position, name in enumerate(node.input):
            if not name:
                continue
            made_by_integers = name in producers and plan.nodes[producers[name]].quantized
            reads_grid = (quantized and (position != 1 or name in plan.weights)) or made_by_integers
            inputs[name] = on_grid.get(name, values[name]) if reads_grid or quantized else values[name]
        bias = plan.biases.get(node.name)
        if bias is not None and bias.quantization is not None and bias.integers is not None:
            stored = bias.quantization.dequantize(bias.integers)
            inputs[node.input[2]] = stored.reshape(values[node.input[2]].shape)
        values |= _run(node, inputs, proto)
        for name in node.output:
            _put_on_grid(name, plan, values, on_grid)
    return values | {name: value for name, value in on_grid.items() if name in producers}


def _put_on_grid(
    name: str, plan: QuantizationPlan, values: dict[str, np.ndarray], on_grid: dict[str, np.ndarray]
) -> None:
    entry = plan.activations.get(name)
    if entry is not None and entry.quantization is not None and name in values:
        on_grid[name] = entry.quantization.at_run_time().fake(values[name])


def _run(node: onnx.NodeProto, inputs: Mapping[str, np.ndarray], proto: onnx.ModelProto) -> dict[str, np.ndarray]:
    graph = onnx.helper.make_graph(
        [node],
        "one",
        [
            onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
            for name, array in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    model = onnx.helper.make_model(graph, opset_imports=proto.opset_import, ir_version=proto.ir_version)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [name for name in node.output if name]
    return dict(zip(names, session.run(names, dict(inputs)), strict=True))

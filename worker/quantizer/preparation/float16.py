"""Turns a float16 model into float32: weights, casts and inner types. Inputs and outputs keep their type behind a
Cast.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.reason import declare
from worker.quantizer.graph.rewriting import PassOutcome
from worker.quantizer.graph.values import name_of

NO_FLOAT16 = declare("no-float16", "the model contains no float16")
_HALF, _FLOAT = ir.DataType.FLOAT16, ir.DataType.FLOAT
_TYPE_ATTRIBUTES = ("to", "dtype")  # of Cast; of EyeLike, RandomNormal ...


def _holds_float16(model: ir.Model) -> bool:
    """True if an input, an initializer or an attribute is float16, or a node makes float16; in sub-graphs too."""
    for graph in (model.graph, *model.graph.subgraphs()):
        if any(value.dtype == _HALF for value in graph.inputs):
            return True
        if any(v.const_value is not None and v.const_value.dtype == _HALF for v in graph.initializers.values()):
            return True
    return any(_names_float16(node) for node in model.graph.all_nodes())


def _names_float16(node: ir.Node) -> bool:
    for name, attr in node.attributes.items():
        if attr.type == ir.AttributeType.TENSOR and attr.as_tensor().dtype == _HALF:
            return True
        if name in _TYPE_ATTRIBUTES and attr.type == ir.AttributeType.INT and attr.as_int() == _HALF.value:
            return True
    return False


def float16_to_float32(model: ir.Model) -> PassOutcome:
    """Convert in place; every float16 value is exact in float32."""
    if not _holds_float16(model):
        return PassOutcome(model, NO_FLOAT16())
    graph = model.graph
    converted = 0
    half_outputs = [k for k, value in enumerate(graph.outputs) if value.dtype == _HALF]
    graphs = [graph, *graph.subgraphs()]
    for owner in graphs:
        for value in owner.initializers.values():
            if value.const_value is not None and value.const_value.dtype == _HALF:
                value.const_value = ir.tensor(value.const_value.numpy().astype(np.float32), name=value.name)
                value.dtype = _FLOAT
                converted += 1
    for node in graph.all_nodes():
        converted += _convert_attributes(node)
        for output in node.outputs:
            if output.dtype == _HALF:
                output.dtype = _FLOAT
    for owner in graphs[1:]:
        for value in owner.inputs:
            if value.dtype == _HALF:
                value.dtype = _FLOAT
    _keep_interface(graph, half_outputs)
    return PassOutcome(model, f"{converted} float16 constants widened to float32")


def _convert_attributes(node: ir.Node) -> int:
    converted = 0
    for name, attr in list(node.attributes.items()):
        if attr.type == ir.AttributeType.TENSOR and attr.as_tensor().dtype == _HALF:
            node.attributes[name] = ir.AttrTensor(name, ir.tensor(attr.as_tensor().numpy().astype(np.float32)))
            converted += 1
    for name in _TYPE_ATTRIBUTES:
        named = node.attributes.get(name)
        if named is not None and named.type == ir.AttributeType.INT and named.as_int() == _HALF.value:
            node.attributes[name] = ir.AttrInt64(name, _FLOAT.value)
    return converted


def _keep_interface(graph: ir.Graph, half_outputs: list[int]) -> None:
    for value in graph.inputs:
        if value.dtype == _HALF and value.uses():
            wide = ir.node("Cast", [value], attributes={"to": _FLOAT.value}, name=f"{name_of(value)}_to_float32")
            wide.outputs[0].name, wide.outputs[0].dtype = f"{name_of(value)}_float32", _FLOAT
            wide.outputs[0].shape = value.shape
            readers = [usage for usage in value.uses() if usage.node is not wide]
            for usage in readers:
                usage.node.replace_input_with(usage.idx, wide.outputs[0])
            graph.insert_before(graph[0], wide)
    for k in half_outputs:
        value = graph.outputs[k]
        if value.is_graph_input():
            continue  # it goes through as it came
        name = name_of(value)
        value.name = f"{name}_float32"
        narrow = ir.node("Cast", [value], attributes={"to": _HALF.value}, name=f"{name}_to_float16")
        narrow.outputs[0].name, narrow.outputs[0].dtype, narrow.outputs[0].shape = name, _HALF, value.shape
        graph.append(narrow)
        graph.outputs[k] = narrow.outputs[0]

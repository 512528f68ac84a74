"""Runs a plan without Q/DQ nodes: the float graph node by node, every planned tensor put on its grid in between.

Each node is computed by onnxruntime in float on its own, so nothing of emission or of the runtime's fusion takes part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime as ort

from worker.quantizer.emit import Emitted
from worker.quantizer.graph.values import add_initializer, name_of
from worker.quantizer.numerics.blocks import BlockGrid, FloatGrid, Grid
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.runtime.host import saturates_pairs


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
        elif bias is not None and bias.is_half:
            inputs[node.input[2]] = FloatGrid(bias.spec.dtype).fake(values[node.input[2]])
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
    return _all_of(model, [name for name in node.output if name], inputs, optimized=False)


def layer_distances(
    model: ir.Model, plan: QuantizationPlan, emitted: Emitted, feeds: Mapping[str, np.ndarray]
) -> dict[str, float]:
    """How far the emitted model is from the plan, layer by layer, in steps of each tensor's own grid.

    The emitted model runs once and shows every quantized tensor. The float graph, with the plan's weights and biases,
    then computes each of them anew from the emitted model's values of those before. So a rounding that turned out
    otherwise counts where it happened and nowhere else.

    Returns the largest distance of any element by quantized tensor, infinity where one is not on the tensor's grid at
    all; and by float output of the graph, in units of a thousandth of its largest value, or of what the runtime's
    kernels differ by.
    """
    restored = emitted.restored
    plain = [name_of(value) for value in model.graph.outputs if name_of(value) not in plan.activations]
    seen = _all_of(ir.to_proto(emitted.model), [*restored.values(), *plain], feeds, optimized=True)
    cut = _cut_before_readers(model, plan)
    given = {f"{tensor}{_GIVEN}": seen[name] for tensor, name in restored.items()}
    given = {value.name: given[value.name] for value in cut.graph.inputs if value.name in given}
    wanted = [*(tensor for tensor in restored if tensor not in feeds), *plain]
    made = _all_of(ir.to_proto(cut), wanted, {**feeds, **given}, optimized=False) | dict(feeds)
    distances = {}
    for tensor, name in restored.items():
        grid = plan.activations[tensor].quantization
        assert grid is not None
        grid = grid.at_run_time()
        expected, got = grid.fake(made[tensor]), seen[name]
        steps = _steps(grid, expected, got)
        off = np.abs(expected.astype(np.float64) - got) / steps
        # two grids that both come near a value are near each other, too: so what came out must be on this very one
        astray = np.abs(grid.fake(got).astype(np.float64) - got) > 1e-3 * steps
        distances[tensor] = float("inf") if astray.any() else float(off.max(initial=0.0))
    for name in plain:
        if made[name].dtype == np.float32:
            unit = 1e-3 * float(np.abs(made[name]).max(initial=0.0)) + _KERNEL_ERROR
            distances[name] = float(np.abs(made[name].astype(np.float64) - seen[name]).max(initial=0.0)) / unit
    return distances


_GIVEN = "__given"
_NUDGE = 1 + 2.0**-20  # code * scale / scale may come out below a power of two that the code is
_KERNEL_ERROR = 1e-6  # of a Sigmoid, whose values may be smaller by far


def _cut_before_readers(model: ir.Model, plan: QuantizationPlan) -> ir.Model:
    """The float graph with stored weights and biases, where readers of integers read an input of the graph instead."""
    clone = ir.from_proto(ir.to_proto(model))
    graph = clone.graph

    def quantized(node: ir.Node | None) -> bool:
        return node is not None and node.graph is graph and plan.nodes[node.name or ""].rounds

    for name, array in plan.moved.items():
        if name in graph.initializers:
            graph.initializers[name].const_value = ir.tensor(array, name=name)
    made = [output for node in graph for output in node.outputs]
    values = {name_of(value): value for value in (*graph.inputs, *made) if value.name}
    for tensor in plan.activations:
        value = values[tensor]
        readers = [use for use in value.uses() if quantized(value.producer()) or quantized(use.node)]
        given = ir.Value(name=f"{tensor}{_GIVEN}", type=value.type)
        for use in readers:
            use.node.replace_input_with(use.idx, given)
        if readers:
            graph.inputs.append(given)
    parameters = Parameters(graph, plan)
    for name, weight in plan.weights.items():
        value = graph.initializers[name]
        grid, array = weight.quantization, value.const_value.numpy()
        stored = grid.dequantize(weight.integers) if isinstance(grid, IntegerGrid) else grid.fake(array)
        kept = add_initializer(graph, f"{name}__stored", stored)
        for use in list(value.uses()):
            if use.node.graph is graph and parameters.is_stored(use.node, use.idx):
                use.node.replace_input_with(use.idx, kept)
    nodes = {node.name: node for node in graph}
    for name, bias in plan.biases.items():
        if bias.quantization is not None and bias.integers is not None:
            shape = graph.initializers[bias.initializer].const_value.numpy().shape
            stored = bias.quantization.dequantize(bias.integers).reshape(shape)
            nodes[name].replace_input_with(2, add_initializer(graph, f"{name}__bias", stored))
        elif bias.is_half:
            stored = FloatGrid(bias.spec.dtype).fake(graph.initializers[bias.initializer].const_value.numpy())
            nodes[name].replace_input_with(2, add_initializer(graph, f"{name}__bias", stored))
    return clone


def _all_of(
    proto: onnx.ModelProto, names: Sequence[str], feeds: Mapping[str, np.ndarray], *, optimized: bool
) -> dict[str, np.ndarray]:
    """The tensors of these names, whether they are outputs or not."""
    del proto.graph.output[:]
    proto.graph.output.extend(onnx.ValueInfoProto(name=name) for name in dict.fromkeys(names))
    options = ort.SessionOptions()
    if not optimized:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    # By itself the runtime rounds what meets integer weights in float to 8 bits on the way.
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    if saturates_pairs():
        options.add_session_config_entry("session.x64quantprecision", "1")
    session = ort.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, dict(feeds)), strict=True))


def _steps(grid: Grid, a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Distance of neighbours on a grid around the values ``a`` and ``b``, at least; broadcasts against them."""
    if isinstance(grid, IntegerGrid):
        return np.asarray(grid.scale, np.float64)
    size = np.maximum(np.abs(a), np.abs(b)).astype(np.float64)
    if isinstance(grid, BlockGrid):
        # the shared exponent is that of the block's largest value; every block of the axis at once is coarse but enough
        block = grid.form.block_size
        axis = grid.axis % size.ndim
        lines = np.moveaxis(size, axis, -1)
        padded = np.pad(lines, [(0, 0)] * (lines.ndim - 1) + [(0, -lines.shape[-1] % block)])
        peak = padded.reshape(*padded.shape[:-1], -1, block).max(axis=-1)
        peak = np.moveaxis(np.repeat(peak, block, axis=-1)[..., : lines.shape[-1]], -1, axis)
        return np.exp2(np.floor(np.log2(np.maximum(peak, 1e-38)))) * _BLOCK_STEP[grid.dtype]
    bits, smallest = _FLOAT_STEP[grid.dtype]
    scale = np.asarray(grid.scale, np.float64)
    return np.maximum(np.exp2(np.floor(np.log2(np.maximum(size / scale * _NUDGE, 1e-38))) - bits), smallest) * scale


# By type: the step of a block's integers in units of its largest value's power of two; mantissa bits and the step next
# to zero of a float.
_BLOCK_STEP = {"bfp16": 2.0**-6, "mx9": 2.0**-6, "mx6": 2.0**-3}
_FLOAT_STEP = {"float8_e4m3fn": (3, 2.0**-9), "float8_e5m2": (2, 2.0**-16)}

"""How weights and biases are represented, decided before any number is known; and grids by spec and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from service.contracts.errors import EngineError
from service.contracts.reason import Reason, declare
from service.contracts.specs import (
    HALF_DTYPES,
    ActivationSpec,
    BiasSpec,
    MseCalibration,
    WeightSpec,
    is_block,
    is_float8,
    is_integer,
    needs_calibration,
)
from worker.quantizer.graph.values import DEFAULT_DOMAINS, constant, is_constant, is_float32, name_of, node_name, users
from worker.quantizer.numerics.blocks import BLOCK_FORMATS, FLOATS, BlockGrid, FloatGrid, Grid
from worker.quantizer.numerics.integer import (
    PER_TENSOR,
    Granularity,
    IntegerGrid,
    PerAxis,
    PerBlock,
    grid_for_range,
    integer_limits,
    snap_scale,
)
from worker.quantizer.ops.linear import MATRIX_PRODUCTS, bias_of, linear_view, summed_axis
from worker.quantizer.ops.table import Family, operator
from worker.quantizer.plan.selection import Selection
from worker.quantizer.plan.types import BiasPlan, PlanLog, QuantizationPlan, Role, WeightPlan
from worker.quantizer.statistics.observers import Range
from worker.quantizer.statistics.weights import weight_range

TRAINING_FAULT = "Look for the training fault that left NaN or Inf in the weights."
OPERANDS_NOT_FLOAT32 = declare("operands-not-float32", "its operands are not float32")
WEIGHT_NOT_CONSTANT = declare(
    "weight-not-constant",
    "its weight is not constant",
    hint="Fold the weight into a constant before the export.",
)
WEIGHT_NOT_FINITE = declare(
    "weight-not-finite",
    "its weight is empty or contains NaN or Inf",
    hint=TRAINING_FAULT,
)
BIAS_FLOAT_ASKED = declare("bias-float-asked-for", "bias dtype is float32")
BIAS_NOT_CONSTANT = declare("bias-not-constant", "the bias is not constant")
BIAS_NOT_FINITE = declare("bias-not-finite", "the bias is empty or contains NaN or Inf", hint=TRAINING_FAULT)
BIAS_SCALED = declare("bias-scaled", "alpha or beta differs from 1")
BIAS_NOT_PER_CHANNEL = declare("bias-not-per-channel", "the bias has shape {shape}, not one value per channel")
BIAS_NEEDS_INTEGER_WEIGHT = declare(
    "bias-needs-integer-weight", "an int32 bias needs an integer weight with one scale per tensor or per channel"
)
BIAS_NEEDS_INTEGER_INPUT = declare("bias-needs-integer-input", "an int32 bias needs an input on an integer grid")


def unusable_weight(weight: ir.Value | None) -> Reason | None:
    """Why a weight cannot be quantized, whatever the types; None if it can."""
    if not is_float32(weight):
        return OPERANDS_NOT_FLOAT32()
    if not is_constant(weight):
        return WEIGHT_NOT_CONSTANT()
    return None if is_finite(weight) else WEIGHT_NOT_FINITE()


def is_finite(value: ir.Value | None) -> bool:
    """True for a constant that holds numbers, and neither NaN nor Inf."""
    array = constant(value)
    return array is not None and array.size > 0 and bool(np.isfinite(array).all())


def plan_weight(node: ir.Node, plan: QuantizationPlan, selection: Selection, plan_log: PlanLog) -> None:
    """Enter the constant weight of ``node`` into the plan."""
    if node.inputs[1] is None:
        return
    spec = selection.weight(node)
    enter_weight(name_of(node.inputs[1]), node, spec, granularity_of(node, spec, plan_log), plan, plan_log)


def enter_weight(
    name: str, node: ir.Node, spec: WeightSpec, granularity: Granularity, plan: QuantizationPlan, plan_log: PlanLog
) -> None:
    """Enter initializer ``name``, which ``node`` reads as a weight, into the plan; its first reader's spec counts."""
    known = plan.weights.setdefault(name, WeightPlan(name, node_name(node), spec, granularity))
    if known.spec != spec:
        plan_log.note(f"weight {name!r} is shared: the spec of node {known.node!r} counts, not {node_name(node)!r}")
    elif known.granularity != granularity and not is_block(spec.dtype):
        known.granularity = PER_TENSOR
        plan_log.note(f"weight {name!r} is read along different axes: one scale for the whole tensor")


def plan_parameters(node: ir.Node, plan: QuantizationPlan, selection: Selection, plan_log: PlanLog) -> None:
    """Enter the weight of ``node``, if it is constant, and its bias into the plan."""
    weight = node.inputs[1]
    if weight is None or not is_constant(weight):
        return
    plan_weight(node, plan, selection, plan_log)
    added = bias_of(node)
    if added is not None:
        bias = BiasPlan(node_name(node), name_of(added), selection.bias(node))
        bias.reason = float_bias_reason(node, bias.spec, plan.weights[name_of(weight)])
        plan.biases[node_name(node)] = bias


def granularity_of(node: ir.Node, spec: WeightSpec, plan_log: PlanLog) -> Granularity:
    """Which elements of the node's weight share a scale or an exponent.

    ``plan_log`` takes what the node cannot have.
    """
    if is_block(spec.dtype):
        return BLOCK_FORMATS[spec.dtype].granularity(input_axis(node))
    if not needs_calibration(spec.dtype) or spec.granularity == "per_tensor":
        return PER_TENSOR
    linear = linear_view(node)
    if linear is None:
        return PER_TENSOR  # a vector: it has one output
    if spec.granularity == "per_block":
        if node.op_type in MATRIX_PRODUCTS:
            return PerBlock(input_axis(node), spec.block_size)
        plan_log.note(f"{node_name(node)}: {node.op_type} has no blocks along its inputs; one scale per channel")
    axis = weight_axis(node)
    return PER_TENSOR if axis is None else PerAxis(axis)


def weight_axis(node: ir.Node) -> int | None:
    """Axis of the output channels in the node's weight; None where one scale per channel has no kernel."""
    linear = linear_view(node)
    if linear is None or linear.stacked:
        return None
    # A depthwise ConvTranspose: axis 1 holds the channels of one group only, axis 0 counts the groups.
    return 0 if 1 < linear.groups == linear.weight_shape[0] else linear.output_axis


def input_axis(node: ir.Node) -> int:
    """Axis of the node's weight that products are summed over."""
    linear = linear_view(node)
    return 0 if linear is None else linear.input_axis  # a vector has no other axis


def float_bias_reason(node: ir.Node, spec: BiasSpec, weight: WeightPlan) -> Reason | None:
    """Why the bias stays in float; None if it is quantized."""
    array = constant(node.inputs[2])
    if spec.dtype == "float32":
        return BIAS_FLOAT_ASKED()
    if array is None:
        return BIAS_NOT_CONSTANT()
    if array.size == 0 or not np.isfinite(array).all():
        return BIAS_NOT_FINITE()
    if spec.dtype in HALF_DTYPES:
        return None
    linear = linear_view(node)
    if linear is not None and (linear.alpha, linear.beta) != (1.0, 1.0):
        return BIAS_SCALED()
    is_row = array.ndim == 1 or (array.ndim == 2 and array.shape[0] == 1)
    if linear is None or array.size != linear.out_channels or not is_row:
        return BIAS_NOT_PER_CHANNEL(shape=list(array.shape))
    if spec.dtype == "int32" and (not is_integer(weight.spec.dtype) or isinstance(weight.granularity, PerBlock)):
        return BIAS_NEEDS_INTEGER_WEIGHT()
    return None


def judge_biases(graph: ir.Graph, plan: QuantizationPlan) -> None:
    """Say anew which biases can be quantized: their own type or that of their weight has changed."""
    nodes = {node_name(node): node for node in graph}
    for bias in plan.biases.values():
        node = nodes[bias.node]
        weight = plan.weights.get(name_of(node.inputs[1])) if node.inputs[1] is not None else None
        if weight is not None:
            bias.reason = float_bias_reason(node, bias.spec, weight)


def is_searched_whole(weight: WeightPlan) -> bool:
    """True if one scale serves the whole weight and is searched by square error."""
    return weight.granularity == PER_TENSOR and isinstance(weight.spec.calibration, MseCalibration)


def counted(array: np.ndarray, weight: WeightPlan, plan: QuantizationPlan) -> np.ndarray:
    """The weight as the search for its range sees it: silent output channels are 0, unless all of them are.

    ``array`` is float32, its first axis the output channels.
    """
    silent = plan.silent.get(weight.initializer)
    if silent is None or silent.size != array.shape[0] or not silent.any() or silent.all():
        return array
    if not is_searched_whole(weight):
        return array
    kept: np.ndarray = np.where(silent.reshape(-1, *[1] * (array.ndim - 1)), np.float32(0), array)
    return kept


# Limits per channel: a Min or Max with a constant that has a value of its own for every channel.
#
# Equalization makes them of a Clip whose channels it scales. What they limit is far out of range before them, so that
# nothing may be rounded there: the Q/DQ pair stands behind the limit. Where the runtime can, the limit is then kept on
# integers: rounding to one grid never changes the order of two values, so q(min(x, h)) = min(q(x), q(h)) for every x.
def limited_operand(node: ir.Node) -> int | None:
    """Index of the operand that ``node`` limits channel by channel; None if it is no such limit."""
    if (
        operator(node.op_type).family is not Family.EXTREMUM
        or node.domain not in DEFAULT_DOMAINS
        or len(node.inputs) != 2
    ):
        return None
    fixed = [k for k, value in enumerate(node.inputs) if is_constant(value)]
    if len(fixed) != 1:
        return None
    limit = node.inputs[fixed[0]]
    shape = limit.shape if limit is not None else None
    if shape is None or sum(dim != 1 for dim in shape) != 1 or not is_float32(limit):
        return None
    return 1 - fixed[0]


def belongs_before(node: ir.Node, plan: QuantizationPlan) -> bool:
    """True if ``node`` is a limit that alone reads its input and goes with the node that makes it.

    That is a fused activation function; or a linear node, where the target has no Min of its own.
    """
    index = limited_operand(node)
    value = node.inputs[index] if index is not None else None
    producer = value.producer() if value is not None else None
    if value is None or producer is None or len(users(value)) > 1 or value.is_graph_output():
        return False
    before = plan.nodes.get(node_name(producer))
    if before is None:
        return False
    alone = plan.nodes[node_name(node)].role is None
    return before.role is Role.FUSED or (alone and before.role is Role.LINEAR)


# The grid of a tensor, by its spec and its numbers: activations by ranges, weights by values, biases by both.

# A quarter of the int32 range: the accumulator adds the products of weights and activations on top of the bias.
_BIAS_LIMIT = 2**29


def fill_activations(graph: ir.Graph, plan: QuantizationPlan, ranges: Mapping[str, Range]) -> None:
    """Give every planned activation its grid.

    ``ranges`` are by source tensor, where the type needs one; the plan is changed in place.

    Raises:
        EngineError: a range is missing or not finite; names the tensor.
    """
    values = {value.name: value for value in (*graph.inputs, *(made for node in graph for made in node.outputs))}
    for entry in plan.activations.values():
        if not needs_calibration(entry.spec.dtype):
            dtype, value = entry.spec.dtype, values[entry.tensor]
            entry.quantization = BlockGrid(dtype, _block_axis(value, plan)) if is_block(dtype) else FloatGrid(dtype)
            continue
        found = ranges.get(entry.source)
        if found is None or not (np.isfinite(found.minimum) and np.isfinite(found.maximum)):
            raise EngineError(
                f"tensor {entry.source!r} has no finite range on the calibration data",
                hint="The float model computes NaN or Inf there; check the preprocessing, or exclude the node.",
                tensor=entry.source,
            )
        entry.quantization = activation_grid(entry.spec, found)


def _block_axis(value: ir.Value, plan: QuantizationPlan) -> int:
    """The axis that blocks run along: the one its first linear reader sums over, else that of the channels."""
    for usage in value.uses():
        planned = plan.nodes.get(node_name(usage.node))
        if planned is not None and planned.role is Role.LINEAR and usage.idx < 2:
            return summed_axis(usage.node, usage.idx)
    return 1 if value.shape is None or len(value.shape) > 2 else -1


def activation_grid(spec: ActivationSpec, found: Range) -> Grid:
    """The grid of an activation of this spec and range; the spec's type is one that needs a range."""
    if is_float8(spec.dtype):
        largest = np.asarray(max(abs(found.minimum), abs(found.maximum)), np.float32)
        return FloatGrid(spec.dtype, FLOATS[spec.dtype].scale_for(largest))
    return integer_grid(spec, found)


def integer_grid(spec: ActivationSpec, found: Range) -> IntegerGrid:
    """The same for a type of integers."""
    scale, zero_point = grid_for_range(
        np.asarray(found.minimum),
        np.asarray(found.maximum),
        spec.dtype,
        symmetric=spec.symmetric,
        scale=spec.scale,
        reduce_range=spec.reduce_range,
    )
    return IntegerGrid(spec.dtype, scale, zero_point, symmetric=spec.symmetric, reduce_range=spec.reduce_range)


def weight_grid(array: np.ndarray, spec: WeightSpec, granularity: Granularity, *, threads: int = 1) -> Grid:
    """The grid of a weight.

    ``array`` is float32; ``granularity`` says which of its elements share a scale; for a block type, the blocks.
    """
    if isinstance(granularity, PerBlock) and is_block(spec.dtype):
        return BlockGrid(spec.dtype, granularity.axis)
    if not needs_calibration(spec.dtype):
        return FloatGrid(spec.dtype)
    groups, shape = granularity.rows(array), granularity.scale_shape(array.shape)
    low, high = weight_range(groups, spec, threads=threads)
    if is_float8(spec.dtype):
        largest = np.maximum(np.abs(low), np.abs(high))
        return FloatGrid(spec.dtype, FLOATS[spec.dtype].scale_for(largest).reshape(shape), granularity)
    scale, zero_point = grid_for_range(
        low, high, spec.dtype, symmetric=spec.symmetric, scale=spec.scale, reduce_range=spec.reduce_range
    )
    dead = ~groups.any(axis=1)
    if dead.any():
        # Any scale holds zeros; a usual one keeps the bias of the dead channel exact.
        median = np.asarray(2.0**-7 if dead.all() else np.median(scale[~dead].astype(np.float64)))
        usual = snap_scale(median, spec.scale)
        scale = np.where(dead, usual, scale).astype(np.float32)
    return IntegerGrid(
        spec.dtype,
        scale.reshape(shape),
        zero_point.reshape(shape),
        granularity,
        symmetric=spec.symmetric,
        reduce_range=spec.reduce_range,
    )


def product_grid(node: ir.Node, weight: WeightPlan, source: IntegerGrid, channels: int) -> IntegerGrid:
    """The int32 grid of a bias: input scale times weight scale, one per channel if the weight has one per channel.

    ``channels`` is the number of values of the bias.

    Raises:
        EngineError: the weight has no integer grid.
    """
    scale = (float(source.scale) * _channel_scales(node, weight, channels)).astype(np.float32)
    per_channel = channels > 1 and weight.granularity != PER_TENSOR
    shape = scale if per_channel else scale[0]
    zero = np.zeros_like(shape, dtype=np.int32)
    granularity = PerAxis(0) if per_channel else PER_TENSOR
    return IntegerGrid("int32", np.asarray(shape), np.asarray(zero), granularity)


def own_bias_grid(bias: np.ndarray, dtype: str, kind: str) -> IntegerGrid:
    """A symmetric grid over the whole bias: the finest scale of ``kind`` that lets nothing saturate."""
    largest = np.abs(bias).max()
    scale, zero_point = grid_for_range(-largest, largest, dtype, symmetric=True, scale=kind)
    if float(scale) * integer_limits(dtype, symmetric=True)[1] < float(largest):
        scale, zero_point = grid_for_range(-2 * largest, 2 * largest, dtype, symmetric=True, scale=kind)
    return IntegerGrid(dtype, scale, zero_point, symmetric=True)


def raised_for_bias(
    node: ir.Node, weight: WeightPlan, source: IntegerGrid, bias: np.ndarray
) -> tuple[Grid | None, int]:
    """The weight's grid with scales so large that the int32 bias cannot overflow.

    ``bias`` is float32 of any shape. Returns the grid, and the number of output channels concerned.
    """
    grid = weight.quantization
    if not isinstance(grid, IntegerGrid):
        return grid, 0
    flat = np.abs(bias.reshape(-1).astype(np.float64))
    needed = flat / (float(source.scale) * _BIAS_LIMIT)
    low = _channel_scales(node, weight, flat.size) < needed
    if not low.any():
        return grid, 0
    if grid.scale.ndim:
        size = grid.scale.size
        per_scale = (
            needed.reshape(size, -1).max(axis=1) if _by_group(node, weight) else needed.reshape(-1, size).max(axis=0)
        )
        scale = np.maximum(grid.scale, per_scale)
    else:
        scale = np.asarray(max(float(grid.scale), float(needed.max())))
    if weight.spec.scale != "float32":  # stay on the scale's own grid, above what is needed
        scale = snap_scale(np.where(scale > grid.scale, 2 * scale.astype(np.float64), grid.scale), weight.spec.scale)
    return replace(grid, scale=scale.astype(np.float32)), int(low.sum())


def _channel_scales(node: ir.Node, weight: WeightPlan, channels: int) -> np.ndarray:
    """float64 [channels]: the weight scale of every output channel."""
    if not isinstance(weight.quantization, IntegerGrid):
        raise EngineError(f"weight {weight.initializer!r} has no integer grid", tensor=weight.initializer)
    scale = np.atleast_1d(weight.quantization.scale).astype(np.float64)
    chosen: np.ndarray = scale[scale_of_channel(node, weight, channels, scale.size)]
    return chosen


def scale_of_channel(node: ir.Node, weight: WeightPlan, channels: int, scales: int) -> np.ndarray:
    """Int [channels]: which of the weight's scales each output channel has.

    A grouped ConvTranspose has one scale per channel of a group, a depthwise one has one per group.
    """
    numbers = np.arange(scales)
    return np.repeat(numbers, channels // scales) if _by_group(node, weight) else np.resize(numbers, channels)


def _by_group(node: ir.Node, weight: WeightPlan) -> bool:
    return node.op_type == "ConvTranspose" and weight.granularity == PerAxis(0)

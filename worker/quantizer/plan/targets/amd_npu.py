"""AMD's NPU: convolutional networks as XINT8 (Vitis AI's DPU), transformers by their matrix products.

What the DPU computes (Vitis AI's DPU simulation): operators that it has in place of others, and their roles. Some
replacements compute another function; each is returned, and what follows is calibrated on what they compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.metadata import StandIn, hand_on
from worker.quantizer.graph.rewriting import axis_length, rank_of, reduced_axes
from worker.quantizer.graph.values import (
    DEFAULT_DOMAINS,
    Names,
    activation_limits,
    add_initializer,
    constant,
    float_attribute,
    is_constant,
    is_float32,
    name_of,
    node_name,
)
from worker.quantizer.ops.channels import MOVERS
from worker.quantizer.ops.linear import LINEAR, MATRIX_PRODUCTS
from worker.quantizer.plan.rules.grids import int8_bias, xint8
from worker.quantizer.plan.rules.heads import find_heads
from worker.quantizer.plan.rules.shifts import SHIFT_RULES, settle_positions
from worker.quantizer.plan.targets.runtimes import (
    FLOAT_CHAINS,
    FLOAT_MIXED_HEADS,
    LOSSLESS,
    common_reasons,
    integer_roles,
)
from worker.quantizer.plan.types import Decision, Role, Rule, RuleContext, Stage, Target, rule

_SIXTH = 1.0 / 6.0
_DPU_SIXTH = 2731.0 / 16384.0
_ALPHA_TOLERANCE = 1e-3
_ALPHA_STEPS = 256
# m / 2^n in place of 1 / k^2, as the hardware's tables hold it for square kernels k.
_SQUARE_KERNELS = {3: (7, 64), 5: (10, 256), 6: (7, 256), 7: (21, 1024), 14: (21, 4096)}
_LARGEST_AREA = 255


def sigmoid_to_hard_sigmoid(context: RuleContext) -> Iterator[Decision]:
    """Sigmoid(x) becomes HardSigmoid(x) = clip(x / 6 + 1/2, 0, 1), but where it makes the network's scores."""
    heads = find_heads(context.graph) if context.options["float_heads"] else set()
    for node in _nodes(context, "Sigmoid"):
        if node in heads:  # a HardSigmoid would make most scores 0, and nothing comes after that the CPU would delay
            continue
        _replace_by(node, "HardSigmoid", [node.inputs[0]], alpha=_SIXTH, beta=0.5)
        context.stand_ins[node_name(node)] = StandIn("Sigmoid")
        why = "the NPU has no Sigmoid; the two differ by up to 0.07"
        yield Decision("sigmoid_to_hard_sigmoid", node_name(node), "Sigmoid -> HardSigmoid", why)


def split_hard_swish(context: RuleContext) -> Iterator[Decision]:
    """HardSwish(x) = x * HardSigmoid(x; 1/6, 1/2), exactly."""
    names = Names(context.graph)
    for node in _nodes(context, "HardSwish"):
        source, name = node.inputs[0], node_name(node)
        gate = ir.node(
            "HardSigmoid", [source], attributes={"alpha": _SIXTH, "beta": 0.5}, name=names.free(f"{name}_HardSigmoid")
        )
        gate.outputs[0].name = names.free(f"{name_of(node.outputs[0])}_HardSigmoid")
        gate.outputs[0].type, gate.outputs[0].shape = node.outputs[0].type, node.outputs[0].shape
        hand_on([node], [gate])
        context.graph.insert_before(node, gate)
        _replace_by(node, "Mul", [source, gate.outputs[0]])
        why = "the NPU has no HardSwish; the two compute the same"
        yield Decision("split_hard_swish", name, "HardSwish -> HardSigmoid, Mul", why)


def div_to_mul(context: RuleContext) -> Iterator[Decision]:
    """Division by a constant becomes multiplication by its reciprocal."""
    names = Names(context.graph)
    for node in _nodes(context, "Div"):
        divisor = constant(node.inputs[1])
        if divisor is None or not divisor.all():
            continue
        name = names.free(f"{node_name(node)}_reciprocal")
        reciprocal = add_initializer(context.graph, name, (1.0 / divisor.astype(np.float64)).astype(np.float32))
        _replace_by(node, "Mul", [node.inputs[0], reciprocal])
        yield Decision("div_to_mul", node_name(node), "Div -> Mul", "the NPU has no division")


def dpu_leaky_relu(context: RuleContext) -> Iterator[Decision]:
    """LeakyRelu's alpha becomes round(256 alpha) / 256."""
    for node in _nodes(context, "LeakyRelu"):
        alpha = float_attribute(node, "alpha", 0.01)
        rounded = round(_ALPHA_STEPS * alpha) / _ALPHA_STEPS
        if rounded != alpha:
            node.attributes["alpha"] = ir.AttrFloat32("alpha", rounded)
            what = f"alpha {alpha:.6g} -> {rounded:.6g}"
            yield Decision("dpu_leaky_relu", node_name(node), what, "the NPU multiplies by 256ths")


def dpu_hard_sigmoid(context: RuleContext) -> Iterator[Decision]:
    """HardSigmoid(x) is multiplied by 6 * 2731 / 16384."""
    names = Names(context.graph)
    for node in _nodes(context, "HardSigmoid"):
        if is_dpu_hard_sigmoid(node):
            _multiply(context, node, _DPU_SIXTH / _SIXTH, names)
            why = "the NPU multiplies by 2731/16384 in place of 1/6"
            yield Decision("dpu_hard_sigmoid", node_name(node), f"times {_DPU_SIXTH / _SIXTH:.6g}", why)


def dpu_average_pool(context: RuleContext) -> Iterator[Decision]:
    """Average pooling is multiplied by the area times the m / 2^n that stands for its reciprocal."""
    return _simulate_division(context, "dpu_average_pool", {"AveragePool": _kernel, "GlobalAveragePool": _plane})


def dpu_reduce_mean(context: RuleContext) -> Iterator[Decision]:
    """The same for ReduceMean over the two spatial axes."""
    return _simulate_division(context, "dpu_reduce_mean", {"ReduceMean": _reduced})


def is_dpu_hard_sigmoid(node: ir.Node) -> bool:
    """True for the one HardSigmoid that the NPU computes: alpha 1/6 (within 1e-3), beta 1/2."""
    return (
        abs(float_attribute(node, "alpha", 0.2) - _SIXTH) < _ALPHA_TOLERANCE
        and float_attribute(node, "beta", 0.5) == 0.5
    )


def pooling_factor(height: int, width: int) -> float:
    """What an average over ``height`` x ``width`` values is multiplied by on the NPU.

    height * width * m / 2^n, where m / 2^n is the hardware's approximation of 1 / (height * width): from its table for
    some square kernels, else the nearest with n < 7 + ceil(log2(height * width)); 1 beyond an area of 255.
    """
    area = height * width
    if area > _LARGEST_AREA:
        return 1.0
    if height == width and height in _SQUARE_KERNELS:
        multiplier, divisor = _SQUARE_KERNELS[height]
        return area * multiplier / divisor
    shifts = range(max(math.ceil(math.log2(area * 128)), 1))
    best: float = min((round(2**n / area) / 2**n for n in shifts), key=lambda value: abs(value - 1 / area))
    return area * best


def _simulate_division(
    context: RuleContext, rule: str, sizes: dict[str, Callable[[ir.Node], tuple[int, int] | None]]
) -> Iterator[Decision]:
    names = Names(context.graph)
    for op_type, size_of in sizes.items():
        for node in _nodes(context, op_type):
            size = size_of(node)
            factor = 1.0 if size is None else pooling_factor(*size)
            if size is not None and factor != 1.0:
                _multiply(context, node, factor, names)
                why = f"the NPU divides by {size[0] * size[1]} with a multiplication and a shift"
                yield Decision(rule, node_name(node), f"times {factor:.6g}", why)


def _kernel(node: ir.Node) -> tuple[int, int] | None:
    attribute = node.attributes.get("kernel_shape")
    sizes = list(attribute.as_ints()) if attribute is not None else []
    return (sizes[0], sizes[1]) if len(sizes) == 2 else None


def _plane(node: ir.Node) -> tuple[int, int] | None:
    value = node.inputs[0]
    if value is None or rank_of(value) != 4:
        return None
    height, width = axis_length(value, 2), axis_length(value, 3)
    return None if height is None or width is None else (height, width)


def _reduced(node: ir.Node) -> tuple[int, int] | None:
    return _plane(node) if reduced_axes(node) == (2, 3) else None


def _nodes(context: RuleContext, op_type: str) -> list[ir.Node]:
    return [
        node
        for node in context.graph
        if node.op_type == op_type
        and node.domain in DEFAULT_DOMAINS
        and is_float32(node.outputs[0])
        and (context.selection is None or context.selection.reason(node) is None)
    ]


def _replace_by(node: ir.Node, op_type: str, inputs: list[ir.Value | None], **attributes: float) -> None:
    """Turn ``node`` into another operator, in its place and under its name."""
    node.op_type = op_type
    node.attributes.clear()
    for name, number in attributes.items():
        node.attributes[name] = ir.AttrFloat32(name, number)
    if len(inputs) > len(node.inputs):
        node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)


def _multiply(context: RuleContext, node: ir.Node, factor: float, names: Names) -> None:
    """Put a Mul by ``factor`` behind ``node``; the result keeps the node's tensor name."""
    result = node.outputs[0]
    scale = add_initializer(context.graph, names.free(f"{node_name(node)}_factor"), np.asarray(factor, np.float32))
    product = ir.node("Mul", [None, scale], name=names.free(f"{node_name(node)}_simulated"))
    hand_on([node], [product])
    context.simulated.add(node_name(product))
    made, name = product.outputs[0], name_of(result)
    made.type, made.shape = result.type, result.shape
    ir.convenience.replace_all_uses_with(result, made, replace_graph_outputs=True)
    product.replace_input_with(0, result)
    result.name, made.name = names.free(f"{name}_exact"), name
    context.graph.insert_after(node, product)


TWO_ACTIVATIONS = declare(
    "two-activations",
    "both operands of this MatMul are activations",
    hint="Switch the target option matmul_constant_b_only off to quantize it.",
)


def share_grid(*op_types: str) -> Callable[[RuleContext], list[Decision]]:
    """A rule by which nodes of these operators keep the grid of their input.

    What they do not have is no change of the plan, so that nothing is reported.
    """

    def apply(context: RuleContext) -> list[Decision]:
        for node in context.graph:
            entry = context.plan.nodes[node_name(node)]
            if node.op_type in op_types and entry.role is Role.UNARY:
                entry.role = Role.TRANSPARENT
        return []

    return apply


def matmul_constant_b_only(context: RuleContext) -> Iterator[Decision]:
    """A MatMul of two activations stays in float."""
    for node in context.graph:
        entry = context.plan.nodes[node_name(node)]
        if node.op_type == "MatMul" and entry.quantized and not is_constant(node.inputs[1]):
            why = "the NPU's kernel needs a constant B"
            yield context.leave_in_float(node, TWO_ACTIVATIONS(), "matmul_constant_b_only", why)


_POOLS = ("MaxPool", "AveragePool", "GlobalAveragePool")
_SLICES = ("Slice", "Split")
_ARITHMETIC = ("Add", "Sub", "Mul", "Min", "Max", "Concat")
_UNARY = (*_POOLS, *_SLICES, "Pad", "Clip", "HardSigmoid", "LeakyRelu", "PRelu", "ReduceMean", "Relu")
_FUSED_LIMITS = ((0.0, 6.0), (0.0, 1.0))
OTHER_HARD_SIGMOID = declare(
    "other-hard-sigmoid",
    "only HardSigmoid with alpha 1/6 and beta 1/2 has an integer kernel",
    hint="Use HardSigmoid with alpha 1/6 and beta 1/2.",
)
LEFT_TO_CPU = declare(
    "left-to-cpu",
    "{op_type} stays in float: the NPU leaves it to the CPU",
    hint="Use Relu, HardSigmoid or HardSwish instead.",
)
_ON_CPU = ("Sigmoid", "Tanh", "Gelu", "Erf", "Elu", "HardSwish", "Where", "ArgMax")


def _fuses(node: ir.Node) -> bool:
    """Clip only as ReLU6 or ReLU1."""
    return node.op_type != "Clip" or activation_limits(node) in _FUSED_LIMITS


def _refuses(node: ir.Node) -> Reason | None:
    if node.op_type == "HardSigmoid" and not is_dpu_hard_sigmoid(node):
        return OTHER_HARD_SIGMOID()
    return None


AMD_NPU_CNN = Target(
    name="amd_npu_cnn",
    roles=integer_roles(_ARITHMETIC, (*MOVERS, "Resize"), _UNARY),
    fusible=frozenset({"Relu", "Clip", "LeakyRelu", "PRelu"}),
    takes_in=frozenset({*LINEAR, "Add", *_POOLS}),
    lossless=frozenset(LOSSLESS),
    reasons={**common_reasons("amd_npu_cnn"), **{op: LEFT_TO_CPU(op_type=op) for op in _ON_CPU}},
    rules=(
        rule("div_to_mul", Stage.GRAPH, div_to_mul),
        rule("split_hard_swish", Stage.GRAPH, split_hard_swish),
        rule("sigmoid_to_hard_sigmoid", Stage.GRAPH, sigmoid_to_hard_sigmoid),
        rule("dpu_hard_sigmoid", Stage.GRAPH, dpu_hard_sigmoid),
        rule("dpu_leaky_relu", Stage.GRAPH, dpu_leaky_relu),
        rule("dpu_average_pool", Stage.GRAPH, dpu_average_pool),
        rule("dpu_reduce_mean", Stage.GRAPH, dpu_reduce_mean),
        FLOAT_MIXED_HEADS,
        FLOAT_CHAINS,
        rule("align_pool", Stage.NODES, share_grid(*_POOLS)),
        rule("align_pad", Stage.NODES, share_grid("Pad")),
        rule("align_slice", Stage.NODES, share_grid(*_SLICES)),
        rule("xint8", Stage.SPECS, xint8),
        rule("int8_bias", Stage.SPECS, int8_bias),
        Rule(SHIFT_RULES, Stage.GRIDS, settle_positions),
    ),
    whole=True,
    fuses=_fuses,
    refuses=_refuses,
)

AMD_NPU_TRANSFORMER = Target(
    name="amd_npu_transformer",
    roles=dict.fromkeys(MATRIX_PRODUCTS, Role.LINEAR),
    fusible=frozenset(),
    takes_in=frozenset(),
    lossless=frozenset(),
    reasons=common_reasons("amd_npu_transformer"),
    rules=(rule("matmul_constant_b_only", Stage.NODES, matmul_constant_b_only),),
    whole=True,
)

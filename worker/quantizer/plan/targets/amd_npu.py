"""AMD's NPU: convolutional networks as XINT8 (Vitis AI's DPU), transformers by their matrix products."""

from __future__ import annotations

import onnx_ir as ir

from service.contracts.reason import Reason, declare
from worker.quantizer.graph.values import activation_limits
from worker.quantizer.ops.channels import MOVERS
from worker.quantizer.ops.linear import LINEAR, MATRIX_PRODUCTS
from worker.quantizer.plan.rules import dpu
from worker.quantizer.plan.rules.dpu import matmul_constant_b_only, share_grid
from worker.quantizer.plan.rules.grids import int8_bias, xint8
from worker.quantizer.plan.rules.shifts import SHIFT_RULES, settle_positions
from worker.quantizer.plan.targets.runtimes import (
    FLOAT_CHAINS,
    FLOAT_MIXED_HEADS,
    LOSSLESS,
    common_reasons,
    integer_roles,
)
from worker.quantizer.plan.types import Role, Rule, Stage, Target, rule

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
    hint="Use Relu, HardSigmoid or HardSwish in its place.",
)
_ON_CPU = ("Sigmoid", "Tanh", "Gelu", "Erf", "Elu", "HardSwish", "Where", "ArgMax")


def _fuses(node: ir.Node) -> bool:
    """Clip only as ReLU6 or ReLU1."""
    return node.op_type != "Clip" or activation_limits(node) in _FUSED_LIMITS


def _refuses(node: ir.Node) -> Reason | None:
    if node.op_type == "HardSigmoid" and not dpu.is_dpu_hard_sigmoid(node):
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
        rule("div_to_mul", Stage.GRAPH, dpu.div_to_mul),
        rule("split_hard_swish", Stage.GRAPH, dpu.split_hard_swish),
        rule("sigmoid_to_hard_sigmoid", Stage.GRAPH, dpu.sigmoid_to_hard_sigmoid),
        rule("dpu_hard_sigmoid", Stage.GRAPH, dpu.dpu_hard_sigmoid),
        rule("dpu_leaky_relu", Stage.GRAPH, dpu.dpu_leaky_relu),
        rule("dpu_average_pool", Stage.GRAPH, dpu.dpu_average_pool),
        rule("dpu_reduce_mean", Stage.GRAPH, dpu.dpu_reduce_mean),
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

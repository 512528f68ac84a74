"""Qualcomm's QNN: the HTP runs the whole network on uint8 or uint16 activations."""

from __future__ import annotations

from worker.quantizer.operators.linear import LINEAR
from worker.quantizer.plan.profile import Stage, Target, rule
from worker.quantizer.plan.rules.fixed import fixed_sigmoid_tanh
from worker.quantizer.plan.rules.specs import per_tensor_matmul, unsigned_activations
from worker.quantizer.plan.targets.onnxruntime import FLOAT_CHAINS, FLOAT_MIXED_HEADS, LOSSLESS, common_reasons
from worker.quantizer.plan.types import Role

_ARITHMETIC = ("Add", "Sub", "Mul", "Min", "Max", "Concat")
_UNARY = (
    "AveragePool",
    "Clip",
    "Elu",
    "Gelu",
    "GlobalAveragePool",
    "HardSigmoid",
    "HardSwish",
    "LeakyRelu",
    "PRelu",
    "ReduceMean",
    "Relu",
    "Resize",
    "Sigmoid",
    "Softmax",
    "Tanh",
)

QNN = Target(
    name="qnn",
    roles={
        **dict.fromkeys(LINEAR, Role.LINEAR),
        **dict.fromkeys(_ARITHMETIC, Role.ARITHMETIC),
        **dict.fromkeys(_UNARY, Role.UNARY),
        **dict.fromkeys(LOSSLESS, Role.TRANSPARENT),
    },
    fusible=frozenset({"Relu", "Clip"}),
    takes_in=frozenset({*LINEAR, "Add", "Sub", "Mul"}),
    lossless=frozenset(LOSSLESS),
    reasons={op: reason for op, reason in common_reasons("qnn").items() if op not in _UNARY},
    rules=(
        FLOAT_MIXED_HEADS,
        FLOAT_CHAINS,
        rule("unsigned_activations", Stage.SPECS, unsigned_activations),
        rule("per_tensor_matmul", Stage.SPECS, per_tensor_matmul),
        rule("fixed_sigmoid_tanh", Stage.GRIDS, fixed_sigmoid_tanh),
    ),
    whole=True,
)

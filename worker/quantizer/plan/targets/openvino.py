"""OpenVINO's CPU and GPU plugins: the placement that NNCF makes for its CPU profile."""

from __future__ import annotations

from worker.quantizer.ops.linear import LINEAR
from worker.quantizer.plan.rules.grids import align_concat, float_bias, seven_bit_weights
from worker.quantizer.plan.targets.onnxruntime import FLOAT_FUNCTIONS, FLOAT_HEADS, LOSSLESS, common_reasons
from worker.quantizer.plan.types import Role, Stage, Target, rule

_ARITHMETIC = ("Add", "Mul", "Sub", "Max", "Min", "Concat")

OPENVINO = Target(
    name="openvino",
    roles={
        **dict.fromkeys(LINEAR, Role.LINEAR),
        **dict.fromkeys(_ARITHMETIC, Role.ARITHMETIC),
        **dict.fromkeys(("GlobalAveragePool", "AveragePool", "ReduceMean", "Relu", "Clip", "PRelu"), Role.UNARY),
        **dict.fromkeys((*LOSSLESS, "Resize"), Role.TRANSPARENT),
    },
    fusible=frozenset({"Relu", "Clip", "PRelu"}),
    takes_in=frozenset({*LINEAR, "Add", "Mul", "Sub"}),
    lossless=frozenset(LOSSLESS),
    reasons=common_reasons("openvino"),
    rules=(
        FLOAT_HEADS,
        *FLOAT_FUNCTIONS,
        rule("float_bias", Stage.SPECS, float_bias),
        rule("x86_without_vnni", Stage.SPECS, seven_bit_weights),
        rule("align_concat", Stage.GRIDS, align_concat),
    ),
)

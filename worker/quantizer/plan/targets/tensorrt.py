"""TensorRT's explicit quantization: Q/DQ pairs say where it computes in 8 bits.

Its ONNX parser refuses zero points other than 0 and a DequantizeLinear of int32. Weighted layers may read int8 and
return float; Softmax and normalizations have float kernels alone; operands of a Concat that share a scale are written
where the Concat would put them.

Source: NVIDIA, TensorRT Developer Guide, Working with Quantized Types; NVIDIA Model Optimizer, modelopt.onnx.
"""

from __future__ import annotations

from worker.quantizer.ops.linear import LINEAR
from worker.quantizer.plan.rules.functions import fuse_epilogues
from worker.quantizer.plan.rules.grids import align_concat, float8_e4m3, float_bias, symmetric_int8
from worker.quantizer.plan.rules.heads import float_detection_arithmetic, float_mixed_heads
from worker.quantizer.plan.targets.onnxruntime import FLOAT_FUNCTIONS, LOSSLESS, common_reasons
from worker.quantizer.plan.types import Decision, Role, RuleContext, Stage, Target, rule

_ARITHMETIC = ("Add", "Mul", "Concat")


def _float_heads(context: RuleContext) -> list[Decision]:
    """Weighted layers return float to heads by themselves."""
    return [*float_mixed_heads(context), *float_detection_arithmetic(context)]


TENSORRT = Target(
    name="tensorrt",
    roles={
        **dict.fromkeys(LINEAR, Role.LINEAR),
        **dict.fromkeys(_ARITHMETIC, Role.ARITHMETIC),
        **dict.fromkeys(("GlobalAveragePool", "LeakyRelu", "Relu", "Clip"), Role.UNARY),
        **dict.fromkeys((*LOSSLESS, "AveragePool", "Resize"), Role.TRANSPARENT),
    },
    fusible=frozenset({"Relu", "Clip", "LeakyRelu"}),
    takes_in=frozenset({*LINEAR, *_ARITHMETIC}),
    lossless=frozenset(LOSSLESS),
    reasons=common_reasons("tensorrt"),
    rules=(
        rule("float_heads", Stage.NODES, _float_heads),
        *FLOAT_FUNCTIONS,
        rule("fuse_epilogues", Stage.SPECS, fuse_epilogues),
        rule("symmetric_int8", Stage.SPECS, symmetric_int8),
        rule("float8_e4m3", Stage.SPECS, float8_e4m3),
        rule("float_bias", Stage.SPECS, float_bias),
        rule("align_concat", Stage.GRIDS, align_concat),
    ),
    float_results=True,
)

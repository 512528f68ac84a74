"""onnxruntime on CPUs and GPUs, and TensorRT, which runs the same Q/DQ form."""

from __future__ import annotations

from worker.quantizer.graph.values import LINEAR
from worker.quantizer.plan.profile import Stage, Target, rule
from worker.quantizer.plan.rules.chains import float_chains
from worker.quantizer.plan.rules.heads import float_heads, float_mixed_heads
from worker.quantizer.plan.rules.specs import float_bias, seven_bit_weights, symmetric_int8
from worker.quantizer.plan.types import Role

MOVERS = (
    "DepthToSpace",
    "Flatten",
    "Gather",
    "Identity",
    "MaxPool",
    "Pad",
    "Reshape",
    "Slice",
    "SpaceToDepth",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
_TRANSPARENT = (*MOVERS, "AveragePool", "Resize")
_ARITHMETIC = ("Add", "Mul", "Concat")

FLOAT_HEADS = rule("float_heads", Stage.NODES, float_heads)
# For targets that want whole networks: no convolution is taken out.
FLOAT_MIXED_HEADS = rule("float_heads", Stage.NODES, float_mixed_heads)
FLOAT_CHAINS = rule("float_chains", Stage.NODES, float_chains)


def common_reasons(name: str) -> dict[str, str]:
    """Why operators that a reader would look for stay in float."""
    norm = f"normalization stays in float: {name} has no integer kernel for it"
    recurrent = f"recurrent layers stay in float: {name} has no static integer kernel for "
    exact = "its result spans many orders of magnitude, or falls beyond any calibrated range"
    return {
        "Softmax": "Softmax stays in float: its output needs more than 8 bits near 0",
        "LogSoftmax": "LogSoftmax stays in float: its output is unbounded below",
        **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization"), norm),
        **{op: recurrent + op for op in ("LSTM", "GRU")},
        **{op: f"{op} stays in float: {exact}" for op in ("Exp", "Log", "Pow", "Reciprocal", "Sqrt")},
        "Div": "Div stays in float: a quantized divisor may become 0",
    }


ONNXRUNTIME_CPU = Target(
    name="onnxruntime_cpu",
    roles={
        **dict.fromkeys(LINEAR, Role.LINEAR),
        **dict.fromkeys(_ARITHMETIC, Role.ARITHMETIC),
        **dict.fromkeys(("GlobalAveragePool", "LeakyRelu", "Sigmoid", "Relu", "Clip"), Role.UNARY),
        **dict.fromkeys(_TRANSPARENT, Role.TRANSPARENT),
    },
    fusible=frozenset({"Relu", "Clip"}),
    takes_in=frozenset({*LINEAR, *_ARITHMETIC}),
    lossless=frozenset(MOVERS),
    reasons=common_reasons("onnxruntime_cpu"),
    rules=(FLOAT_HEADS, rule("x86_without_vnni", Stage.SPECS, seven_bit_weights)),
    integer_limits=True,
)


def _nvidia(name: str) -> Target:
    """int8 around 0 with float biases.

    TensorRT's parser refuses zero points other than 0 and a DequantizeLinear of int32; onnxruntime's CUDA kernels know
    no int32 DequantizeLinear either.
    """
    return Target(
        name=name,
        roles={
            **dict.fromkeys(LINEAR, Role.LINEAR),
            **dict.fromkeys(_ARITHMETIC, Role.ARITHMETIC),
            **dict.fromkeys(("GlobalAveragePool", "LeakyRelu", "Relu", "Clip"), Role.UNARY),
            **dict.fromkeys(_TRANSPARENT, Role.TRANSPARENT),
        },
        fusible=frozenset({"Relu", "Clip", "LeakyRelu"}),
        takes_in=frozenset({*LINEAR, *_ARITHMETIC}),
        lossless=frozenset(MOVERS),
        reasons=common_reasons(name),
        rules=(
            FLOAT_HEADS,
            rule("symmetric_int8", Stage.SPECS, symmetric_int8),
            rule("float_bias", Stage.SPECS, float_bias),
        ),
    )


ONNXRUNTIME_GPU = _nvidia("onnxruntime_gpu")
TENSORRT = _nvidia("tensorrt")

"""onnxruntime on CPUs and GPUs."""

from __future__ import annotations

from service.contracts.reason import Reason, declare
from worker.quantizer.ops.channels import MOVERS
from worker.quantizer.ops.linear import LINEAR
from worker.quantizer.plan.rules.functions import float_chains, float_functions, without_inner_pairs
from worker.quantizer.plan.rules.grids import float_bias, seven_bit_weights, symmetric_int8
from worker.quantizer.plan.rules.heads import float_detection, float_heads, float_mixed_heads, tell_detection
from worker.quantizer.plan.types import Decision, Role, RuleContext, Stage, Target, rule

# What they give is among what they get, or 0.
LOSSLESS = (*MOVERS, "MaxPool", "Pad")
_TRANSPARENT = (*LOSSLESS, "AveragePool", "Resize")
_ARITHMETIC = ("Add", "Mul", "Concat")


def _all_heads(context: RuleContext) -> list[Decision]:
    return [*float_heads(context), *float_detection(context)]


def _mixed_heads(context: RuleContext) -> list[Decision]:
    return [*float_mixed_heads(context), *tell_detection(context)]


FLOAT_HEADS = rule("float_heads", Stage.NODES, _all_heads)
# For targets that want whole networks: no convolution is taken out.
FLOAT_MIXED_HEADS = rule("float_heads", Stage.NODES, _mixed_heads)
# Their operators compute in float, and no pair stands between them.
FLOAT_FUNCTIONS = (
    rule("float_functions", Stage.NODES, float_functions),
    rule("float_functions", Stage.SPECS, without_inner_pairs),
)
FLOAT_CHAINS = rule("float_chains", Stage.NODES, float_chains)


_SMALL_PROBABILITIES = "Nothing: in integers it would lose small probabilities."
SOFTMAX = declare(
    "softmax",
    "Softmax stays in float: its output needs more than 8 bits near 0",
    hint=_SMALL_PROBABILITIES,
    by_design=True,
)
LOG_SOFTMAX = declare(
    "log-softmax",
    "LogSoftmax stays in float: its output is unbounded below",
    hint=_SMALL_PROBABILITIES,
    by_design=True,
)
NORMALIZATION = declare(
    "normalization",
    "normalization stays in float: {target} has no integer kernel for it",
    hint="Use BatchNormalization, which folds into convolutions.",
)
RECURRENT = declare(
    "recurrent",
    "recurrent layers stay in float: {target} has no static integer kernel for {op_type}",
    hint="Use mode dynamic or weights_only for them.",
)
WIDE_RESULT = declare(
    "wide-result",
    "{op_type} stays in float: its result spans many orders of magnitude, or falls beyond any calibrated range",
)
DIVISION = declare("division", "Div stays in float: a quantized divisor may become 0")


def common_reasons(name: str) -> dict[str, Reason]:
    """Why operators that a reader would look for stay in float."""
    norm = NORMALIZATION(target=name)
    return {
        "Softmax": SOFTMAX(),
        "LogSoftmax": LOG_SOFTMAX(),
        **dict.fromkeys(("LayerNormalization", "InstanceNormalization", "GroupNormalization"), norm),
        **{op: RECURRENT(target=name, op_type=op) for op in ("LSTM", "GRU", "RNN")},
        **{op: WIDE_RESULT(op_type=op) for op in ("Exp", "Log", "Pow", "Reciprocal", "Sqrt")},
        "Div": DIVISION(),
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
    lossless=frozenset(LOSSLESS),
    reasons=common_reasons("onnxruntime_cpu"),
    rules=(FLOAT_HEADS, *FLOAT_FUNCTIONS, rule("x86_without_vnni", Stage.SPECS, seven_bit_weights)),
    integer_limits=True,
)

# int8 around 0 with float biases: onnxruntime's CUDA kernels know no DequantizeLinear of int32.
ONNXRUNTIME_GPU = Target(
    name="onnxruntime_gpu",
    roles={
        **dict.fromkeys(LINEAR, Role.LINEAR),
        **dict.fromkeys(_ARITHMETIC, Role.ARITHMETIC),
        **dict.fromkeys(("GlobalAveragePool", "LeakyRelu", "Relu", "Clip"), Role.UNARY),
        **dict.fromkeys(_TRANSPARENT, Role.TRANSPARENT),
    },
    fusible=frozenset({"Relu", "Clip", "LeakyRelu"}),
    takes_in=frozenset({*LINEAR, *_ARITHMETIC}),
    lossless=frozenset(LOSSLESS),
    reasons=common_reasons("onnxruntime_gpu"),
    rules=(
        FLOAT_HEADS,
        *FLOAT_FUNCTIONS,
        rule("symmetric_int8", Stage.SPECS, symmetric_int8),
        rule("float_bias", Stage.SPECS, float_bias),
    ),
)

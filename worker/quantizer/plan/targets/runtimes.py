"""Targets that are runtimes: onnxruntime on CPUs and GPUs, OpenVINO, TensorRT, QNN; and what several targets share."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np

from service.contracts.reason import Reason, declare
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.ops.channels import MOVERS
from worker.quantizer.ops.linear import LINEAR
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.rules.functions import (
    float_chains,
    float_functions,
    fuse_epilogues,
    without_inner_pairs,
)
from worker.quantizer.plan.rules.grids import (
    align_concat,
    float8_e4m3,
    float_bias,
    per_tensor_matmul,
    seven_bit_weights,
    symmetric_int8,
    unsigned_activations,
)
from worker.quantizer.plan.rules.heads import float_detection, float_mixed_heads, float_scores, tell_detection
from worker.quantizer.plan.types import Decision, Role, RuleContext, Stage, Target, rule

# What they give is among what they get, or 0.
LOSSLESS = (*MOVERS, "MaxPool", "Pad")


def integer_roles(arithmetic: Collection[str], transparent: Collection[str], unary: Collection[str]) -> dict[str, Role]:
    """The roles of weighted layers and of these operators; what is named twice has the last one."""
    kinds = ((LINEAR, Role.LINEAR), (arithmetic, Role.ARITHMETIC), (transparent, Role.TRANSPARENT), (unary, Role.UNARY))
    return {op_type: role for op_types, role in kinds for op_type in op_types}


def _all_heads(context: RuleContext) -> Iterator[Decision]:
    yield from float_scores(context)
    yield from float_mixed_heads(context)
    yield from float_detection(context)


def _mixed_heads(context: RuleContext) -> Iterator[Decision]:
    yield from float_mixed_heads(context)
    tell_detection(context)


def _heads_of_float_layers(context: RuleContext) -> Iterator[Decision]:
    """Weighted layers return float to heads by themselves."""
    yield from float_mixed_heads(context)
    yield from float_detection(context, layers=False)


FLOAT_HEADS = rule("float_heads", Stage.NODES, _all_heads)
# For targets that want whole networks: no convolution is taken out.
FLOAT_MIXED_HEADS = rule("float_heads", Stage.NODES, _mixed_heads)
# Their operators compute in float, and no pair stands between them.
FLOAT_FUNCTIONS = (
    rule("float_functions", Stage.NODES, float_functions),
    rule("float_functions", Stage.SPECS, without_inner_pairs),
)
FLOAT_CHAINS = rule("float_chains", Stage.NODES, float_chains)


_SMALL_PROBABILITIES = "Nothing: in integers it loses small probabilities."
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


_ARITHMETIC = ("Add", "Mul", "Concat")
_TRANSPARENT = (*LOSSLESS, "AveragePool", "Resize")
_UNARY = ("GlobalAveragePool", "LeakyRelu", "Relu", "Clip")

ONNXRUNTIME_CPU = Target(
    name="onnxruntime_cpu",
    roles=integer_roles(_ARITHMETIC, _TRANSPARENT, (*_UNARY, "Sigmoid")),
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
    roles=integer_roles(_ARITHMETIC, _TRANSPARENT, _UNARY),
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

# TensorRT's explicit quantization: Q/DQ pairs say where it computes in 8 bits.
#
# Its ONNX parser refuses zero points other than 0 and a DequantizeLinear of int32. Weighted layers may read int8 and
# return float; Softmax and normalizations have float kernels alone; operands of a Concat that share a scale are written
# where the Concat would put them.
#
# Source: NVIDIA, TensorRT Developer Guide, Working with Quantized Types; NVIDIA Model Optimizer, modelopt.onnx.
TENSORRT = Target(
    name="tensorrt",
    roles=integer_roles(_ARITHMETIC, _TRANSPARENT, _UNARY),
    fusible=frozenset({"Relu", "Clip", "LeakyRelu"}),
    takes_in=frozenset({*LINEAR, *_ARITHMETIC}),
    lossless=frozenset(LOSSLESS),
    reasons=common_reasons("tensorrt"),
    rules=(
        rule("float_heads", Stage.NODES, _heads_of_float_layers),
        *FLOAT_FUNCTIONS,
        rule("fuse_epilogues", Stage.SPECS, fuse_epilogues),
        rule("symmetric_int8", Stage.SPECS, symmetric_int8),
        rule("float8_e4m3", Stage.SPECS, float8_e4m3),
        rule("float_bias", Stage.SPECS, float_bias),
        rule("align_concat", Stage.GRIDS, align_concat),
    ),
    float_results=True,
)

# OpenVINO's CPU and GPU plugins: the placement that NNCF makes for its CPU profile.
OPENVINO = Target(
    name="openvino",
    roles=integer_roles(
        ("Add", "Mul", "Sub", "Max", "Min", "Concat"),
        (*LOSSLESS, "Resize"),
        ("GlobalAveragePool", "AveragePool", "ReduceMean", "Relu", "Clip", "PRelu"),
    ),
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

# Qualcomm's QNN: the HTP runs the whole network on uint8 or uint16 activations.

_QNN_UNARY = (
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
    "Softplus",
    "Swish",
    "Tanh",
)

# (operator, type): scale and zero point, by onnxruntime's get_qnn_qdq_config.
_FIXED = {
    ("Sigmoid", "uint16"): (2.0**-16, 0),
    ("Sigmoid", "int16"): (2.0**-15, 0),
    ("Tanh", "uint16"): (2.0**-15, 2**15),
    ("Tanh", "int16"): (2.0**-15, 0),
}


def _fixed_sigmoid_tanh(context: RuleContext) -> Iterator[Decision]:
    """16-bit results of Sigmoid and Tanh get the one grid that QNN takes."""
    moved = {}
    for node in context.graph:
        name = node.outputs[0].name or ""
        entry = context.plan.activations.get(name)
        grid = entry.quantization if entry is not None else None
        if entry is None or not isinstance(grid, IntegerGrid) or (node.op_type, grid.dtype) not in _FIXED:
            continue
        scale, zero_point = _FIXED[node.op_type, grid.dtype]
        fixed = replace(
            grid,
            scale=np.asarray(scale, np.float32),
            zero_point=np.asarray(zero_point, grid.zero_point.dtype),
            symmetric=False,
        )
        if (float(grid.scale), int(grid.zero_point)) != (scale, zero_point):
            moved[entry.source] = fixed
            what = f"scale {float(grid.scale):.3g} -> {scale:.3g}, zero_point {int(grid.zero_point)} -> {zero_point}"
            yield Decision("fixed_sigmoid_tanh", name, what, "QNN takes 16-bit results on this grid only")
    Parameters(context.graph, context.plan).move(sources=moved)


QNN = Target(
    name="qnn",
    roles=integer_roles(("Add", "Sub", "Mul", "Min", "Max", "Concat"), LOSSLESS, _QNN_UNARY),
    fusible=frozenset({"Relu", "Clip"}),
    takes_in=frozenset({*LINEAR, "Add", "Sub", "Mul"}),
    lossless=frozenset(LOSSLESS),
    reasons={op: reason for op, reason in common_reasons("qnn").items() if op not in _QNN_UNARY},
    rules=(
        FLOAT_MIXED_HEADS,
        FLOAT_CHAINS,
        rule("unsigned_activations", Stage.SPECS, unsigned_activations),
        rule("per_tensor_matmul", Stage.SPECS, per_tensor_matmul),
        rule("fixed_sigmoid_tanh", Stage.GRIDS, _fixed_sigmoid_tanh),
    ),
    whole=True,
)

"""What a job may switch on and off for the target it quantizes for. The engine holds the rules; this is their menu."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from pydantic import Field
from pydantic_core import PydanticCustomError

from service.contracts.base import Contract, below, nearest_key
from service.contracts.validation import BELOW

TargetName = Literal[
    "onnxruntime_cpu", "onnxruntime_gpu", "tensorrt", "qnn", "openvino", "amd_npu_cnn", "amd_npu_transformer"
]


class TargetOption(Contract):
    """One rule of a target that a job can switch on or off."""

    name: str
    description: str = Field(description="What applies when the option is on.")
    default: bool = True


TARGET_DESCRIPTIONS = {
    "onnxruntime_cpu": "onnxruntime's CPU kernels: QLinearConv, QGemm, MatMulInteger and their like.",
    "onnxruntime_gpu": "onnxruntime with the CUDA execution provider.",
    "tensorrt": "TensorRT's explicit quantization, also in onnxruntime: int8 around 0, float biases, fused residuals.",
    "qnn": "QNN on the Hexagon HTP: uint8 or uint16 activations, 8-bit weights, the whole network in integers.",
    "openvino": "OpenVINO: uint8 or int8 activations, int8 weights, one grid for all operands of a Concat.",
    "amd_npu_cnn": "XINT8: int8 around 0, power-of-two scales, the whole network in integers, within the DPU's shifts.",
    "amd_npu_transformer": "The matrix products of a transformer in integers, everything between them in float.",
}


def _option(name: str, description: str, *, default: bool = True) -> TargetOption:
    return TargetOption(name=name, description=description, default=default)


_FLOAT_HEADS = _option(
    "float_heads",
    "Convolutions whose result becomes scores by Sigmoid, Softmax or Exp stay in float, and so do a "
    "Concat of scores with boxes or the like, and detection heads, detected by what they compute, "
    "with the layers that feed them.",
)
_FLOAT_MIXED_HEADS = _option(
    "float_heads",
    "A Concat of scores within [0, 1] with results of any size, which ends the network, stays in "
    "float; the report names other detection heads, which stay in integers.",
)
_FLOAT_ARITHMETIC_OF_HEADS = _option(
    "float_heads",
    "A Concat of scores within [0, 1] with results of any size, which ends the network, stays in "
    "float, and so does the arithmetic of detection heads, detected by what they compute.",
)
_FLOAT_FUNCTIONS = _option(
    "float_functions",
    "Decomposed functions (SiLU, RMSNorm, LayerNorm, GELU, rotary embedding) count as one operator: "
    "no Q/DQ pair inside, unless all their operators have an integer kernel.",
)
_FLOAT_CHAINS = _option(
    "float_chains",
    ("Elementwise nodes whose result is read only by Pow, Sqrt, Log, Exp, Reciprocal or Div stay in float."),
)
# How the note begins that tells of a measurement on such a CPU.
SATURATING_CPU = "this host's CPU has no VNNI"
_WITHOUT_VNNI = _option(
    "x86_without_vnni",
    "int8 weights keep to 7 bits: x86 CPUs with AVX2 or AVX512 but without VNNI add pairs of 8-bit products in "
    "16 bits, which overflows.",
    default=False,
)
_CONCAT = _option("align_concat", "All operands of a Concat share the grid of its result.")
_SYMMETRIC = _option(
    "symmetric_int8", "Activations and weights are int8 around zero_point 0: the target supports nothing else."
)
_FLOAT_BIAS = _option("float_bias", "Biases stay float32: the target adds them in float.")

TARGET_OPTIONS: dict[str, tuple[TargetOption, ...]] = {
    "onnxruntime_cpu": (_FLOAT_HEADS, _FLOAT_FUNCTIONS, _WITHOUT_VNNI),
    "onnxruntime_gpu": (_FLOAT_HEADS, _FLOAT_FUNCTIONS, _SYMMETRIC, _FLOAT_BIAS),
    "tensorrt": (
        _FLOAT_ARITHMETIC_OF_HEADS,
        _FLOAT_FUNCTIONS,
        _option(
            "fuse_epilogues",
            "No Q/DQ pair between a weighted layer and what TensorRT fuses with it: activation functions "
            "such as SiLU, HardSwish and GELU, and the Add of a residual block, whose other operand has one.",
        ),
        _SYMMETRIC,
        _option("float8_e4m3", "8-bit floats are float8_e4m3fn: the target does not support float8_e5m2."),
        _FLOAT_BIAS,
        _CONCAT,
    ),
    "qnn": (
        _FLOAT_MIXED_HEADS,
        _FLOAT_CHAINS,
        _option("unsigned_activations", "int16 activations become uint16, int8 ones uint8: as most operators require."),
        _option(
            "per_tensor_matmul", "MatMul and Gemm weights have one scale: QNN supports scales per channel for Conv."
        ),
        _option("fixed_sigmoid_tanh", "16-bit results of Sigmoid and Tanh are on the one grid that QNN accepts."),
    ),
    "openvino": (_FLOAT_HEADS, _FLOAT_FUNCTIONS, _FLOAT_BIAS, _CONCAT, _WITHOUT_VNNI),
    "amd_npu_cnn": (
        _FLOAT_MIXED_HEADS,
        _FLOAT_CHAINS,
        _option("xint8", "Activations and weights are symmetric int8, per tensor, with power-of-two scales."),
        _option("int8_bias", "Biases are int8 with a power-of-two scale of their own; off: as the config says."),
        _option(
            "sigmoid_to_hard_sigmoid",
            "Sigmoid becomes HardSigmoid(1/6, 0.5), another function; not in heads. Layers before and behind it are "
            "scaled so that the two differ least on the calibration data.",
        ),
        _option("div_to_mul", "Div by a constant becomes Mul by its reciprocal."),
        _option("split_hard_swish", "HardSwish becomes HardSigmoid and Mul, which compute the same."),
        _option("dpu_hard_sigmoid", "HardSigmoid computes with 2731/16384 in place of 1/6."),
        _option("dpu_leaky_relu", "LeakyRelu's alpha is rounded to 256ths."),
        _option("dpu_average_pool", "AveragePool and GlobalAveragePool divide by a multiplication and a shift."),
        _option("dpu_reduce_mean", "ReduceMean over the two spatial axes divides by a multiplication and a shift."),
        _CONCAT,
        _option("align_pool", "Pooling: the result has the position of the input."),
        _option("align_pad", "Pad: the result has the position of the input."),
        _option("align_slice", "Slice and Split: the result has the position of the input."),
        _option("shift_read", "Add, Sub: positions of the operands differ by at most 7."),
        _option("shift_write", "Add, Sub: -7 <= min(in) - out <= 25; Mul: 0 <= sum(in) - out <= 32."),
        _option("shift_cut", "Conv, ConvTranspose, Gemm, MatMul: 0 <= weight + in - out <= 16."),
        _option("shift_bias", "Nodes with an int8 bias: min(0, cut - 16) <= weight + in - bias <= 15."),
        _option("hard_sigmoid_positions", "HardSigmoid: 0 <= in <= 15, out >= 7, 0 <= 14 + in - out <= 31."),
        _option("shift_swish", "Mul of x and its HardSigmoid: 0 <= sum(in) - out <= 15."),
    ),
    "amd_npu_transformer": (
        _option("matmul_constant_b_only", "MatMul of two activations stays in float; off: it is quantized as well."),
    ),
}


def unknown_target(name: str) -> str:
    """What to tell somebody who named a target that is not there."""
    near = nearest_key(name, TARGET_OPTIONS)
    advice = f"did you mean {near!r}?" if near else f"known: {', '.join(sorted(TARGET_OPTIONS))}"
    return f"there is no target {name!r}; {advice}"


def target_options(target: str, chosen: Mapping[str, bool]) -> dict[str, bool]:
    """Every option of ``target`` with its value: that of ``chosen``, else its default."""
    return {option.name: chosen.get(option.name, option.default) for option in TARGET_OPTIONS[target]}


def check_target_options(target: str, chosen: Mapping[str, bool]) -> None:
    """Refuse options that ``target`` does not have.

    Raises:
        PydanticCustomError: names the nearest option, and points at the unknown one.
    """
    known = [option.name for option in TARGET_OPTIONS[target]]
    for name in chosen:
        if name in known:
            continue
        near = nearest_key(name, known)
        elsewhere = [other for other, options in TARGET_OPTIONS.items() if name in {option.name for option in options}]
        if near is not None:
            advice = f"did you mean {near!r}?"
        elif elsewhere:
            advice = f"it belongs to {', '.join(elsewhere)}"
        else:
            advice = f"its options: {', '.join(known)}"
        raise PydanticCustomError(
            "unknown-target-option",
            "target {target} has no option {name}; {advice}",
            {
                "target": target,
                "name": repr(name),
                "advice": advice,
                BELOW: below("/target_options", name),
            },
        )

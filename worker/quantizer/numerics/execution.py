"""What onnxruntime's CPU provider does with each type: runs integer kernels, or computes in float32 with values that
have been rounded as the type rounds them.

Either way the results are those of the type; only "integer kernels" are faster than the float model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from service.contracts.dtypes import BLOCK_DTYPES


@dataclass(frozen=True)
class Execution:
    """How onnxruntime runs a type.

    Attributes:
        kind: "integer kernels" or "simulated".
        reason: why, one sentence for reports and documentation.
    """

    kind: Literal["integer kernels", "simulated"]
    reason: str


_EIGHT_BITS = "QLinearConv, QLinearMatMul, QGemm and their like compute on 8-bit integers."
_SIXTEEN_BITS = (
    "onnxruntime's CPU kernels multiply 8-bit integers only; 16-bit values are dequantized, and operators compute in "
    "float32."
)
_FOUR_BITS = (
    "onnxruntime dequantizes 4-bit weights and computes in float32, save where it makes a MatMulNBits of a MatMul "
    "that reads float activations."
)
_HALF = "onnxruntime's CPU provider computes in float32 between two Casts that round to the type."
_FLOAT8 = (
    "onnxruntime's CPU provider has no float8 kernels and takes float8 QuantizeLinear pairs for integers; Div, Cast "
    "and Mul round to the type, and the rest is float32."
)
_BLOCK = (
    "No runtime operator knows the format; standard operators round activations to it, and weights are stored as "
    "elements and scales, which become float32 when the model is loaded."
)

EXECUTION: dict[str, Execution] = {
    "uint8": Execution("integer kernels", _EIGHT_BITS),
    "int8": Execution("integer kernels", _EIGHT_BITS),
    "uint16": Execution("simulated", _SIXTEEN_BITS),
    "int16": Execution("simulated", _SIXTEEN_BITS),
    "uint4": Execution("simulated", _FOUR_BITS),
    "int4": Execution("simulated", _FOUR_BITS),
    "float16": Execution("simulated", _HALF),
    "bfloat16": Execution("simulated", _HALF),
    "float8_e4m3fn": Execution("simulated", _FLOAT8),
    "float8_e5m2": Execution("simulated", _FLOAT8),
    **dict.fromkeys(BLOCK_DTYPES, Execution("simulated", _BLOCK)),
}

"""The number types that a tensor can be represented in: one table of what configs, plans and emission know of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

FloatDtype = Literal["float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"]
BlockDtype = Literal[
    "bfp16",
    "mx4",
    "mx6",
    "mx9",
    "mxint8",
    "mxfp8_e4m3",
    "mxfp8_e5m2",
    "mxfp6_e3m2",
    "mxfp6_e2m3",
    "mxfp4_e2m1",
]
ActivationDtype = Literal["uint8", "int8", "uint16", "int16", "uint4", "int4", FloatDtype, BlockDtype]
WeightDtype = Literal["int8", "uint8", "int16", "uint16", "int4", "uint4", "int2", "uint2", FloatDtype, BlockDtype]
HalfDtype = Literal["float16", "bfloat16"]
BiasDtype = Literal["int32", "int16", "int8", "float32", HalfDtype]

FLOAT_DTYPES: tuple[str, ...] = get_args(FloatDtype)
BLOCK_DTYPES: tuple[str, ...] = get_args(BlockDtype)
HALF_DTYPES: tuple[str, ...] = get_args(HalfDtype)


@dataclass(frozen=True)
class NumberType:
    """One type, and what follows from it alone.

    Attributes:
        name: as in a config.
        kind: integer (scale and zero point), float8 (a scale), float (neither), block (elements share an exponent block
            by block).
        bits: of one value, shared exponents of its block counted in; scales of integers are not.
        opset: lowest one of ONNX's own domain that can hold weights and activations of it.
        any_opset: below that, onnxruntime's own domain has QuantizeLinear and DequantizeLinear for it.
        limits: smallest and largest integer; None for other kinds.
        reduced: the same with one bit less, as onnxruntime reduces ranges: sums of two products then fit into 16 (32)
            bits. None where no bit is to spare.
        cast_only: onnxruntime has DequantizeLinear for it, but fuses it wrongly with what follows (1.31: a MatMulNBits
            of it is off, a QLinearConv fails to load); weights are restored by Cast and Mul.
        integer_kernels: onnxruntime's CPU provider multiplies its integers; any other type it dequantizes, or rounds by
            standard operators, and computes in float32.
    """

    name: str
    kind: Literal["integer", "float8", "float", "block"]
    bits: float
    opset: int
    any_opset: bool = False
    limits: tuple[int, int] | None = None
    reduced: tuple[int, int] | None = None
    cast_only: bool = False
    integer_kernels: bool = False


def _integer(bits: int, opset: int, reduced: tuple[int, int] | None = None, **more: bool) -> NumberType:
    limits = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    return NumberType(f"int{bits}", "integer", bits, opset, limits=limits, reduced=reduced, **more)


def _unsigned(bits: int, opset: int, **more: bool) -> NumberType:
    limits, reduced = (0, 2**bits - 1), (0, 2 ** (bits - 1) - 1)
    return NumberType(f"uint{bits}", "integer", bits, opset, limits=limits, reduced=reduced, **more)


# The opsets: Cast knows bfloat16 from 13 on and float8 from 19, Shape takes a start and an end from 15 on.
NUMBER_TYPES: dict[str, NumberType] = {
    each.name: each
    for each in (
        _integer(2, 25, cast_only=True),
        _unsigned(2, 25, cast_only=True),
        _integer(4, 21, (-4, 3), any_opset=True),
        _unsigned(4, 21, any_opset=True),
        _integer(8, 13, (-64, 64), integer_kernels=True),
        _unsigned(8, 13, integer_kernels=True),
        _integer(16, 21, (-(2**14), 2**14), any_opset=True),
        _unsigned(16, 21, any_opset=True),
        _integer(32, 13),
        NumberType("float8_e4m3fn", "float8", 8, 19),
        NumberType("float8_e5m2", "float8", 8, 19),
        NumberType("float16", "float", 16, 13),
        NumberType("bfloat16", "float", 16, 13),
        NumberType("float32", "float", 32, 13),
        NumberType("bfp16", "block", 9, 15),  # 8 bits, and an exponent of 8 for every 8 values
        NumberType("mx4", "block", 4, 15),
        NumberType("mx6", "block", 6, 15),
        NumberType("mx9", "block", 9, 15),
        NumberType("mxint8", "block", 8.25, 15),  # an exponent of 8 bits for every 32 values
        NumberType("mxfp8_e4m3", "block", 8.25, 19),
        NumberType("mxfp8_e5m2", "block", 8.25, 19),
        NumberType("mxfp6_e3m2", "block", 6.25, 19),
        NumberType("mxfp6_e2m3", "block", 6.25, 19),
        NumberType("mxfp4_e2m1", "block", 4.25, 15),
    )
}


def _is(dtype: str, *kinds: str) -> bool:
    found = NUMBER_TYPES.get(dtype)
    return found is not None and found.kind in kinds


def is_integer(dtype: str) -> bool:
    """True for types with a scale and a zero point."""
    return _is(dtype, "integer")


def is_block(dtype: str) -> bool:
    """True for types whose elements share an exponent block by block."""
    return _is(dtype, "block")


def is_float8(dtype: str) -> bool:
    """True for 8-bit floats, which have a scale but no zero point."""
    return _is(dtype, "float8")


def needs_calibration(dtype: str) -> bool:
    """True if the type's grid depends on the range of the data."""
    return _is(dtype, "integer", "float8")


def has_integer_kernels(dtype: str) -> bool:
    """True if onnxruntime's CPU provider multiplies integers of the type."""
    return NUMBER_TYPES[dtype].integer_kernels


def bits_of(dtype: str) -> float:
    """Bits of one value, shared exponents of its block counted in; scales of integers are not."""
    return NUMBER_TYPES[dtype].bits

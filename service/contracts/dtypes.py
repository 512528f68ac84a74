"""The numeric types a tensor can be represented in, and the facts about them that configs are judged by."""

from __future__ import annotations

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
ActivationDtype = Literal["uint8", "int8", "uint16", "int16", FloatDtype, BlockDtype]
WeightDtype = Literal["int8", "uint8", "int16", "uint16", "int4", "uint4", FloatDtype, BlockDtype]
HalfDtype = Literal["float16", "bfloat16"]
BiasDtype = Literal["int32", "int16", "int8", "float32", HalfDtype]

INTEGER_DTYPES = ("int4", "uint4", "int8", "uint8", "int16", "uint16")
FLOAT_DTYPES: tuple[str, ...] = get_args(FloatDtype)
BLOCK_DTYPES: tuple[str, ...] = get_args(BlockDtype)
HALF_DTYPES: tuple[str, ...] = get_args(HalfDtype)


def is_integer(dtype: str) -> bool:
    """True for types with a scale and a zero point."""
    return dtype in INTEGER_DTYPES


def is_block(dtype: str) -> bool:
    """True for types whose elements share an exponent block by block."""
    return dtype in BLOCK_DTYPES


def is_float8(dtype: str) -> bool:
    """True for 8-bit floats, which have a scale but no zero point."""
    return dtype.startswith("float8")


def needs_calibration(dtype: str) -> bool:
    """True if the type's grid depends on the range of the data."""
    return is_integer(dtype) or is_float8(dtype)


_BITS = {
    "mx4": 4.0,
    "mx6": 6.0,
    "mx9": 9.0,
    "bfp16": 9.0,  # 8 bits, and an exponent of 8 for every 8 values
    "mxint8": 8.25,  # an exponent of 8 bits for every 32 values
    "mxfp8_e4m3": 8.25,
    "mxfp8_e5m2": 8.25,
    "mxfp6_e3m2": 6.25,
    "mxfp6_e2m3": 6.25,
    "mxfp4_e2m1": 4.25,
    "float8_e4m3fn": 8.0,
    "float8_e5m2": 8.0,
    "bfloat16": 16.0,
    "float16": 16.0,
    "float32": 32.0,
}


def bits_of(dtype: str) -> float:
    """Bits of one value, shared exponents of its block counted in; scales of integers are not."""
    return _BITS.get(dtype) or float(dtype.removeprefix("u").removeprefix("int"))

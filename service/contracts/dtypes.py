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
BiasDtype = Literal["int32", "int16", "int8", "float32"]

INTEGER_DTYPES = ("int4", "uint4", "int8", "uint8", "int16", "uint16")
FLOAT_DTYPES: tuple[str, ...] = get_args(FloatDtype)
BLOCK_DTYPES: tuple[str, ...] = get_args(BlockDtype)


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

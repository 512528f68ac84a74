"""How integers of a number type are held: by numpy while a plan is made, by ONNX in the model."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from service.contracts.dtypes import NUMBER_TYPES


def memory_type(dtype: str) -> np.dtype:
    """Numpy's type that holds integers of ``dtype``: bytes where they have fewer bits."""
    return np.dtype(dtype) if NUMBER_TYPES[dtype].bits >= 8 else np.dtype(np.uint8 if dtype[0] == "u" else np.int8)


def onnx_type(dtype: str) -> ir.DataType:
    """ONNX's word for an integer type."""
    return ir.DataType[dtype.upper()]


def onnx_integers(integers: np.ndarray, dtype: str) -> np.ndarray:
    """``integers`` in the type that ONNX stores: those held in bytes until now in ml_dtypes' own."""
    return integers.astype(onnx_type(dtype).numpy(), copy=False)

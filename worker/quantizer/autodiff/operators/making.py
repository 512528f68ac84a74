"""Tensors made of numbers and shapes, and types. What depends on no tensor is made on the CPU."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import torch
from torch import Tensor

from worker.quantizer.autodiff.operators.forms import Attributes, Numbers, Operator, whole_numbers

TORCH_DTYPES: dict[ir.DataType, torch.dtype] = {
    ir.DataType.FLOAT: torch.float32,
    ir.DataType.DOUBLE: torch.float64,
    ir.DataType.FLOAT16: torch.float16,
    ir.DataType.BFLOAT16: torch.bfloat16,
    ir.DataType.BOOL: torch.bool,
    ir.DataType.INT8: torch.int8,
    ir.DataType.INT16: torch.int16,
    ir.DataType.INT32: torch.int32,
    ir.DataType.INT64: torch.int64,
    ir.DataType.UINT8: torch.uint8,
}


def _constant(attributes: Attributes) -> Tensor:
    if "value" in attributes:
        return torch.from_numpy(np.array(attributes["value"]))
    ((name, value),) = ((name, value) for name, value in attributes.items() if name.startswith("value_"))
    return torch.tensor(value, dtype=torch.float32 if "float" in name else torch.int64)


def _constant_of_shape(attributes: Attributes, shape: Numbers) -> Tensor:
    value = torch.from_numpy(np.array(attributes.get("value", np.zeros(1, np.float32)))).reshape(())
    made = value.expand(whole_numbers(shape)).clone()
    return made.to(shape.device) if isinstance(shape, Tensor) else made


def _range(_: Attributes, start: Tensor, limit: Tensor, delta: Tensor) -> Tensor:
    count = max(0, math.ceil((limit.item() - start.item()) / delta.item()))
    return start + torch.arange(count, device=start.device).to(start.dtype) * delta


def _shape(attributes: Attributes, x: Tensor) -> Tensor:
    sizes = tuple(x.shape)[attributes.get("start", 0) : attributes.get("end")]
    return torch.tensor(sizes, dtype=torch.int64, device=x.device)


def _eye_like(attributes: Attributes, x: Tensor) -> Tensor:
    dtype = TORCH_DTYPES[ir.DataType(attributes["dtype"])] if "dtype" in attributes else x.dtype
    rows, columns, k = *x.shape, attributes.get("k", 0)
    below = torch.arange(rows, device=x.device)[:, None] + k
    return torch.eq(below, torch.arange(columns, device=x.device)).to(dtype)


COMPUTE: dict[str, Operator] = {
    "Cast": lambda attributes, x: x.to(TORCH_DTYPES[ir.DataType(attributes["to"])]),
    "CastLike": lambda _, x, like: x.to(like.dtype),
    "Constant": _constant,
    "ConstantOfShape": _constant_of_shape,
    "Dropout": lambda _, x, *_rest: x,
    "EyeLike": _eye_like,
    "Range": _range,
    "Shape": _shape,
    "Size": lambda _, x: torch.tensor(x.numel(), dtype=torch.int64, device=x.device),
}
STATIC: dict[str, frozenset[int]] = {"ConstantOfShape": frozenset({0})}

"""Preparation: what is done to the float graph before it is quantized. Each pass says in the report what it did."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated

from pydantic import Field

from service.contracts.base import Contract, below
from service.contracts.errors import FieldProblem, InvalidConfigError
from service.contracts.model import TensorInfo


class PreparationSpec(Contract):
    """Switches of the preparation passes. Passes that change the model's function are off by default."""

    dequantize: bool = Field(
        default=False,
        description="Convert an already quantized model to float (Q/DQ pairs, integer operators, weights stored as "
        "integers), and quantize it again.",
    )
    fold_batch_norm: bool = Field(default=True, description="Fold BatchNormalization and affine nodes into weights.")
    batch_norm_to_conv: bool = Field(
        default=False, description="Replace a BatchNormalization that cannot be folded by a 1x1 depthwise Conv."
    )
    clip6_to_relu: bool = Field(
        default=False, description="Replace Clip(0, 6) by Relu; this changes the float model for values above 6."
    )
    reduce_mean_to_global_average_pool: bool = Field(
        default=False, description="Replace ReduceMean over the spatial axes by GlobalAveragePool."
    )
    split_large_pooling: bool = Field(
        default=False, description="Split a GlobalAveragePool over more than 512 positions into two pooling steps."
    )
    split_to_slice: bool = Field(default=False, description="Replace Split by one Slice per output.")
    fuse_gelu: bool = Field(default=True, description="Fuse the Erf form into Gelu (opset 20 and later).")
    fuse_layer_norm: bool = Field(default=True, description="Fuse the decomposed form into LayerNormalization.")
    fuse_instance_norm: bool = Field(default=True, description="Fuse the decomposed form into InstanceNormalization.")
    fuse_l2_norm: bool = Field(default=True, description="Fuse the decomposed form into LpNormalization.")
    fuse_hard_swish: bool = Field(
        default=True,
        description="Fuse x clip(x + 3, 0, 6) / 6 and equivalent forms into HardSwish (opset 14 and later).",
    )
    fuse_hard_sigmoid: bool = Field(
        default=True, description="Fuse clip(x + 3, 0, 6) / 6 and equivalent forms into HardSigmoid."
    )
    sink_conv1d_squeeze: bool = Field(
        default=True,
        description="Move bias and activation function before the Squeeze of a Conv1D that is expressed as a 2-D Conv "
        "of height 1.",
    )
    unshare_initializers: bool = Field(
        default=False, description="Give every reader of a shared weight or bias its own copy."
    )
    nhwc_input: bool = Field(default=False, description="Take 4-D inputs as NHWC: a Transpose follows each such input.")
    opset: int | None = Field(default=None, ge=13, le=30, description="Upgrade the model to this opset.")
    fixed_shapes: dict[str, tuple[Annotated[int, Field(ge=1, le=2**31 - 1)], ...]] = Field(
        default_factory=dict, max_length=1000, description="Shapes by input name, for inputs with dynamic axes."
    )


# Operators that a switch brings into a model which may have had none of them.
_BROUGHT = {
    "dequantize": (
        *("Add", "AveragePool", "Clip", "Concat", "Conv", "Gather", "Gemm", "GlobalAveragePool", "LSTM", "LeakyRelu"),
        *("MatMul", "Mul", "ReduceMean", "Relu", "Sigmoid", "Softmax", "Where"),
    ),
    "batch_norm_to_conv": ("Conv",),
    "clip6_to_relu": ("Relu",),
    "reduce_mean_to_global_average_pool": ("GlobalAveragePool", "Squeeze"),
    "split_large_pooling": ("AveragePool",),
    "split_to_slice": ("Slice",),
}


def brought_op_types(spec: PreparationSpec) -> frozenset[str]:
    """Operators that a preparation by ``spec`` may bring in, beyond those of the default one."""
    brought = {op_type for flag, op_types in _BROUGHT.items() if getattr(spec, flag) for op_type in op_types}
    return frozenset(brought | {"Gelu"} if spec.fuse_gelu and spec.opset else brought)


def fixed_inputs(inputs: Iterable[TensorInfo], spec: PreparationSpec) -> tuple[TensorInfo, ...]:
    """The model inputs with the shapes of ``spec.fixed_shapes``.

    Raises:
        InvalidConfigError: one problem per shape that names no input or contradicts the declared one.
    """
    known = {tensor.name: tensor for tensor in inputs}
    problems = []
    for name, shape in spec.fixed_shapes.items():
        message = _contradiction(known.get(name), shape, list(known))
        if message is not None:
            pointer = below("/config/preparation/fixed_shapes", name)
            problems.append(FieldProblem(pointer=pointer, code="fixed-shape", message=f"input {name!r}: {message}"))
    if problems:
        raise InvalidConfigError("; ".join(problem.message for problem in problems[:5]), errors=tuple(problems))
    return tuple(
        tensor.model_copy(update={"shape": spec.fixed_shapes[tensor.name]})
        if tensor.name in spec.fixed_shapes
        else tensor
        for tensor in known.values()
    )


def _contradiction(tensor: TensorInfo | None, shape: tuple[int, ...], known: list[str]) -> str | None:
    if tensor is None:
        return f"the model has no such input; it has {', '.join(map(repr, known[:10])) or 'none'}"
    if tensor.shape is None:
        return None
    if len(tensor.shape) != len(shape):
        return f"the shape has {len(shape)} axes, the model declares {len(tensor.shape)}"
    for axis, (declared, wanted) in enumerate(zip(tensor.shape, shape, strict=True)):
        if isinstance(declared, int) and declared >= 0 and declared != wanted:
            return f"axis {axis} is {declared} in the model and cannot become {wanted}"
    return None

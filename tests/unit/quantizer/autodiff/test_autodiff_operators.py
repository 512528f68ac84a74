"""Every operator in torch against onnxruntime, and its derivative against differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor

from tests.unit.quantizer.autodiff.operator_cases import Case, value_cases
from tests.unit.quantizer.autodiff.operator_moves import moving_cases
from tests.unit.quantizer.toolbox import run_onnx
from worker.quantizer.autodiff.nodes import attributes_of, refusal
from worker.quantizer.autodiff.operators import COMPUTE, STATIC

CASES = [*value_cases(), *moving_cases()]


def swept(cases: Iterable[Case]) -> list[Any]:
    """Of operators with very many cases one in six; the others are long."""
    seen: Counter[str] = Counter()
    found: list[Any] = []
    for case in cases:
        seen[case.op_type] += 1
        is_long = seen[case.op_type] > 8 and seen[case.op_type] % 6 > 0
        found.append(pytest.param(case, marks=pytest.mark.long) if is_long else case)
    return found


# What has no derivative: its results are no floats, or none that change with what it reads.
NO_FLOATS = {
    "And", "ArgMax", "ArgMin", "CastLike", "Constant", "ConstantOfShape", "Equal", "EyeLike", "Greater",
    "GreaterOrEqual", "Hardmax", "IsInf", "IsNaN", "Less", "LessOrEqual", "NonZero", "Not", "Or", "Shape", "Size",
    "Xor",
}  # fmt: skip


def model_of(case: Case) -> onnx.ModelProto:
    """A model of the node alone: everything it reads is an input of the graph."""
    opset = onnx.helper.make_opsetid("", case.opset)
    text = f'<ir_version: 10, opset_import: ["" : {case.opset}]>\ng () => () {{ {_outputs(case)} = {case.node} }}'
    node = onnx.parser.parse_model(text).graph.node[0]
    inputs = [
        onnx.helper.make_tensor_value_info(name, onnx.helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in case.inputs.items()
    ]
    outputs = [onnx.ValueInfoProto(name=name) for name in node.output]
    graph = onnx.helper.make_graph([node], "g", inputs, outputs)
    return onnx.helper.make_model(graph, opset_imports=[opset], ir_version=10)


def _outputs(case: Case) -> str:
    return ", ".join("yzuvw"[: case.outputs])


def node_of(case: Case) -> ir.Node:
    return ir.from_proto(model_of(case)).graph[0]


def caller(case: Case, *, static: bool) -> tuple[Callable[..., tuple[Tensor, ...]], dict[str, Tensor]]:
    """The node as a function of its tensors, and these; shapes, axes and the like are tuples where ``static``."""
    node, spots = node_of(case), STATIC.get(case.op_type, frozenset())
    attributes, compute = attributes_of(node), COMPUTE[case.op_type]
    names = [None if value is None else value.name for value in node.inputs]
    fixed = {
        name: tuple(array.reshape(-1).tolist())
        for k, name in enumerate(names)
        for array in [case.inputs.get(name or "")]
        if static and k in spots and array is not None
    }
    tensors = {name: torch.from_numpy(array) for name, array in case.inputs.items() if name not in fixed}

    def call(*given: Tensor) -> tuple[Tensor, ...]:
        known = {**fixed, **dict(zip(tensors, given, strict=True))}
        made = compute(attributes, *[None if name is None else known[name] for name in names])
        return made if isinstance(made, tuple) else (made,)

    return call, tensors


@pytest.mark.parametrize("case", swept(CASES), ids=str)
def test_the_runtime_computes_the_same(case: Case) -> None:
    assert refusal(node_of(case)) is None
    expected = run_onnx(model_of(case), case.inputs, optimized=False)
    for static in (True, False):
        call, tensors = caller(case, static=static)
        for wanted, got in zip(expected.values(), call(*tensors.values()), strict=True):
            assert got.numpy().dtype == wanted.dtype
            np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=2e-5, strict=True)


def differentiable(case: Case) -> list[str]:
    """Inputs that the node has a derivative for."""
    if not case.smooth or case.op_type in NO_FLOATS:
        return []
    spots = STATIC.get(case.op_type, frozenset())
    names = [value.name for k, value in enumerate(node_of(case).inputs) if value is not None and k not in spots]
    return [name for name in names if name not in case.frozen and case.inputs[name or ""].dtype == np.float32]


@pytest.mark.parametrize("case", swept(filter(differentiable, CASES)), ids=str)
def test_derivatives_are_those_of_differences(case: Case) -> None:
    call, tensors = caller(case, static=True)
    moving = set(differentiable(case))
    wide = [
        tensor.double().requires_grad_(name in moving) if tensor.is_floating_point() else tensor
        for name, tensor in tensors.items()
    ]
    made = call(*wide)
    floats = [k for k, each in enumerate(made) if each.requires_grad]
    if not floats:  # a type without derivatives comes out
        assert not any(each.is_floating_point() for each in made)
        return

    def moved(*given: Tensor) -> tuple[Tensor, ...]:
        found = call(*given)
        return tuple(found[k] for k in floats)

    assert torch.autograd.gradcheck(moved, wide)


def test_every_operator_has_a_case_and_with_floats_its_derivative_compared() -> None:
    assert {case.op_type for case in CASES} == set(COMPUTE) >= STATIC.keys()
    compared = {case.op_type for case in CASES if differentiable(case)}
    assert compared == set(COMPUTE) - NO_FLOATS

"""Derivatives of the operators in torch against differences, and nodes that are refused; values: ``test_schemas``."""

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

from tests.support.each import each
from tests.unit.quantizer.autodiff.operator_cases import Case, value_cases
from tests.unit.quantizer.autodiff.operator_moves import moving_cases
from tests.unit.quantizer.toolbox import make_model, run_onnx
from worker.quantizer.autodiff.operators import COMPUTE, STATIC
from worker.quantizer.autodiff.operators.forms import attributes_of, fractions, whole_numbers
from worker.quantizer.autodiff.program import HAS_BODY, NOT_IN_TORCH, NOT_OFFERED, refusal

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


def check_values(case: Case) -> None:
    assert refusal(node_of(case)) is None
    call, tensors = caller(case, static=True)
    (wanted,), (got,) = run_onnx(model_of(case), case.inputs, optimized=False).values(), call(*tensors.values())
    np.testing.assert_allclose(got.numpy(), wanted, rtol=1e-4, atol=2e-5, strict=True)


def differentiable(case: Case) -> list[str]:
    """Inputs that the node has a derivative for."""
    if case.op_type in NO_FLOATS:
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


def test_every_operator_with_floats_has_its_derivative_compared() -> None:
    assert set(COMPUTE) >= STATIC.keys()
    compared = {case.op_type for case in CASES if differentiable(case)}
    assert compared == set(COMPUTE) - NO_FLOATS


_REFUSED = {
    "y = Det(x)": NOT_IN_TORCH,
    "y, h = LSTM<hidden_size=2>(x, x, x)": NOT_IN_TORCH,
    "y = com.example.Relu(x)": NOT_IN_TORCH,
    "y = If(x) <then_branch = t () => (float a) { a = Constant<value_float=1.0>() }, "
    "else_branch = e () => (float b) { b = Constant<value_float=2.0>() }>": HAS_BODY,
    'y = Resize<coordinate_transformation_mode="tf_crop_and_resize">(x, x, x)': NOT_OFFERED,
    "y = Resize<antialias=1>(x, , x)": NOT_OFFERED,
    "y = BatchNormalization<training_mode=1>(x, x, x, x, x)": NOT_OFFERED,
    "y = Dropout(x, , x)": NOT_OFFERED,
    "y = Cast<to=8>(x)": NOT_OFFERED,
    "y = EyeLike<dtype=8>(x)": NOT_OFFERED,
    'y = Constant<value_string="word">()': NOT_OFFERED,
    "z, i = MaxPool<kernel_shape=[2]>(x) y = Cast<to=1>(i)": NOT_OFFERED,
}


@pytest.mark.parametrize("text", _REFUSED)
def test_what_cannot_be_trained_through_is_refused(text: str) -> None:
    kind = _REFUSED[text]
    node = ir.from_proto(make_model(f"(float[2,3,4] x) => (float y) {{ {text} }}")).graph[0]
    reason = refusal(node)
    assert reason.code == kind.code
    assert node.op_type in reason.words


def test_attributes_and_static_inputs_are_read() -> None:
    assert whole_numbers((1, -2)) == whole_numbers(torch.tensor([1, -2])) == (1, -2)
    assert whole_numbers(torch.tensor(3)) == (3,)
    assert fractions((1.0, 0.5)) == fractions(torch.tensor([1.0, 0.5])) == (1.0, 0.5)
    # a split into equal parts knows how many
    model = make_model("(float[6] x) => (float[2] a, float[2] b, float[2] c) { a, b, c = Split(x) }", opset=13)
    assert attributes_of(ir.from_proto(model).graph[0])["num_outputs"] == 3
    # outputs that nobody reads are no hindrance
    for text in ("y, m = Dropout(x)", "y, i = MaxPool<kernel_shape=[2]>(x)"):
        node = ir.from_proto(make_model(f"(float[2,3,4] x) => (float y) {{ {text} }}")).graph[0]
        assert refusal(node) is None


def test_statistics_of_a_batch_normalization_are_frozen() -> None:
    given = [torch.rand(2, 3, 4), *(torch.rand(3) + 0.5 for _ in range(4))]
    for tensor in given:
        tensor.requires_grad_()
    made = COMPUTE["BatchNormalization"]({}, *given)
    assert isinstance(made, torch.Tensor)
    made.square().sum().backward()
    assert [tensor.grad is not None for tensor in given] == [True, True, True, False, False]


@pytest.mark.parametrize("op", ["ReduceL2", "LpNormalization", "LpPool", "GlobalLpPool", "MeanVarianceNormalization"])
def test_a_tensor_of_zeros_has_a_finite_derivative(op: str) -> None:
    x = torch.zeros(1, 2, 4, 4, requires_grad=True)
    made = COMPUTE[op]({"kernel_shape": (2, 2)}, x)
    assert isinstance(made, torch.Tensor)
    made.sum().backward()
    assert x.grad is not None
    assert bool(torch.isfinite(x.grad).all())


@each("scale", [0.1, 0.3, 0.45, 0.6, 0.7, 0.9, 1.1, 1.3, 1.7, 2.3])
def test_lengths_are_reckoned_in_float32(scale: float) -> None:
    for length in (length for length in range(3, 21) if length * scale >= 1.001):
        x = np.arange(length, dtype=np.float32).reshape(1, 1, length)
        inputs = {"x": x, "scales": np.array([1, 1, scale], np.float32)}
        check_values(Case('Resize<mode="linear">(x, , scales)', inputs))

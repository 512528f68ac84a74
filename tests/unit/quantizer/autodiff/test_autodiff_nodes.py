"""Which nodes cannot be trained through, and random windows and slices against onnxruntime."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.quantizer.autodiff.operator_cases import Case, away, ints
from tests.unit.quantizer.autodiff.test_autodiff_operators import test_the_runtime_computes_the_same as compare
from tests.unit.quantizer.toolbox import make_model
from worker.quantizer.autodiff.nodes import HAS_BODY, NOT_IN_TORCH, NOT_OFFERED, attributes_of, refusal
from worker.quantizer.autodiff.operators import COMPUTE
from worker.quantizer.autodiff.operators.forms import fractions, whole_numbers

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


@given(
    st.sampled_from(["MaxPool", "AveragePool", "AveragePool, count_include_pad=1"]),
    st.integers(4, 9),
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(1, 2),
    st.tuples(st.integers(0, 3), st.integers(0, 3)),
    st.booleans(),
)
def test_random_windows(pool, size, kernel, stride, dilation, pads, ceil) -> None:
    # every window has to see at least one element, and onnxruntime wants pads smaller than the kernel
    assume(max(pads) < kernel and size + sum(pads) >= (kernel - 1) * dilation + 1 and stride <= kernel)
    assume(dilation == 1 or max(pads) == 0)
    op, _, more = pool.partition(",")
    form = f"kernel_shape=[{kernel}], strides=[{stride}], dilations=[{dilation}], pads=[{pads[0]},{pads[1]}]"
    form += f", ceil_mode={int(ceil)}{',' + more if more else ''}"
    compare(Case(f"{op}<{form}>(x)", {"x": away(1, 2, size)}, opset=22))


@given(st.integers(-9, 9), st.integers(-9, 9), st.integers(-3, 3).filter(bool), st.integers(1, 6))
def test_random_slices(start: int, end: int, step: int, length: int) -> None:
    inputs = {"x": away(2, length), "s": ints(start), "e": ints(end), "a": ints(-1), "t": ints(step)}
    compare(Case("Slice(x, s, e, a, t)", inputs))


@given(
    st.sampled_from(["nearest", "linear"]),
    st.sampled_from(["half_pixel", "align_corners", "pytorch_half_pixel"]),
    st.integers(1, 6),
    st.integers(1, 12),
)
def test_random_sizes(mode: str, coordinates: str, length: int, made: int) -> None:
    form = f'mode="{mode}", coordinate_transformation_mode="{coordinates}"'
    x = np.arange(2 * length, dtype=np.float32).reshape(1, 1, 2, length)
    compare(Case(f"Resize<{form}>(x, , , sizes)", {"x": x, "sizes": ints(1, 1, 2, made)}))

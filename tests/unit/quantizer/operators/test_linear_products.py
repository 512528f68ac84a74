"""Linear nodes: their products, patches and channels are what onnxruntime computes with them."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.quantizer.operators.running import Run, node_and_run
from tests.unit.quantizer.toolbox import normal
from worker.quantizer.operators.linear import (
    LinearNode,
    UnsupportedLayerError,
    channel_axis,
    linear_view,
    product_view,
    summed_axis,
)


def one_node(op_type: str, weight: np.ndarray, x: np.ndarray, **attributes: Any) -> tuple[ir.Node, np.ndarray]:
    """The node, and what onnxruntime computes on ``x``."""
    node, run = node_and_run(op_type, {"x": x.shape}, {"w": weight}, **attributes)
    return node, run(x=x)[0]


def product(node: ir.Node, weight: np.ndarray, x: np.ndarray) -> np.ndarray:
    """The node's output by patches, channels first: [channels, positions]."""
    linear = product_view(node)
    patches, mask = linear.patches(x, np.arange(linear.positions(x)))
    if mask is not None:
        patches = patches * mask
    np.testing.assert_array_equal(linear.from_matrix(linear.matrix(weight)), weight)
    made = linear.matrix(weight) @ patches
    return made.reshape(-1, made.shape[-1])


@settings(deadline=None)
@given(data=st.data())
def test_any_convolution_is_a_product_of_patches(data: st.DataObject) -> None:
    draw = data.draw
    rank, groups = draw(st.integers(1, 3)), draw(st.sampled_from([1, 1, 2, 3]))
    transposed = draw(st.booleans())
    kernel = [draw(st.integers(1, 3)) for _ in range(rank)]
    attributes: dict[str, Any] = {
        "group": groups,
        "strides": [draw(st.integers(1, 3)) for _ in range(rank)],
        "dilations": [draw(st.integers(1, 2)) for _ in range(rank)],
    }
    padding = draw(st.sampled_from(["pads", "SAME_UPPER", "SAME_LOWER", "VALID", "none"]))
    if padding == "pads":
        attributes["pads"] = [draw(st.integers(0, 1)) for _ in range(2 * rank)]
    elif padding != "none" and not (transposed and padding == "SAME_LOWER"):
        attributes["auto_pad"] = padding
    if padding.startswith("SAME"):
        attributes["dilations"] = [1] * rank
    if transposed and padding == "pads":
        attributes["output_padding"] = [draw(st.integers(0, stride - 1)) for stride in attributes["strides"]]
    channels, outputs = groups * draw(st.integers(1, 2)), draw(st.integers(1, 3))
    shape = (channels, outputs) if transposed else (groups * outputs, channels // groups)
    weight = normal(*shape, *kernel)
    x = normal(2, channels, *[draw(st.integers(5, 7)) for _ in range(rank)], seed=1)
    op_type = "ConvTranspose" if transposed else "Conv"
    node, expected = one_node(op_type, weight, x, **attributes)
    expected = np.moveaxis(expected, 1, 0)
    np.testing.assert_allclose(product(node, weight, x), expected.reshape(len(expected), -1), atol=1e-4)


def test_gemm_and_matmul_are_products_of_rows() -> None:
    for transposed in (0, 1):
        weight, x = normal(4, 6), normal(5, 6 if transposed else 4, seed=1)
        node, expected = one_node("Gemm", weight, x, transB=transposed)
        np.testing.assert_allclose(product(node, weight, x), expected.T, atol=1e-5)
    weight, x = normal(4, 6), normal(2, 3, 5, 4, seed=1)
    node, expected = one_node("MatMul", weight, x)
    np.testing.assert_allclose(product(node, weight, x), expected.reshape(-1, 6).T, atol=1e-5)


def test_some_patches_are_those_of_all() -> None:
    weight, x = normal(4, 1, 3, 3), normal(3, 4, 6, 6, seed=1)
    node, _ = one_node("Conv", weight, x, group=4, pads=[1, 1, 1, 1])
    linear = product_view(node)
    chosen = np.array([0, 5, 36, 71, 107])
    every, mask = linear.patches(x, np.arange(linear.positions(x)))
    some, some_mask = linear.patches(x, chosen)
    np.testing.assert_array_equal(some, every[:, :, chosen])
    np.testing.assert_array_equal(some_mask, mask[:, :, chosen])


@pytest.mark.parametrize(
    ("op_type", "weight", "x", "attributes", "reason"),
    [
        ("Gemm", (4, 6), (4, 5), {"transA": 1}, "transposed"),
        ("Gemm", (4, 6), (5, 4), {"alpha": 2.0}, "alpha"),
        ("MatMul", (2, 4, 6), (2, 5, 4), {}, "3 axes"),
        ("Add", (4,), (4,), {}, "no linear operator"),
    ],
)
def test_what_is_no_product_is_refused_with_a_reason(
    op_type: str, weight: tuple[int, ...], x: tuple[int, ...], attributes: dict[str, Any], reason: str
) -> None:
    node, _ = one_node(op_type, normal(*weight), normal(*x), **attributes)
    with pytest.raises(UnsupportedLayerError, match=reason):
        product_view(node)


# Operator, shape of the data, shape of the weight, attributes; input and output channels; axes of both in the weight.
LAYOUTS: dict[str, tuple[str, tuple[int, ...], tuple[int, ...], dict[str, Any], tuple[int, ...]]] = {
    "convolution": ("Conv", (2, 3, 5, 5), (4, 3, 2, 2), {}, (3, 4, 1, 0)),
    "grouped": ("Conv", (2, 6, 5), (4, 3, 2), {"group": 2}, (6, 4, 1, 0)),
    "depthwise": ("Conv", (2, 6, 5, 5), (12, 1, 3, 3), {"group": 6}, (6, 12, 1, 0)),
    "transposed": ("ConvTranspose", (2, 3, 5, 5), (3, 4, 2, 2), {"strides": [2, 2]}, (3, 4, 0, 1)),
    "transposed, grouped": ("ConvTranspose", (2, 6, 5), (6, 2, 3), {"group": 3}, (6, 6, 0, 1)),
    "transposed, depthwise": ("ConvTranspose", (2, 6, 5), (6, 1, 3), {"group": 6}, (6, 6, 0, 1)),
    "gemm": ("Gemm", (2, 3), (3, 4), {"alpha": 0.5}, (3, 4, 0, 1)),
    "gemm transB": ("Gemm", (2, 3), (4, 3), {"transB": 1}, (3, 4, 1, 0)),
    "gemm transA": ("Gemm", (3, 2), (3, 4), {"transA": 1}, (3, 4, 0, 1)),
    "matmul": ("MatMul", (2, 5, 3), (3, 4), {}, (3, 4, 0, 1)),
    "stack": ("MatMul", (2, 5, 3), (2, 3, 4), {}, (3, 4, 1, 2)),
}


def view(op_type: str, data: tuple[int, ...], weight: np.ndarray, **attributes: Any) -> tuple[LinearNode, Run]:
    """The view of a node whose weight is an input for what runs it, so that it can be changed."""
    held, _ = node_and_run(op_type, {"x": data}, {"w": weight}, **attributes)
    _, run = node_and_run(op_type, {"x": data, "w": weight.shape}, **attributes)
    found = linear_view(held)
    assert found is not None
    return found, run


@pytest.mark.parametrize("name", LAYOUTS)
def test_channels_are_counted_and_found(name: str) -> None:
    op_type, data, weight, attributes, (taken, made, input_axis, output_axis) = LAYOUTS[name]
    linear, run = view(op_type, data, normal(*weight), **attributes)
    assert (linear.in_channels, linear.out_channels) == (taken, made)
    assert (linear.input_axis, linear.output_axis) == (input_axis, output_axis)
    result = run(x=normal(*data), w=normal(*weight))[0]
    assert result.shape[channel_axis(linear.node)] == made
    assert data[summed_axis(linear.node, 0)] == taken
    assert linear.transposes_data == (name == "gemm transA")
    assert linear.alpha == attributes.get("alpha", 1.0)


@settings(deadline=None)
@given(name=st.sampled_from(sorted(LAYOUTS)), seed=st.integers(0, 9))
def test_factors_along_the_channels_of_weights_are_factors_of_the_channels(name: str, seed: int) -> None:
    op_type, data, weight, attributes, _ = LAYOUTS[name]
    linear, run = view(op_type, data, normal(*weight), **attributes)
    x, w = normal(*data, seed=seed), normal(*weight, seed=seed + 1)
    into, out = np.exp(normal(linear.in_channels, seed=seed)), np.exp(normal(linear.out_channels, seed=seed + 2))
    scaled = w * linear.along_outputs(out) / linear.along_inputs(into)
    assert scaled.shape == w.shape
    before, after = summed_axis(linear.node, 0), channel_axis(linear.node)
    x_scaled = x * into.reshape([-1 if k == before % x.ndim else 1 for k in range(x.ndim)])
    expected = run(x=x, w=w)[0]
    expected = expected * out.reshape([-1 if k == after % expected.ndim else 1 for k in range(expected.ndim)])
    np.testing.assert_allclose(run(x=x_scaled, w=scaled)[0], expected, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("name", [name for name in LAYOUTS if name != "stack"])
def test_rows_of_the_matrix_are_the_weights_of_one_output_channel(name: str) -> None:
    op_type, data, weight, attributes, _ = LAYOUTS[name]
    linear, _ = view(op_type, data, normal(*weight), **attributes)
    numbers = np.broadcast_to(linear.along_outputs(np.arange(linear.out_channels)), weight)
    matrix = linear.matrix(numbers)
    assert matrix.shape == linear.matrix_shape
    np.testing.assert_array_equal(
        matrix.reshape(linear.out_channels, -1).T, [np.arange(linear.out_channels)] * matrix.shape[2]
    )
    np.testing.assert_array_equal(linear.from_matrix(matrix), numbers)


def test_what_has_no_two_axes_of_channels_is_no_linear_node() -> None:
    for op_type, weight in (("Add", (3,)), ("MatMul", (3,)), ("Relu", None)):
        node, _ = node_and_run(op_type, {"x": (2, 3)}, {} if weight is None else {"w": normal(*weight)})
        assert linear_view(node) is None
    unknown = ir.Value(name="w")
    node = ir.node("Conv", [ir.Value(name="x"), unknown])
    assert linear_view(node) is None
    unknown.shape = ir.Shape([4, 3, 2, 2])
    assert linear_view(node) is not None


def test_a_bias_is_one_where_there_is_one() -> None:
    weight, bias = normal(3, 4), normal(4)
    node, _ = node_and_run("Gemm", {"x": (2, 3)}, {"w": weight, "b": bias}, beta=2.0)
    with_bias = linear_view(node)
    assert with_bias is not None and with_bias.bias is node.inputs[2] and with_bias.beta == 2.0
    plain = linear_view(node_and_run("MatMul", {"x": (2, 3)}, {"w": weight})[0])
    assert plain is not None and plain.bias is None and (plain.alpha, plain.beta) == (1.0, 1.0)

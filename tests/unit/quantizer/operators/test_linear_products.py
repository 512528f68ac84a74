"""Products of matrices and patches are what onnxruntime computes."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.quantizer.operators.running import node_and_run
from tests.unit.quantizer.toolbox import normal
from worker.quantizer.operators.linear import UnsupportedLayerError, product_view


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

"""What a network computes, against counts by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from service.contracts.model import MatrixKind
from tests.unit.quantizer.toolbox import make_model
from worker.quantizer.intake.work import work_of


def graph(text: str, *, inferred: bool = True, **weights: tuple[int, ...]) -> ir.Graph:
    """The graph with weights of these shapes."""
    proto = make_model(text, {name: np.zeros(shape, np.float32) for name, shape in weights.items()}, ir_version=9)
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto) if inferred else proto).graph


def product(call: str, taken: str, made: str) -> str:
    return f"(float[n,{taken}] x) => (float[n,{made}] y) {{ y = {call} }}"


CONV = product("Conv<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1], group = 2>(x, w)", "4,8,8", "6,4,4")
NO_GROUP = product("Conv<kernel_shape = [1,1], group = 0>(x, w)", "4,8,8", "6,8,8")
TRANSPOSED = product("ConvTranspose<kernel_shape = [2,2], strides = [2,2]>(x, w)", "4,3,3", "5,6,6")
GEMM = "(float[n,8] x) => (float[n,5] z) { y = Gemm(x, w, b) z = MatMul(y, v) }"
ATTENTION = "(float[n,2,7,4] q, float[n,2,4,7] k) => (float[n,2,7,7] y) { y = MatMul(q, k) }"


def test_matrices_without_elements_are_none() -> None:
    for text, shape in ((product("MatMul(x, w)", "0", "4"), (0, 4)), (NO_GROUP, (6, 4, 1, 1))):
        assert work_of(graph(text, inferred=False, w=shape)).matrices == ()


@pytest.mark.parametrize(
    ("text", "weights", "multiply_adds", "results", "kinds"),
    [
        (CONV, {"w": (6, 2, 3, 3)}, 6 * 4 * 4 * 2 * 9, 6 * 16, [(2, 3, 18, 1)]),
        (TRANSPOSED, {"w": (4, 5, 2, 2)}, 4 * 9 * 5 * 4, 5 * 36, []),
        (product("MatMul(x, w)", "s,8", "s,3"), {"w": (8, 3)}, 64 * 8 * 3, 64 * 3, [(1, 3, 8, 1)]),
        (GEMM, {"w": (8, 5), "b": (5,), "v": (5, 5)}, 8 * 5 + 5 * 5, 5 + 5, [(1, 5, 5, 1), (1, 5, 8, 1)]),
        (product("Gemm<transB = 1>(x, w)", "s,8", "s,3"), {"w": (3, 8)}, 64 * 8 * 3, 64 * 3, [(1, 3, 8, 1)]),
        (ATTENTION, {}, 2 * 7 * 7 * 4, 2 * 7 * 7, []),
    ],
)
def test_products_and_results_of_a_sample_are_counted(
    text: str, weights: Any, multiply_adds: int, results: int, kinds: list[tuple[int, int, int, int]]
) -> None:
    found = work_of(graph(text, **weights))
    assert found is not None
    assert (found.multiply_adds, found.activation_bytes) == (multiply_adds, 4 * results)
    named = [MatrixKind(groups=g, outputs=o, inputs=i, count=n) for g, o, i, n in kinds]
    assert list(found.matrices) == named


def test_a_recurrent_layer_runs_at_every_step() -> None:
    text = "(float[5,n,3] x) => (float[5,1,n,2] y) { y = LSTM<hidden_size = 2>(x, w, r) }"
    assert work_of(graph(text, w=(1, 8, 3), r=(1, 8, 2))).multiply_adds == 5 * (8 * 3 + 8 * 2)


def test_layers_of_one_shape_are_told_once() -> None:
    text = "(float[n,4] x) => (float[n,4] z) { y = MatMul(x, w) z = MatMul(y, v) }"
    found = work_of(graph(text, w=(4, 4), v=(4, 4)))
    assert found.matrices == (MatrixKind(groups=1, outputs=4, inputs=4, count=2),)
    assert found.matrices[0].elements == 32
    assert (found.nodes, found.largest_activation_bytes) == (2, 16)


def test_shapes_that_are_unknown_or_claim_anything() -> None:
    text = "(float[n,4,8,8] x, int64[8] pads) => (float[n,4,8,8] z) { y = Pad(x, pads) z = Relu(y) }"
    found = work_of(graph(text))  # what is unknown counts as what it was made of
    assert (found.activation_bytes, found.largest_activation_bytes) == (2 * 4 * 256, 4 * 256)
    huge = 2**40
    found = work_of(graph(f"(float[n,{huge},{huge}] x) => (float[n,{huge},{huge}] y) {{ y = Relu(x) }}"))
    assert found.activation_bytes == 2**63 - 1
    assert work_of(graph("(float[n] x, int64[s] t) => (y) { y = Reshape(x, t) }", inferred=False)) is None

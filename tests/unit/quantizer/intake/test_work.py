"""What a network computes, against counts by hand."""

from __future__ import annotations

import onnx
import onnx_ir as ir
import pytest

from service.contracts.model import MatrixKind
from worker.quantizer.intake.work import work_of


def unshaped(text: str) -> ir.Graph:
    return ir.from_proto(onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')).graph


def graph(text: str) -> ir.Graph:
    proto = onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : 17]> {text}')
    return ir.from_proto(onnx.shape_inference.infer_shapes(proto)).graph


def zeros(*dims: int) -> str:
    count = 1
    for dim in dims:
        count *= dim
    return "{" + ", ".join(["0"] * count) + "}"


CONV = f"""g (float[n,4,8,8] x) => (float[n,6,4,4] y)
<float[6,2,3,3] w = {zeros(6, 2, 3, 3)}>
{{ y = Conv<kernel_shape = [3,3], strides = [2,2], pads = [1,1,1,1], group = 2>(x, w) }}"""
TRANSPOSED = f"""g (float[n,4,3,3] x) => (float[n,5,6,6] y)
<float[4,5,2,2] w = {zeros(4, 5, 2, 2)}> {{ y = ConvTranspose<kernel_shape = [2,2], strides = [2,2]>(x, w) }}"""
SEQUENCE = f"""g (float[n,s,8] x) => (float[n,s,3] y)
<float[8,3] w = {zeros(8, 3)}> {{ y = MatMul(x, w) }}"""
GEMM = f"""g (float[n,8] x) => (float[n,5] z)
<float[8,5] w = {zeros(8, 5)}, float[5] b = {zeros(5)}, float[5,5] v = {zeros(5, 5)}>
{{ y = Gemm(x, w, b) z = MatMul(y, v) }}"""
ATTENTION = "g (float[n,2,7,4] q, float[n,2,4,7] k) => (float[n,2,7,7] y) { y = MatMul(q, k) }"


EMPTY = "g (float[n,0] x) => (float[n,4] y) <float[0,4] w = {}> { y = MatMul(x, w) }"
NO_GROUP = f"""g (float[n,4,8,8] x) => (float[n,6,8,8] y)
<float[6,4,1,1] w = {zeros(6, 4, 1, 1)}> {{ y = Conv<kernel_shape = [1,1], group = 0>(x, w) }}"""


@pytest.mark.parametrize("text", [EMPTY, NO_GROUP])
def test_matrices_without_elements_are_none(text: str) -> None:
    assert work_of(unshaped(text)).matrices == ()


@pytest.mark.parametrize(
    ("text", "multiply_adds", "results", "kinds"),
    [
        (CONV, 6 * 4 * 4 * 2 * 9, 6 * 16, [(2, 3, 18, 1)]),
        (TRANSPOSED, 4 * 9 * 5 * 4, 5 * 36, []),
        (SEQUENCE, 64 * 8 * 3, 64 * 3, [(1, 3, 8, 1)]),
        (GEMM, 8 * 5 + 5 * 5, 5 + 5, [(1, 5, 5, 1), (1, 5, 8, 1)]),
        (ATTENTION, 2 * 7 * 7 * 4, 2 * 7 * 7, []),
    ],
)
def test_products_and_results_of_a_sample_are_counted(
    text: str, multiply_adds: int, results: int, kinds: list[tuple[int, int, int, int]]
) -> None:
    found = work_of(graph(text))
    assert found is not None
    assert (found.multiply_adds, found.activation_bytes) == (multiply_adds, 4 * results)
    named = [MatrixKind(groups=g, outputs=o, inputs=i, count=n) for g, o, i, n in kinds]
    assert list(found.matrices) == named


def test_a_recurrent_layer_runs_at_every_step() -> None:
    text = f"""g (float[5,n,3] x) => (float[5,1,n,2] y)
    <float[1,8,3] w = {zeros(1, 8, 3)}, float[1,8,2] r = {zeros(1, 8, 2)}> {{ y = LSTM<hidden_size = 2>(x, w, r) }}"""
    assert work_of(graph(text)).multiply_adds == 5 * (8 * 3 + 8 * 2)


def test_layers_of_one_shape_are_told_once() -> None:
    text = f"""g (float[n,4] x) => (float[n,4] z)
    <float[4,4] w = {zeros(4, 4)}, float[4,4] v = {zeros(4, 4)}> {{ y = MatMul(x, w) z = MatMul(y, v) }}"""
    found = work_of(graph(text))
    assert found.matrices == (MatrixKind(groups=1, outputs=4, inputs=4, count=2),)
    assert found.matrices[0].elements == 32
    assert (found.nodes, found.largest_activation_bytes) == (2, 16)


def test_shapes_that_are_unknown_or_claim_anything() -> None:
    text = "g (float[n,4,8,8] x, int64[8] pads) => (float[n,4,8,8] z) { y = Pad(x, pads) z = Relu(y) }"
    found = work_of(graph(text))  # what is unknown counts as what it was made of
    assert (found.activation_bytes, found.largest_activation_bytes) == (2 * 4 * 256, 4 * 256)
    huge = 2**40
    found = work_of(graph(f"g (float[n,{huge},{huge}] x) => (float[n,{huge},{huge}] y) {{ y = Relu(x) }}"))
    assert found.activation_bytes == 2**63 - 1
    assert work_of(unshaped("g (float[n] x, int64[s] t) => (y) { y = Reshape(x, t) }")) is None

"""What tables and views say of channels and products is what onnxruntime does to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.quantizer.ops.running import Run, node_and_run
from tests.unit.quantizer.toolbox import normal
from worker.quantizer.ops.channels import CHANNEL_FLOWS, MOVERS, joined, parted, tied
from worker.quantizer.ops.labels import TiedLabels
from worker.quantizer.ops.linear import (
    LinearNode,
    UnsupportedLayerError,
    channel_axis,
    linear_view,
    product_view,
    summed_axis,
)
from worker.quantizer.ops.windows import reaches_beyond


def numbers(*values: int) -> np.ndarray:
    return np.asarray(values, np.int64)


@dataclass(frozen=True)
class Case:
    """A node: the shape it reads, the axis of its channels there and in the result (None: no way back)."""

    op_type: str
    shape: tuple[int, ...] = (2, 8, 4, 6)
    axis: int = 1
    back: int | None = 1
    constants: dict[str, np.ndarray] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    outputs: int = 1

    def made(self) -> tuple[ir.Node, Run]:
        return node_and_run(self.op_type, {"x": self.shape}, self.constants, outputs=self.outputs, **self.attributes)


SIZES = np.asarray([1, 1, 2, 2], np.float32)
WINDOW = {"kernel_shape": [2, 2], "strides": [2, 2]}
CUT = {"starts": numbers(6, 0), "ends": numbers(1, 2), "axes": numbers(1, 2), "steps": numbers(-2, 1)}
CASES = {
    **{name: Case(name) for name in ("Abs", "Dropout", "LeakyRelu", "Neg", "Relu", "Identity")},
    "PRelu": Case("PRelu", constants={"slope": np.abs(normal(8, 1, 1))}),
    **{name: Case(name, attributes=WINDOW) for name in ("AveragePool", "MaxPool", "LpPool")},
    "padded MaxPool": Case("MaxPool", attributes={**WINDOW, "pads": [1, 1, 1, 1]}),
    **{name: Case(name) for name in ("GlobalAveragePool", "GlobalMaxPool")},
    **{name: Case(name, attributes={"axes": [-1, 2]}) for name in ("ReduceMax", "ReduceMean", "ReduceMin")},
    "ReduceMean without axes": Case("ReduceMean", attributes={"axes": [2, 3], "keepdims": 0}),
    "ReduceMean behind": Case("ReduceMean", (2, 5, 8), 2, back=1, attributes={"axes": [1], "keepdims": 0}),
    "ReduceSum": Case("ReduceSum", constants={"axes": numbers(2, 3)}),
    "DepthToSpace": Case("DepthToSpace", attributes={"blocksize": 2}),
    "DepthToSpace by columns": Case("DepthToSpace", attributes={"blocksize": 2, "mode": "CRD"}),
    "SpaceToDepth": Case("SpaceToDepth", back=None, attributes={"blocksize": 2}),
    "Flatten": Case("Flatten"),
    "Reshape apart": Case("Reshape", back=1, constants={"to": numbers(2, 2, 4, 24)}),
    "Reshape of the last axis": Case("Reshape", (2, 5, 8), 2, back=3, constants={"to": numbers(2, 5, 4, 2)}),
    "Reshape of all": Case("Reshape", constants={"to": numbers(2, -1)}),
    "Squeeze": Case("Squeeze", (2, 8, 1, 1), constants={"axes": numbers(2, 3)}),
    "Unsqueeze": Case("Unsqueeze", (2, 8), constants={"axes": numbers(2, 3)}),
    "Gather": Case("Gather", back=None, constants={"picked": numbers(5, 0, 5)}, attributes={"axis": 1}),
    "Gather one": Case("Gather", (2, 5, 8), 2, back=1, constants={"one": np.int64(3)}, attributes={"axis": 1}),
    "Slice": Case("Slice", back=None, constants=CUT),
    "Slice of positions": Case("Slice", constants={"starts": numbers(1), "ends": numbers(3), "axes": numbers(-1)}),
    "Split": Case("Split", constants={"split": numbers(3, 5)}, attributes={"axis": 1}, outputs=2, back=None),
    "Split of positions": Case(
        "Split", constants={"split": numbers(1, 3)}, attributes={"axis": 2}, outputs=2, back=None
    ),
    "Transpose": Case("Transpose", back=3, attributes={"perm": [0, 2, 3, 1]}),
    "Transpose of all": Case("Transpose", back=2),
    "Expand": Case("Expand", (1, 8, 1), back=2, constants={"to": numbers(3, 2, 8, 4)}),
    "Pad": Case("Pad", constants={"pads": numbers(0, 0, 1, 2, 0, 0, 0, 1)}),
    "Pad of channels": Case("Pad", back=None, constants={"pads": numbers(0, 2, 0, 0, 0, 1, 0, 0)}),
    "Pad by reflection": Case(
        "Pad", constants={"pads": numbers(0, 0, 1, 0, 0, 0, 1, 0)}, attributes={"mode": "reflect"}
    ),
    "Resize": Case("Resize", constants={"roi": np.zeros(0, np.float32), "scales": SIZES}),
    "Resize, linear": Case(
        "Resize", constants={"roi": np.zeros(0, np.float32), "scales": SIZES}, attributes={"mode": "linear"}
    ),
}


def one_axis(length: int, rank: int, axis: int, *, first: int = 1) -> np.ndarray:
    """Labels that number the channels along one axis."""
    return np.arange(first, first + length).reshape([-1 if k == axis else 1 for k in range(rank)])


def assert_moves_like(run: Run, x: np.ndarray, labels: np.ndarray, results: list[np.ndarray], *, shift: bool) -> None:
    """Change one label at a time: the results with that label change alike, all others stay."""
    labels = np.broadcast_to(labels, x.shape)
    before = run(x=x)
    for label in np.unique(labels):
        there = labels == label
        after = run(x=np.where(there, x + 3 if shift else x * 4, x))
        for one, other, found in zip(before, after, results, strict=False):
            follows = np.broadcast_to(found, one.shape) == label
            wanted = np.where(follows, one + 3 if shift else one * 4, one)
            np.testing.assert_allclose(other, wanted, rtol=1e-5, atol=1e-5)


def test_every_row_that_tells_a_way_has_a_case() -> None:
    told = {op_type for op_type, flow in CHANNEL_FLOWS.items() if flow.forward is not None}
    assert told == {case.op_type for case in CASES.values()}
    assert {op for op, flow in CHANNEL_FLOWS.items() if flow.backward is not None} <= told


SHIFTED = [name for name, case in CASES.items() if CHANNEL_FLOWS[case.op_type].passes_shift]


@pytest.mark.parametrize(("name", "shift"), [*((name, False) for name in CASES), *((name, True) for name in SHIFTED)])
def test_factors_and_shifts_come_out_where_the_table_says(name: str, shift: bool) -> None:
    case, spaces = CASES[name], TiedLabels()
    node, run = case.made()
    assert not shift or reaches_beyond(node) == ("padded" in name)
    labels = spaces.fresh(case.shape[case.axis]).reshape([-1 if k == case.axis else 1 for k in range(len(case.shape))])
    forward = CHANNEL_FLOWS[case.op_type].forward
    assert forward is not None
    found = forward(node, labels, spaces)
    assert found is not None
    groups = spaces.resolve()
    assert [part.ndim for part in found] == [len(value.shape or ()) for value in node.outputs]
    x = normal(*case.shape)
    assert_moves_like(run, x, groups[labels], [groups[part] for part in found], shift=shift)
    assert case.op_type not in MOVERS or all(np.isin(part, x).all() for part in run(x=x))


@pytest.mark.parametrize("name", [name for name, case in CASES.items() if case.back is not None])
def test_factors_are_wanted_where_the_table_says(name: str) -> None:
    case = CASES[name]
    node, run = case.made()
    shape = list(node.outputs[0].shape or ())
    labels = one_axis(int(shape[case.back or 0]), len(shape), case.back or 0)
    backward = CHANNEL_FLOWS[case.op_type].backward
    assert backward is not None
    found = backward(node, labels)
    assert found is not None
    found = found.reshape(found.shape[found.ndim - len(case.shape) :])  # an Expand makes axes
    assert_moves_like(run, normal(*case.shape), found, [labels], shift=False)


STOPPED = {
    "pooled along the channels": Case("MaxPool", axis=3, attributes=WINDOW),
    "reduced along the channels": Case("ReduceMean", attributes={"axes": [1]}),
    "padded by ones": Case("Pad", constants={"pads": numbers(0, 0, 1, 0, 0, 0, 1, 0), "one": np.float32(1)}),
    "channels padded by reflection": Case(
        "Pad", constants={"pads": numbers(0, 1, 0, 0, 0, 0, 0, 0)}, attributes={"mode": "reflect"}
    ),
    "resized by cubes": Case(
        "Resize", constants={"roi": np.zeros(0, np.float32), "scales": SIZES}, attributes={"mode": "cubic"}
    ),
    "channels resized": Case("Resize", axis=3, constants={"roi": np.zeros(0, np.float32), "scales": SIZES}),
    "shuffled columns": Case("DepthToSpace", axis=3, attributes={"blocksize": 2}),
}


@pytest.mark.parametrize("name", STOPPED)
def test_what_does_not_pass_factors_on_is_stopped(name: str) -> None:
    case = STOPPED[name]
    node, _ = case.made()
    forward, backward = CHANNEL_FLOWS[case.op_type].forward, CHANNEL_FLOWS[case.op_type].backward
    shape = list(node.outputs[0].shape or ())
    assert forward is not None and backward is not None
    assert forward(node, one_axis(case.shape[case.axis], len(case.shape), case.axis), TiedLabels()) is None
    if name != "reduced along the channels":  # whose result has none
        assert backward(node, one_axis(int(shape[case.axis]), len(shape), case.axis)) is None


@pytest.mark.parametrize(("axis", "shapes"), [(1, ((2, 3, 4), (2, 5, 4))), (2, ((2, 3, 4), (2, 3, 2)))])
def test_a_concat_puts_labels_one_behind_the_other_and_parts_them_again(
    axis: int, shapes: tuple[tuple[int, ...], ...]
) -> None:
    spaces = TiedLabels()
    node, run = node_and_run("Concat", {"x": shapes[0], "other": shapes[1]}, axis=axis)
    parts = [spaces.fresh(shape[1]).reshape(1, -1, 1) for shape in shapes]
    found = joined(node, parts, spaces)
    assert found is not None
    groups, other = spaces.resolve(), normal(*shapes[1], seed=1)
    made = [groups[part] for part in found]
    whole = np.broadcast_to(made[0], [2, *run(x=normal(*shapes[0]), other=other)[0].shape[1:]])
    back = parted(node, whole)
    assert back is not None
    for part, labels, shape in zip(back, parts, shapes, strict=True):
        np.testing.assert_array_equal(part, np.broadcast_to(groups[labels], shape))
    if axis == 1:
        assert_moves_like(lambda x: run(x=x, other=other), normal(*shapes[0]), groups[parts[0]], made, shift=False)
    else:
        np.testing.assert_array_equal(groups[parts[0]], groups[parts[1]])


@pytest.mark.parametrize("op_type", ["Add", "Sub", "Max", "Min"])
def test_labels_of_operands_that_meet_are_tied(op_type: str) -> None:
    spaces = TiedLabels()
    parts = [spaces.fresh(4).reshape(1, 4, 1), spaces.fresh(4).reshape(4, 1)]
    found = tied(parts, spaces)
    groups = spaces.resolve()
    assert found is not None
    np.testing.assert_array_equal(groups[parts[0]].reshape(-1), groups[parts[1]].reshape(-1))
    _, run = node_and_run(op_type, {"x": (2, 4, 3), "other": (4, 3)})
    x, other = normal(2, 4, 3), normal(4, 3, seed=1)
    factor = 1.0 + np.arange(int(groups.max()) + 1, dtype=np.float32)
    scaled = run(x=x * factor[groups[parts[0]]], other=other * factor[groups[parts[1]]])[0]
    np.testing.assert_allclose(scaled, run(x=x, other=other)[0] * factor[groups[found[0]]], rtol=1e-5)
    assert tied([np.arange(4).reshape(4, 1), np.arange(3).reshape(3, 1)], TiedLabels()) is None  # they do not meet


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
        ("Add", (4,), (4,), {}, "not a linear operator"),
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

"""What the table says of channels is what onnxruntime does to them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from tests.unit.quantizer.operators.running import Run, node_and_run
from tests.unit.quantizer.toolbox import normal
from worker.quantizer.equalization.cross_layer.spaces import Spaces
from worker.quantizer.operators.channels import CHANNEL_FLOWS, MOVERS, joined, parted, tied
from worker.quantizer.operators.windows import reaches_beyond


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
    case, spaces = CASES[name], Spaces()
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
    assert forward(node, one_axis(case.shape[case.axis], len(case.shape), case.axis), Spaces()) is None
    if name != "reduced along the channels":  # whose result has none
        assert backward(node, one_axis(int(shape[case.axis]), len(shape), case.axis)) is None


@pytest.mark.parametrize(("axis", "shapes"), [(1, ((2, 3, 4), (2, 5, 4))), (2, ((2, 3, 4), (2, 3, 2)))])
def test_a_concat_puts_labels_one_behind_the_other_and_parts_them_again(
    axis: int, shapes: tuple[tuple[int, ...], ...]
) -> None:
    spaces = Spaces()
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
    spaces = Spaces()
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
    assert tied([np.arange(4).reshape(4, 1), np.arange(3).reshape(3, 1)], Spaces()) is None  # they do not meet

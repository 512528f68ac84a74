"""Operators whose meaning the version converter changes compute after the lift what they did before it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from tests.support.each import each
from tests.unit.quantizer.preparation.preparing import same
from tests.unit.quantizer.toolbox import make_model, normal, op_types, run_onnx, step
from worker.quantizer.preparation.prepare import prepare

FEEDS = {"x": normal(2, 4, 7, 6)}


def lifted(text: str, opset: int, to: int = 17, **weights: np.ndarray) -> list[str]:
    """Lift between two other nodes, compare with onnxruntime on the model as it was; operators that are there then."""
    model = make_model(
        f"(float[N,4,7,6] x) => (float[N,4,H,W] y) {{ c = Relu(x) {text} y = Neg(u) }}", weights, opset=opset
    )
    prepared, proto = same(model, FEEDS, opset=to)
    assert step(prepared, "lift_opset").detail == f"opset {opset} converted to {to}"
    onnx.checker.check_model(proto, full_check=True)
    return op_types(proto)


@each("mode", ["nearest", "linear"])
@each("scales", [(2, 2), (1.25, 1.25), (1.5, 3), (1, 2.6)])
@each("form", ["Upsample-7", "Upsample-9", "Resize-10"])
def test_what_is_made_larger(form: str, mode: str, scales: tuple[float, float]) -> None:
    name, opset = form.split("-")
    given = [1.0, 1.0, *map(float, scales)]
    text = f'u = {name}<mode="{mode}">(c, s)' if opset != "7" else f'u = Upsample<mode="{mode}", scales={given}>(c)'
    weights = {} if opset == "7" else {"s": np.array(given, np.float32)}
    assert lifted(text, int(opset), **weights) == ["Relu", "Resize", "Neg"]


@each("mode", ["nearest", "linear"])
@each("scales", [(0.5, 0.5), (0.7, 0.3), (1, 0.4)])
def test_what_is_made_smaller(mode: str, scales: tuple[float, float]) -> None:
    lifted(f'u = Resize<mode="{mode}">(c, s)', 10, s=np.array([1, 1, *scales], np.float32))


@pytest.mark.parametrize("axis", [1, 2, 3])
@pytest.mark.parametrize("function", ["Hardmax", "Softmax", "LogSoftmax"])
def test_functions_of_all_axes_from_theirs_on(function: str, axis: int) -> None:
    lifted(f"u = {function}<axis={axis}>(c)", 11)
    lifted(f"d = Concat<axis=-1>(c, c) u = {function}<axis={axis}>(d)", 9)  # of a rank that is not inferred there


@each("groups", [1, 2, 4])
def test_scales_per_group_become_such_per_channel(groups: int) -> None:
    arrays = {"g": normal(groups), "b": normal(groups, seed=1)}
    lifted(f"u = GroupNormalization<num_groups={groups}>(c, g, b)", 18, 21, **arrays)


def test_a_model_that_is_not_lifted_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(model: onnx.ModelProto, opset: int) -> None:
        raise RuntimeError("no adapter")

    monkeypatch.setattr(onnx.version_converter, "convert_version", refuse)
    text = "(float[N,4,7,6] x) => (float[N,4,7,6] y) { y = GroupNormalization<num_groups=2>(x, g, b) }"
    model = make_model(text, {"g": normal(2), "b": normal(2, seed=1)}, opset=18)
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    prepared = prepare(ir.from_proto(copy), opset=21)
    np.testing.assert_allclose(
        run_onnx(ir.to_proto(prepared.model), FEEDS)["y"], run_onnx(model, FEEDS)["y"], rtol=1e-5
    )


@pytest.mark.parametrize(
    "text",
    [
        "v = Unsqueeze<axes=[-1, 0]>(c) u = Squeeze<axes=[-1, 0]>(v)",
        "u = Slice<starts=[1, -3], ends=[3, 9], axes=[2, -1]>(c)",
    ],
)
def test_axes_that_count_from_the_end(text: str) -> None:
    lifted(text, 9)


@each("positive", [True, False])
def test_a_branch_is_lifted_as_well(positive: bool) -> None:
    branches = ", ".join(
        f'{word}_branch = {word} () => (float[N,4,14,12] {word}_out) {{ {word}_out = Resize<mode="{mode}">(c, s) }}'
        for word, mode in (("then", "nearest"), ("else", "linear"))
    )
    text = (
        "(float[N,4,7,6] x) => (float[N,4,14,12] y) { c = Relu(x) m = ReduceSum<keepdims=0>(x) z = Greater(m, zero) "
        f"u = If(z) <{branches}> y = Neg(u) }}"
    )
    model = make_model(text, {"s": np.array([1, 1, 2, 2], np.float32), "zero": np.float32(0)}, opset=10)
    same(model, {"x": np.abs(FEEDS["x"]) * (1 if positive else -1)}, opset=17)

"""QuantStub and DeQuantStub: which nodes they enclose, and what is said where they enclose nothing."""

from __future__ import annotations

import re
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest
import torch
from torch import Tensor, nn

from quantmill.torch.export import export
from quantmill.torch.regions import StubError, resolve_regions
from quantmill.torch.stubs import DeQuantStub, QuantStub
from tests.support.each import each
from worker.quantizer.graph.metadata import REGION, SCOPES


def traced(body: str, types: str = "float[2,3] x", result: str = "float[2,3] y") -> ir.Model:
    text = f'<ir_version: 8, opset_import: ["" : 20, "quantmill" : 1]>\ng ({types}) => ({result}) {{ {body} }}'
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    held = ir.from_proto(model)
    for node in held.graph:
        module = (node.name or "").split("_")[0]
        node.metadata_props[SCOPES] = repr(["", module, node.name])
        for value in node.outputs:
            value.dtype = value.dtype or ir.DataType.FLOAT
    return held


def regions(model: ir.Model) -> dict[str, str | None]:
    resolve_regions(model)
    return {node.name or "": node.metadata_props.get(REGION) for node in model.graph}


def test_nodes_between_the_stubs_are_in_a_region_and_no_marker_is_left() -> None:
    model = traced(
        "[q] a = quantmill.QuantStub(x) [f_0] b = Relu(a) [d] c = quantmill.DeQuantStub(b) [f_1] e = Relu(c) "
        "[q_2] g = quantmill.QuantStub(e) [f_2] h = Relu(g) [d_2] y = quantmill.DeQuantStub(h)"
    )
    assert regions(model) == {"f_0": "q", "f_1": None, "f_2": "q#2"}
    assert [[value.name for value in node.inputs] for node in model.graph] == [["x"], ["b"], ["e"]]
    assert model.graph.outputs[0].name == "y"
    assert "quantmill" not in model.graph.opset_imports
    # a marker between input and output leaves an identity
    body = "[q] a = quantmill.QuantStub(x) [f] y = Relu(a) [d] z = quantmill.DeQuantStub(a)"
    model = traced(body, result="float[2,3] y, float[2,3] z")
    resolve_regions(model)
    assert [node.op_type for node in model.graph] == ["Relu", "Identity"]
    assert [value.name for value in model.graph.outputs] == ["y", "z"]
    onnx.checker.check_model(ir.to_proto(model))


@each(
    ("body", "types", "expected"),
    [
        ("[q] a = quantmill.QuantStub(x) [f] y = Relu(a)", "float[2,3] x", {"f": "q"}),  # to the output
        ("[f] y = Relu(x)", "float[2,3] x", {"f": None}),
        (  # two entrances that meet
            "[q] a = quantmill.QuantStub(x) [p] b = quantmill.QuantStub(z) [f_0] c = Relu(a) [f_1] e = Relu(b) "
            "[f_2] g = Add(c, e) [d] y = quantmill.DeQuantStub(g)",
            "float[2,3] x, float[2,3] z",
            {"f_0": "q", "f_1": "q", "f_2": "q"},
        ),
        (  # constants, shapes and integers on neither side
            "[q] a = quantmill.QuantStub(x) [s] n = Shape(x) [f_0] b = Reshape(a, n) "
            "[one] o = Constant<value_float=2.0>() [f_1] c = Mul(b, o) [m] k = Cast<to=1>(i) "
            "[f_2] g = Add(c, k) [d] y = quantmill.DeQuantStub(g)",
            "float[2,3] x, int64[2,3] i",
            {"s": None, "f_0": "q", "one": None, "f_1": "q", "m": None, "f_2": "q"},
        ),
    ],
)
def test_regions(body: str, types: str, expected: dict[str, str | None]) -> None:
    assert regions(traced(body, types)) == expected


@pytest.mark.parametrize(
    ("body", "told"),
    [
        (
            "[q] a = quantmill.QuantStub(x) [f] b = Relu(a) [p] c = quantmill.QuantStub(b) [g] y = Relu(c)",
            "the QuantStub 'p' is called inside the region that the QuantStub 'q' began",
        ),
        ("[f] a = Relu(x) [d] y = quantmill.DeQuantStub(a)", "the DeQuantStub 'd' is called on a tensor that no"),
        (
            "[q] a = quantmill.QuantStub(x) [f] b = Relu(a) [g] y = Add(b, z)",
            "Add in module 'g' computes with a tensor inside the region that the QuantStub 'q' began and with "
            "the input 'z', which is outside",
        ),
        (
            "[q] a = quantmill.QuantStub(x) [f] b = Relu(a) [d] c = quantmill.DeQuantStub(b) [h] e = Relu(c) "
            "[g] y = Add(b, e)",
            "with the result of Relu in module 'h', which is outside",
        ),
        (
            "[e] w = Gather(table, i) [q] a = quantmill.QuantStub(x) [f] b = Relu(a) [g] y = Add(b, w)",
            "with the result of Gather in module 'e', which is outside",
        ),
        (
            "[q] a = quantmill.QuantStub(x) [d] b = quantmill.DeQuantStub(a) [f] y = Relu(b)",
            "the QuantStub 'q' begins a region in which nothing is computed",
        ),
    ],
)
def test_misplaced_stubs_are_named(body: str, told: str) -> None:
    types = "float[2,3] x, float[2,3] z, int64[2] i, float[9,3] table"
    with pytest.raises(StubError, match=re.escape(told)) as caught:
        resolve_regions(traced(body, types))
    assert caught.value.code == "misplaced-stub"
    assert caught.value.hint


class WholeModule(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.subm0, self.subm1, self.subm2 = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 3)
        self.quant, self.dequant = QuantStub(), DeQuantStub()

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        output0 = self.dequant(self.subm0(self.quant(input)))
        output1 = self.subm1(output0).relu()
        output2: Tensor = self.dequant(self.subm2(self.quant(output1)))
        return output2


@pytest.mark.slow
def test_one_stub_called_several_times_bounds_a_region_each_time(tmp_path: Path) -> None:
    export(WholeModule().eval(), torch.randn(2, 4), tmp_path / "whole.onnx")
    model = ir.load(tmp_path / "whole.onnx")
    found = {node.op_type + str(k): node.metadata_props.get(REGION) for k, node in enumerate(model.graph)}
    assert [region for name, region in found.items() if name.startswith("Gemm")] == ["quant", None, "quant#2"]
    assert [region for name, region in found.items() if name.startswith("Relu")] == [None]
    assert {node.domain for node in model.graph} == {""}


class Forgetful(WholeModule):
    def __init__(self, used: str) -> None:
        super().__init__()
        self.used = used
        self.part = nn.Sequential(QuantStub(), nn.Identity())

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        if self.used == "all":
            return super().forward(input)
        if self.used == "in vain":
            self.part[0](input)
        result: Tensor = self.subm1(self.subm0(input))
        return result


@pytest.mark.long
@pytest.mark.slow
def test_stubs_that_are_not_called_are_named() -> None:
    for used, told in (
        ("none", "never called in forward"),
        ("in vain", "nothing that forward returns depends on them"),
    ):
        with pytest.raises(StubError, match=told) as caught:
            export(Forgetful(used).eval(), torch.randn(2, 4))
        assert "'quant', 'dequant', 'part.0'" in caught.value.detail
        assert caught.value.where["module"] == "quant"
    module = Forgetful("all").eval()
    with pytest.warns(UserWarning, match=r"never called in forward, and bounds nothing: the QuantStub 'part.0'$"):
        exported = export(module, torch.randn(2, 4))
    assert {node.metadata_props.get(REGION) for node in ir.load(exported.onnx_path).graph} == {"quant", None, "quant#2"}
    assert not any(part._forward_pre_hooks for part in module.modules())


def test_stubs_do_nothing_in_pytorch_and_let_gradients_through() -> None:
    module, x = WholeModule(), torch.randn(2, 4)
    plain = module.subm2(module.subm1(module.subm0(x)).relu())
    assert torch.equal(module(x), plain)
    module(x).sum().backward()
    assert module.subm0.weight.grad is not None
    with pytest.raises(StubError, match=r"takes a tensor of floats, not a tensor of torch\.int64"):
        QuantStub()(torch.arange(3))

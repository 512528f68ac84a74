"""Modules -> ONNX: the same numbers, the same names, the module left as it was, and failures that name the line."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from quantmill.torch import BatchFixedError, ExampleInputsError, ExportError, ExportMismatchError, export
from quantmill.torch.calls import ExportCall
from tests.support.each import each
from tests.support.torch_networks import images, made
from tests.unit.quantmill.torch.test_torch_quantize import in_onnxruntime
from worker.quantizer.intake.made import fill
from worker.quantizer.intake.program import read_program


def line_of(function: Any, text: str) -> tuple[str, int]:
    lines, first = inspect.getsourcelines(function)
    return inspect.getsourcefile(function) or "", first + next(k for k, line in enumerate(lines) if text in line)


def failing(module: nn.Module, inputs: Any, error: type[ExportError] = ExportError, **options: Any) -> ExportError:
    with pytest.raises(error) as caught:
        export(module, inputs, **options)
    assert caught.value.hint
    return caught.value


def module_of(forward: Any) -> nn.Module:
    return type("Made", (nn.Module,), {"forward": forward})()


class Linears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Linear(6, 6)
        self.deep = nn.ModuleList([nn.Linear(6, 4, bias=False), nn.Linear(4, 6)])
        self.norms = nn.Sequential(OrderedDict(one=nn.LayerNorm(6), two=nn.LayerNorm(6)))
        self.scale = nn.Parameter(torch.ones(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.flat(x.mean(1)) * self.scale
        for layer in self.deep:
            x = layer(x)
        return self.norms(x) + y.unsqueeze(1)


@pytest.fixture(scope="module")
def linears() -> Linears:
    torch.manual_seed(0)
    return Linears().eval()


@pytest.mark.slow
def test_parameters_nodes_and_batches_are_those_of_the_module(linears):
    exported = export(linears, torch.randn(3, 5, 6))
    graph = onnx.load(exported.onnx_path).graph
    found = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
    assert {name: tuple(value.shape) for name, value in linears.named_parameters()}.items() <= found.items()
    names = {node.name for node in graph.node}
    assert {"flat/Gemm", "deep.0/MatMul", "deep.1/MatMul", "norms.two/LayerNormalization", "ReduceMean"} <= names
    (entry,) = graph.input
    assert (entry.name, entry.type.tensor_type.shape.dim[0].dim_param) == ("x", "batch")
    for samples in (1, 7):
        x = torch.randn(samples, 5, 6)
        np.testing.assert_allclose(
            in_onnxruntime(exported.onnx_path, x)[0], linears(x).detach().numpy(), rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
def test_the_same_module_gives_the_same_bytes_and_nothing_of_this_machine(linears, tmp_path):
    one = export(linears, torch.randn(3, 5, 6), tmp_path / "a.onnx").onnx_path.read_bytes()
    other = export(linears, torch.randn(3, 5, 6), str(tmp_path / "b.onnx")).onnx_path.read_bytes()
    assert one == other
    assert str(Path(__file__).parent).encode() not in one
    assert b"stack_trace" not in one


@pytest.mark.slow
def test_the_module_is_left_as_it_was():
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Sequential(nn.BatchNorm2d(4), nn.Dropout()))
    module.train()
    module[2].eval()
    module[0].weight.requires_grad_(False)
    modes = [part.training for part in module.modules()]
    wanted = [value.requires_grad for value in module.parameters()]
    values = {name: value.clone() for name, value in module.state_dict().items()}
    export(module, images(2, 8))
    assert [part.training for part in module.modules()] == modes
    assert [value.requires_grad for value in module.parameters()] == wanted
    assert all(torch.equal(values[name], value) for name, value in module.state_dict().items())
    failing(module, images(2, 8)[:, :2])
    assert [part.training for part in module.modules()] == modes


def many(self: nn.Module, a: Tensor, b: Tensor, *, factor: float = 1.0, more: dict[str, Tensor] | None = None) -> Any:
    return {"sum": a + b * factor, "parts": (a * 2, [(more or {}).get("c", b) - 1, None, 3])}


X = torch.ones(2, 3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "names"),
    [
        ((X, X), ["a", "b"]),
        ({"b": X, "a": X}, ["a", "b"]),
        ({"a": X, "b": X, "factor": 3.0, "more": {"c": torch.zeros(2, 3)}}, ["a", "b", "more_c"]),
    ],
)
def test_arguments_and_results_of_any_structure(inputs, names):
    module = module_of(many)
    exported, call = export(module, inputs), ExportCall(module, inputs)
    assert [entry.name for entry in onnx.load(exported.onnx_path).graph.input] == names
    assert exported.outputs == ("sum", "parts_0", "parts_1_0")
    results = in_onnxruntime(exported.onnx_path, *call.example.values())
    tree = exported.result.tree(dict(zip(exported.outputs, results, strict=True)))
    bound = call.arguments(call.example)
    np.testing.assert_array_equal(tree["sum"], module(*bound.args, **bound.kwargs)["sum"])
    assert tree["parts"][1][1:] == [None, 3]


class Shared(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.output = nn.Parameter(torch.ones(4))
        self.layer = nn.Linear(4, 4)
        self.tied = nn.Linear(4, 4, bias=False)
        self.tied.weight = self.layer.weight

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        for _ in range(3):
            x = torch.relu(self.layer(x)) + x
        return self.tied(x) * self.output, x


@pytest.mark.slow
def test_modules_called_often_and_tied_weights():
    torch.manual_seed(0)
    module = Shared()
    exported = export(module, torch.randn(4, 4))
    graph = onnx.load(exported.onnx_path).graph
    assert {tensor.name for tensor in graph.initializer} >= {"output", "layer.weight", "layer.bias"}
    assert "tied.weight" not in {tensor.name for tensor in graph.initializer}
    assert {"layer/Gemm", "layer/Gemm_1", "layer/Gemm_2"} <= {node.name for node in graph.node}
    x = torch.randn(3, 4)
    for got, expected in zip(in_onnxruntime(exported.onnx_path, x), module(x), strict=True):
        np.testing.assert_allclose(got, expected.detach().numpy(), rtol=1e-5, atol=1e-6)


class Block(nn.Module):
    def __init__(self, act: nn.Module) -> None:
        super().__init__()
        self.conv, self.act = nn.Conv2d(3, 3, 3, padding=1), act

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))


class Held(nn.Module):
    """A module held twice, a tied matrix, buffers of both kinds, a shape computed from the batch, a dict of results."""

    def __init__(self) -> None:
        super().__init__()
        act = nn.ReLU()
        self.a, self.b, self.bn = Block(act), Block(act), nn.BatchNorm2d(3)
        self.fc, self.tied = nn.Linear(3, 4), nn.Linear(3, 4)
        self.tied.weight = self.fc.weight
        self.gain = nn.Parameter(torch.tensor(1.5))
        self.register_buffer("offset", torch.ones(3, 1, 1), persistent=False)
        self.register_buffer("bias", torch.zeros(4))

    def forward(self, x: Tensor, scale: Tensor) -> dict[str, Any]:
        y = self.bn(self.b(self.a(x + self.offset))).mean((2, 3)) * self.gain
        y = y.reshape(y.shape[0], -1)
        return {"scores": self.fc(y) * scale + self.bias, "parts": (self.tied(y), y)}


@pytest.mark.long
@pytest.mark.slow
def test_an_archive_of_torch_export_gives_the_same_graph(tmp_path):
    torch.manual_seed(0)
    module, inputs = Held().eval(), (torch.randn(2, 3, 8, 8), torch.randn(4))
    exported = export(module, inputs)
    program = torch.export.export(module, inputs, dynamic_shapes=({0: torch.export.Dim("n")}, None))
    torch.export.save(program, tmp_path / "held.pt2")
    read = read_program(tmp_path / "held.pt2", threads=1)
    assert exported.outputs == ("scores", "parts_0", "parts_1")
    assert ([entry.batched for entry in exported.inputs], exported.sampled) == ([True, False], {"x"})
    assert ir.serde.serialize_model(read).graph == onnx.load(exported.onnx_path).graph


@pytest.mark.slow
@pytest.mark.parametrize(
    "module",
    [
        module_of(lambda self, x: x.reshape(2, -1).sum(1)),
        module_of(lambda self, x: x * (2.0 if x.shape[0] == 3 else 1.0)),
    ],
)
def test_a_fixed_batch_size_is_an_error_that_names_the_way_out(module):
    error = failing(module, torch.ones(2, 5), BatchFixedError)
    assert error.code == "export-batch-fixed"
    assert "dynamic_batch=False" in error.hint
    assert error.where["file"] == __file__
    exported = export(module, torch.ones(2, 5), dynamic_batch=False)
    assert exported.inputs[0].batched is False
    (entry,) = onnx.load(exported.onnx_path).graph.input
    assert entry.type.tensor_type.shape.dim[0].dim_value == 2


class Branches(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        if x.sum() > 0:
            return x
        return -x


class Sorts(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.linalg.eigvals(x).abs()


class Inner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.branch = Branches()

    def forward(self, x: Tensor) -> Tensor:
        return self.branch(x * 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "inputs", "function", "text", "says"),
    [
        (Inner(), torch.ones(2, 3, 3), Branches, "if x.sum()", "torch.where"),
        (Sorts(), torch.ones(2, 3, 3), Sorts, "eigvals", "out of the module"),
        (Sorts(), torch.ones(2, 3), Sorts, "eigvals", "module(*inputs) runs on"),
    ],
)
def test_what_cannot_be_exported_is_named_with_its_line(module, inputs, function, text, says):
    error = failing(module, inputs)
    file, line = line_of(function, text)
    assert (error.code, error.where["file"], error.where["line"]) == ("export-failed", file, line)
    assert f"{file}:{line}" in error.detail
    assert says in error.hint


class Counts(nn.Module):
    """Gives another result with every call: by a buffer, or by state that no tracer sees."""

    def __init__(self, in_a_buffer: bool) -> None:
        super().__init__()
        self.calls = 0
        if in_a_buffer:
            self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        if hasattr(self, "seen"):
            self.seen += 1
            return x + self.seen
        self.calls += 1
        return x * self.calls


@pytest.mark.slow
def test_state_between_calls_is_refused_by_name_or_by_the_distance():
    error = failing(Counts(in_a_buffer=True), torch.ones(2, 3))
    assert error.where["buffer"] == "seen"
    assert "self.training" in error.hint
    error = failing(Counts(in_a_buffer=False), torch.ones(2, 3), ExportMismatchError)
    assert (error.code, error.where["output"]) == ("export-mismatch", "output")
    assert error.where["farthest"] > 0
    assert "dB" in error.detail


@each(
    ("inputs", "says"),
    [
        ((torch.ones(2, 3), "relu"), "['mode'] is a str"),
        (torch.ones(2, 3).numpy(), "is a ndarray"),
        ((), "missing a required argument: 'x'"),
        ((torch.ones(2), "relu", 3), "too many positional arguments"),
        ({"x": None}, "hold no tensor"),
        (torch.tensor(1.0), "no axis of samples"),
    ],
)
def test_example_inputs_that_are_none(inputs, says):
    error = failing(module_of(lambda self, x, mode="relu": getattr(torch, mode)(x)), inputs, ExampleInputsError)
    assert error.code == "export-inputs"
    assert says in error.detail


@each(
    ("module", "inputs", "says"),
    [
        (torch.jit.script(nn.ReLU()), torch.ones(2, 3), "Expected nn.Module, got RecursiveScriptModule"),
        ("model.pt", torch.ones(2, 3), "Expected nn.Module, got str"),
        (nn.ReLU(), torch.ones(2, 3, dtype=torch.bfloat16), "input is torch.bfloat16"),
        (module_of(lambda self, x: (x, "words")), torch.ones(2, 3), "a str"),
    ],
)
def test_what_is_no_module_and_no_number(module, inputs, says):
    assert says in failing(module, inputs).detail


def test_a_file_in_place_of_a_module_is_told_where_it_goes():
    assert "push_model(path)" in str(failing("model.onnx", torch.ones(2, 3)).hint)


def test_what_torch_says_is_kept_in_the_error_and_printed_nowhere(capfd):
    module = module_of(lambda self, x: x if x.sum() > 0 else -x)
    error = failing(module, torch.ones(2, 3))
    said = capfd.readouterr()
    assert (said.out, said.err) == ("", "")
    assert "branches on tensor values" in error.detail
    assert error.__suppress_context__ and error.__cause__ is None
    assert "torch.ops.aten" in error.details and "Traceback (most recent call last)" in error.details


def test_results_are_shown_in_a_few_lines(tmp_path):
    exported = export(made(lambda: nn.Linear(6, 3)), torch.randn(2, 6), tmp_path / "m.onnx")
    assert repr(exported).splitlines() == [
        "Exported:",
        "  module     Linear",
        "  inputs     input [2, 6]",
        f"  outputs    {exported.outputs[0]}",
        f"  onnx_path  {tmp_path}/m.onnx"[:173],
    ]


@pytest.mark.slow
def test_a_module_in_half_precision():
    module = made(lambda: nn.Linear(6, 3)).half()
    exported = export(module, torch.randn(2, 6).half())
    assert in_onnxruntime(exported.onnx_path, torch.randn(3, 6).half())[0].dtype == np.float16


@pytest.mark.slow
def test_the_state_of_a_retrained_module_gives_its_outputs(tmp_path):
    torch.manual_seed(0)
    module, x, scale = Held().eval(), images(6, 8), torch.randn(4)
    before = module(x, scale)["scores"].detach()
    exported = export(module, (x, scale), tmp_path / "net.onnx")
    optimizer = torch.optim.SGD(module.train().parameters(), lr=0.1)
    for _ in range(3):
        optimizer.zero_grad()
        module(x, scale)["scores"].square().mean().backward()
        optimizer.step()
    expected = module.eval()(x, scale)["scores"].detach()
    assert (expected - before).abs().max() > 0.01
    # safetensors keeps one name of a shared tensor
    state = {name: tensor for name, tensor in module.state_dict().items() if name != "fc.weight"}
    save_file(state, tmp_path / "new.safetensors")
    (filled,) = fill(exported.onnx_path, tmp_path / "new.safetensors", tmp_path / "made.onnx")
    found = in_onnxruntime(filled, x, scale)[0]
    torch.testing.assert_close(torch.from_numpy(found), expected, rtol=1e-4, atol=1e-5)

"""The quantized network in torch beside onnxruntime on the emitted model, and its gradients beside differences."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
import torch
from torch import nn

from service.contracts.errors import NotDifferentiableError
from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import make_model, normal, run_onnx, sqnr_db
from tests.unit.quantizer.training.networks import filled, pictures, trained
from worker.quantizer.autodiff.program import Program
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.pipeline import Quantizing
from worker.quantizer.refine.draft import Draft
from worker.quantizer.training.quantizers import LearnedGrid
from worker.quantizer.training.twin import Tree, Twin

CPU = torch.device("cpu")
SETTINGS: dict[str, dict[str, Any]] = {
    "int8": {"preset": "int8"}, "per tensor": {"preset": "int8_per_tensor"},
    "4 bits": {"weight": {"dtype": "int4", "granularity": "per_channel"}, "activation": {"dtype": "uint4"}},
    "power of two": {"preset": "xint8"}, "npu": {"preset": "npu_int8"}, "16 bits": {"preset": "a16w8_per_channel"},
    "int16 scales": {"preset": "a8w8"}, "block float": {"preset": "bfp16"},
    "float8": {"activation": {"dtype": "float8_e4m3fn"}, "weight": {"dtype": "float8_e4m3fn"}},
}  # fmt: skip


def layer_by_layer(draft: Draft, feeds: dict[str, np.ndarray]) -> dict[str, float]:
    """SQNR in dB of every rounded activation in the twin, each computed of what onnxruntime has before it.

    A value half way between two integers may be rounded either way: two such elements, or one in 200, do not count.
    """
    emitted = draft.emitted()
    values = {value.name: value for node in emitted.model.graph for value in node.outputs}
    there = {value.name for value in emitted.model.graph.outputs}
    restored = {tensor: name for tensor, name in emitted.restored.items() if name in values}
    for name in restored.values():
        if name not in there:
            emitted.model.graph.outputs.append(values[name])
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(to_bytes(emitted.model), options)
    wanted = dict(zip(restored, session.run(list(restored.values()), feeds), strict=True))
    twin, found = Twin(draft, device=CPU), {}
    rounding = twin._round

    def forced(name: str, tensor: torch.Tensor, known: dict[str, torch.Tensor]) -> None:
        rounding(name, tensor, known)
        key = twin._operands.rounded(name)
        if key is not None and name in wanted:
            mine = known[key].detach().numpy()
            apart = ~np.isclose(mine, wanted[name], rtol=1e-5, atol=1e-6)
            few = 0 < apart.sum() <= max(2, apart.size // 200)
            found[name] = sqnr_db(wanted[name], np.where(apart, wanted[name], mine) if few else mine)
            known[key] = torch.from_numpy(wanted[name])

    twin._round = forced  # type: ignore[method-assign]
    with torch.no_grad():
        twin({name: torch.from_numpy(array) for name, array in feeds.items()})
    return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Quantizing]:
    return cache(lambda kind: filled(tmp_path_factory.mktemp("filled"), trained(), **SETTINGS[kind]))


@pytest.mark.parametrize("kind", SETTINGS)
def test_every_layer_makes_what_the_emitted_model_makes(made: Callable[[str], Quantizing], kind: str) -> None:
    draft = made(kind).filled.draft
    found = layer_by_layer(draft, {"x": pictures(32, seed=5)[0]})
    assert len(found) >= 5
    assert min(found.values()) > 60.0, found
    assert Twin(draft, device=CPU).write().emitted_bytes() == draft.emitted_bytes()  # nothing trained, nothing changed


@pytest.mark.parametrize("kind", SETTINGS)
def test_what_is_written_after_steps_is_what_was_computed(made: Callable[[str], Quantizing], kind: str) -> None:
    """Learned scales, moved weights and biases: the twin's outputs come out of onnxruntime."""
    quantizing = made(kind)
    twin = Twin(quantizing.filled.draft, device=CPU)
    images, labels = pictures(32, seed=6)
    optimizer = torch.optim.Adam(twin.parameters(), lr=0.02)
    for _ in range(4):
        loss = torch.nn.functional.cross_entropy(twin({"x": torch.from_numpy(images)})["y"], torch.from_numpy(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    written = twin.write().on_target(quantizing.case.config)
    twin.follow(written)
    assert written.emitted_bytes() != quantizing.filled.draft.emitted_bytes()
    found = layer_by_layer(written, {"x": images})
    assert min(found.values()) > 60.0, found
    with torch.no_grad():
        mine = twin({"x": torch.from_numpy(images)})["y"].numpy()
    theirs = run_onnx(written.emitted_bytes(), {"x": images}, optimized=False)["y"]
    assert sqnr_db(theirs, mine) > 40.0


@pytest.mark.parametrize("seed", [*range(3), *(pytest.param(seed, marks=pytest.mark.long) for seed in range(3, 12))])
def test_random_networks(tmp_path: Path, seed: int) -> None:
    network = RandomNetwork(seed)
    arrays = {name: normal(16, 3, 8, 8, seed=k) for k, name in enumerate(network.inputs)}
    quantizing = filled(tmp_path, network.model, arrays, preset=("int8", "npu_int8", "xint8")[seed % 3])
    if quantizing.is_empty:
        pytest.skip("nothing to quantize")
    found = layer_by_layer(quantizing.filled.draft, {name: array[:4] for name, array in arrays.items()})
    assert found and min(found.values()) > 55.0, found


def test_learned_zero_points_move_and_are_written(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,4] x) => (float[N,4] y) { h = Gemm <transB = 1> (x, w, b)\n t = LeakyRelu (h)\n"
        " y = Gemm <transB = 1> (t, v, b) }",
        {"w": normal(4, 4, seed=1), "v": normal(4, 4, seed=2), "b": normal(4, seed=3)},
    )
    data = normal(64, 4, seed=4)
    few_bits = {"activation": {"dtype": "uint4"}, "weight": {"dtype": "int4"}}
    draft = filled(tmp_path, model, {"x": data}, **few_bits).filled.draft
    twin = Twin(draft, device=CPU, learn_zeros=True)
    with torch.no_grad():
        for grid in twin.activation_grids.modules():
            if isinstance(grid, LearnedGrid):
                grid.growth -= 1.5  # so that values saturate, which is what moves zero points
    optimizer = torch.optim.Adam([parameter for name, parameter in twin.named_parameters() if "zero" in name], lr=0.3)
    for _ in range(5):
        loss = (twin({"x": torch.from_numpy(data)})["y"] - 1.0).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    written = twin.write()
    before = {name: int(entry.quantization.zero_point) for name, entry in draft.plan.activations.items()}
    after = {name: int(entry.quantization.zero_point) for name, entry in written.plan.activations.items()}
    assert before != after
    assert min(layer_by_layer(written, {"x": data}).values()) > 60.0


def test_gradients_of_weights_pass_straight_through_and_stop_where_the_grid_ends(made) -> None:
    """Beside the float network's own gradients, far from any saturation."""
    quantizing = made("16 bits")
    twin = Twin(quantizing.filled.draft, device=CPU)
    images = torch.from_numpy(pictures(16, seed=8)[0])
    twin({"x": images})["y"].square().sum().backward()
    plain = Program(
        quantizing.filled.draft.graph,
        device=CPU,
        read=lambda node, index, value: f"own {value.name}" if value.name in twin.masters else value.name or "",
    )
    own = {f"own {name}": twin.masters[name].detach().clone().requires_grad_() for name in twin.masters}
    plain({"x": images, **own})["y"].square().sum().backward()
    for name in twin.masters:
        mine, theirs = twin.masters[name].grad, own[f"own {name}"].grad
        assert sqnr_db(theirs.numpy(), mine.numpy()) > 20.0, name


def test_an_operator_without_a_derivative_is_named_before_anything_runs(tmp_path: Path) -> None:
    model = make_model(
        "(float[N,1,4] x) => (float[N,1,3] y) { h = MatMul (x, w)\n t = Transpose <perm = [1, 0, 2]> (h)\n"
        " [memory] l = GRU <hidden_size = 3> (t, w1, r1)\n s = Squeeze (l, one)\n"
        " y = Transpose <perm = [1, 0, 2]> (s) }",
        {"w": normal(4, 4), "w1": normal(1, 9, 4), "r1": normal(1, 9, 3), "one": np.array([1], np.int64)},
    )
    found = filled(tmp_path, model, {"x": normal(8, 1, 4)})
    with pytest.raises(NotDifferentiableError) as caught:
        Twin(found.filled.draft, device=CPU)
    assert (caught.value.where["op_type"], caught.value.where["node"]) == ("GRU", "memory")


def parameter(value: float) -> nn.Parameter:
    return nn.Parameter(torch.tensor([float(value)]))


def test_members_are_found_by_their_names_also_where_they_are_grafted() -> None:
    tree: Tree[nn.Parameter] = Tree()
    for k, name in enumerate(("a.b", "a", "a.b.c", "train", "d..e")):
        tree.put(name, parameter(k))
    tree.put("val_1", parameter(9), at="a.bias")
    assert [float(tree[name]) for name in tree] == [0, 1, 2, 3, 4, 9]
    told = dict(tree.named_parameters())
    assert len(told) == 6
    assert float(told["a.b"]) == 0
    assert float(told["a.bias"]) == 9
    assert "val_1" in tree
    assert "a.bias" not in tree
    with pytest.raises(ValueError, match="there already"):
        tree.put("a.b", parameter(0))
    # grafted members stand in the other module and are still found
    tree: Tree[nn.Parameter] = Tree()
    for k, name in enumerate(("weight", "forward", "part.weight")):
        tree.put(name, parameter(k))
    other = nn.Module()
    tree.graft(other)
    assert not list(tree.parameters())
    names = [name.rstrip("_") for name, _ in other.named_parameters()]
    assert sorted(names) == ["forward", "part.weight", "weight"]
    assert callable(other.forward)
    assert [float(tree[name]) for name in tree] == [0, 1, 2]
    other.weight = parameter(7)
    assert float(tree["weight"]) == 7

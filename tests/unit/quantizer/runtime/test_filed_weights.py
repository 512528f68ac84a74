"""Sessions whose weights stay in mapped files: the runtime computes with them as they lie."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from worker.quantizer.graph import sizes
from worker.quantizer.graph.mapped import FilePlace, MappedTensor
from worker.quantizer.runtime.session import Session, SessionSettings, in_parts

WIDTH = 512


def filed_model(folder: Path, *, activations: bool) -> tuple[ir.Model, np.ndarray]:
    weight = np.random.default_rng(0).integers(-127, 128, (WIDTH, WIDTH)).astype(np.int8)
    held = [numpy_helper.from_array(weight, "w"), numpy_helper.from_array(np.float32(0.01), "s")]
    held.append(numpy_helper.from_array(np.int8(0), "zero"))
    nodes = [helper.make_node("DequantizeLinear", ["w", "s", "zero"], ["wide"], name="wide")]
    if activations:
        nodes.append(helper.make_node("QuantizeLinear", ["x", "s", "zero"], ["q"], name="q"))
        nodes.append(helper.make_node("DequantizeLinear", ["q", "s", "zero"], ["xq"], name="xq"))
    nodes.append(helper.make_node("MatMul", ["xq" if activations else "x", "wide"], ["y"], name="product"))
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", WIDTH]) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "filed", ends[:1], ends[1:], held)
    model = ir.from_proto(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10))
    (folder / "weights").write_bytes(weight.tobytes())
    model.graph.initializers["w"].const_value = MappedTensor(
        np.memmap(folder / "weights", np.int8, "r", shape=weight.shape),
        ir.Tensor(weight, name="w"),
        FilePlace(folder, "weights"),
    )
    return model, weight


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "WEIGHT_BYTES", WIDTH)


@pytest.mark.parametrize("packed", [False, True])
def test_a_weight_in_a_file_is_multiplied_as_it_lies(tmp_path: Path, packed: bool) -> None:
    model, weight = filed_model(tmp_path, activations=False)
    samples = np.random.default_rng(1).normal(size=(3, WIDTH)).astype(np.float32)
    for _ in range(3):  # of memory that is freed wrongly, the first time may tell nothing
        session = Session(model, threads=1, settings=SessionSettings(packed=packed))
        (found,) = session.run({"x": samples})
        np.testing.assert_allclose(found, samples @ (weight * np.float32(0.01)), rtol=1e-3, atol=1e-3)
        del session


def test_what_the_runtime_may_make_of_weights_in_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    floats, _ = filed_model(tmp_path, activations=False)
    integers, _ = filed_model(tmp_path, activations=True)
    assert "QDQSelectorActionTransformer" in (in_parts(floats).left_out or [])
    assert in_parts(integers).left_out == ["ConstantFolding"], "products of integers stay products of integers"
    monkeypatch.setattr(sizes, "WEIGHT_BYTES", 1 << 28)
    assert in_parts(floats).left_out is None, "a model without files may be rewritten in all ways"

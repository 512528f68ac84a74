"""Models beyond what one file can hold go the whole way: here the limit is a few hundred kilobytes."""

from __future__ import annotations

import hashlib
import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from service.contracts.runner import DATA_FILE, DatasetSource, MadeFile, QuantizeTask
from tests.unit.quantizer.runtime.test_given_back_pages import resident_kib
from tests.unit.quantizer.toolbox import config, make_model, normal, rng, write_npz
from tests.worker.workbench import wait_for
from worker.quantizer.command import quantize_files
from worker.quantizer.evaluation.command import evaluated
from worker.quantizer.graph import mapped, sizes
from worker.quantizer.graph import serialized as serializing
from worker.quantizer.graph.mapped import Mapped, SpillFolder
from worker.quantizer.graph.serialized import copy_of, to_bytes, weight_bytes
from worker.quantizer.pipeline import Result, quantize
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.runtime import session as runtime
from worker.quantizer.runtime.session import Session

LIMIT = 400_000
QUICK = {"latency_runs": 1, "layer_samples": 1}
SEARCHED = {"weight": {"calibration": {"method": "mse"}}, "activation": {"calibration": {"method": "entropy"}}}


def network() -> onnx.ModelProto:
    """Float weights of a megabyte, which takes a quarter of that as int8."""
    weights = {"w": normal(128, 1024, scale=0.1), "b": normal(1024), "k": normal(1024, 128, scale=0.03)}
    return make_model(
        "(float[N,128] x) => (float[N,128] y) { [a] h = Gemm(x, w, b) [r] g = Relu(h) [m] y = MatMul(g, k) }", weights
    )


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "net.onnx"
    onnx.save(network(), path, save_as_external_data=True, location="net.data", size_threshold=0)
    assert (tmp_path / "net.data").stat().st_size > 2 * LIMIT
    return path


@pytest.fixture
def source(tmp_path: Path) -> DatasetSource:
    return write_npz(tmp_path / "data.npz", x=normal(24, 128), labels=rng().integers(0, 128, 24))


@pytest.fixture
def small_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a message could hold no more, for whatever is made of it."""
    original = serializing.serialized

    def limited(proto: onnx.ModelProto) -> bytes:
        data = original(proto)
        assert len(data) <= LIMIT, "a whole model was serialized"
        return data

    monkeypatch.setattr(sizes, "FILE_BYTES", LIMIT)
    monkeypatch.setattr(sizes, "WEIGHT_BYTES", LIMIT // 4)
    monkeypatch.setattr(sizes, "TENSOR_BYTES", 4096)
    monkeypatch.setattr(serializing, "serialized", limited)
    monkeypatch.setattr(runtime, "serialized", limited)


def run(model: Path, source: DatasetSource, **settings: Any) -> Result:
    return quantize(model, config(evaluation=QUICK, **settings), source, source, run=SilentRun(), threads=1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [
        {"algorithms": [{"method": "bias_correction", "accept": "if_better"}]},
        pytest.param(SEARCHED, marks=pytest.mark.long),
        {"mode": "weights_only"},
        {"mode": "dynamic"},
        pytest.param({"mode": "weights_only", "algorithms": [{"method": "adaround"}]}, marks=pytest.mark.long),
        {"preset": "int4_weights"},
        pytest.param({"mode": "weights_only", "weight": {"dtype": "mxint8"}}, marks=pytest.mark.long),
    ],
    ids=["judged", "searched", "weights_only", "dynamic", "adaround", "int4", "blocks"],
)
def test_the_same_bytes_and_figures_as_of_a_model_that_fits(
    model: Path, source: DatasetSource, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    whole = run(model, source, **settings)
    request.getfixturevalue("small_limits")
    parts = run(model, source, **settings)
    assert parts.model == whole.model
    assert len(parts.model) < LIMIT
    one, other = parts.report.fidelity.sqnr_db, whole.report.fidelity.sqnr_db
    assert one is not None and other is not None
    assert one > other - 0.1  # its kernels read plain weights, and of weights alone do not round what they multiply
    assert parts.report.float_.size_bytes > 2 * LIMIT
    below, above = ({layer.name: layer.sqnr_db for layer in each.report.layers} for each in (parts, whole))
    assert below.keys() == above.keys()
    for found, known in ((below[name], above[name]) for name in below):
        assert found == known or found > known - 0.1


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{"exclude": [{"op_type": "Gemm"}, {"op_type": "MatMul"}]}, {"mode": "float16"}])
def test_what_does_not_fit_into_one_file_keeps_its_weights_in_a_second_one(
    model: Path, source: DatasetSource, settings: dict[str, Any], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    whole = onnx.load_from_string(run(model, source, **settings).model)
    request.getfixturevalue("small_limits")
    (tmp_path / "out").mkdir()
    task = QuantizeTask(
        model_path=str(model),
        config=config(evaluation=QUICK, **settings),
        calibration=source,
        evaluation=source,
        output_dir=str(tmp_path / "out"),
        threads=1,
    )
    done = quantize_files(task, SilentRun())
    made, data = tmp_path / "out" / "model.onnx", tmp_path / "out" / DATA_FILE
    assert made.stat().st_size < LIMIT < data.stat().st_size
    assert done.data == MadeFile(file=DATA_FILE, sha256=hashlib.sha256(data.read_bytes()).hexdigest())
    manifest = done.report.manifest
    assert manifest.output_sha256 == hashlib.sha256(made.read_bytes()).hexdigest()
    assert manifest.output_data_sha256 == hashlib.sha256(data.read_bytes()).hexdigest()
    assert done.report.quantized.size_bytes == made.stat().st_size + data.stat().st_size
    told = evaluated(model, source, reference=model, threads=1, run=SilentRun()).report.to_json_dict()
    assert told["fidelity"]["sqnr_db"] == 200.0
    found = onnx.load(made)
    assert [node.op_type for node in found.graph.node] == [node.op_type for node in whole.graph.node]
    arrays = [{one.name: onnx.numpy_helper.to_array(one) for one in each.graph.initializer} for each in (found, whole)]
    assert arrays[0].keys() == arrays[1].keys()
    for name, array in arrays[0].items():
        np.testing.assert_array_equal(array, arrays[1][name])
    onnxruntime.InferenceSession(made, providers=["CPUExecutionProvider"])  # finds what lies beside it


@pytest.mark.usefixtures("small_limits")
def test_weights_of_any_type_are_handed_over_as_they_lie() -> None:
    float16_nodes, integers = normal(300, 300).astype(ml_dtypes.bfloat16), rng().integers(-9, 9, (300, 200))
    proto = make_model(
        "(float[N,300] x) => (float[N,300] y, int64[300,200] z) { c = Cast<to=1>(w) y = MatMul(x, c) z = Abs(k) }",
        {"k": integers},
    )
    proto.graph.initializer.append(
        onnx.helper.make_tensor("w", onnx.TensorProto.BFLOAT16, [300, 300], float16_nodes, raw=False)
    )
    model = ir.from_proto(proto)
    assert weight_bytes(model) > sizes.WEIGHT_BYTES
    session = Session(model, threads=1)
    assert set(session._weights) == {"w", "k"}
    x = normal(4, 300)
    y, z = session.run({"x": x})
    np.testing.assert_allclose(y, x @ float16_nodes.astype(np.float32), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(z, np.abs(integers))


def test_what_is_put_on_a_shelf_is_mapped_and_goes_with_it(small_limits: None, tmp_path: Path) -> None:
    spill = SpillFolder(tmp_path)
    integers = rng().integers(-8, 8, (64, 129)).astype(np.int8)
    kept = spill.array(integers)
    np.testing.assert_array_equal(kept, integers)
    assert not kept.flags.writeable
    again = spill.tensor(ir.Tensor(kept, name="again"))  # of the same bytes there is one file
    packed = spill.tensor(ir.Tensor(integers.astype(ml_dtypes.int4), name="packed"))
    np.testing.assert_array_equal(packed.numpy().astype(np.int8), integers)
    assert isinstance(again, Mapped) and isinstance(packed, Mapped)
    assert packed.path.stat().st_size == packed.nbytes == integers.size // 2
    assert {path.name for path in spill.folder.iterdir()} == {again.place.location, packed.place.location}
    folder = spill.folder
    del spill, again
    assert folder.exists()
    del packed
    assert not folder.exists()


def test_pages_are_given_back_while_a_file_is_mapped(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    size = 1 << 24
    monkeypatch.setattr(mapped, "SWEPT_BYTES", size)
    path = tmp_path / "pages"
    path.write_bytes(bytes(size))
    with path.open("rb") as file:
        view = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    assert np.frombuffer(view, np.uint8).sum() == 0
    assert resident_kib(path) >= size >> 10
    mapped.sweep(path, view)
    wait_for(lambda: resident_kib(path) == 0)
    assert np.frombuffer(view, np.uint8)[-1] == 0
    private[5] = 7  # what was written to a private mapping stays
    mapped.know(path, private)
    mapped.forget_files({path})
    assert private[5] == 7


@pytest.mark.usefixtures("small_limits")
def test_few_bits_are_handed_over_packed_as_they_are_stored(tmp_path: Path) -> None:
    stored = rng().integers(-8, 8, (300, 201)).astype(ml_dtypes.int4)
    proto = make_model("(float[1] s) => (float[300,201] y) { y = DequantizeLinear(w, s) }", {}, opset=21)
    proto.graph.initializer.append(ir.to_proto(ir.Tensor(stored, name="w")))
    model = ir.from_proto(proto)
    for _ in range(2):  # held, then mapped
        (y,) = Session(model, threads=1).run({"s": np.ones(1, np.float32)})
        np.testing.assert_array_equal(y, stored.astype(np.float32))
        SpillFolder(tmp_path).graph(model.graph)


def test_a_copy_shares_weights_and_nothing_else() -> None:
    model = ir.from_proto(network())
    before = to_bytes(model)
    copy = copy_of(model)
    assert to_bytes(copy) == before
    assert copy.graph.initializers["w"].const_value is model.graph.initializers["w"].const_value
    copy.graph.remove(list(copy.graph)[-1])
    del copy.graph.initializers["k"]
    assert to_bytes(model) == before

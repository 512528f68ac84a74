"""External data: read right where it is honest, refused by tensor and path where not; escapes: tests/security."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from service.contracts.errors import ExternalDataError
from tests.support.patience import PATIENCE_SECONDS
from tests.unit.quantizer.toolbox import make_model
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.intake.loading import load_model

VALUES = np.arange(12, dtype=np.float32).reshape(3, 4)


def external(
    name: str = "w", array: np.ndarray[Any, Any] = VALUES, location: str = "model.data", **entries: str
) -> onnx.TensorProto:
    tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(array.dtype), dims=array.shape)
    tensor.data_location = TensorProto.EXTERNAL
    for key, value in {"location": location, **entries}.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def model_with(*tensors: onnx.TensorProto, nodes: Any = None) -> onnx.ModelProto:
    model = make_model("(float[n,3] x) => (float y) { y = MatMul(x, w) }")
    model.graph.initializer.extend(tensors)
    if nodes is not None:
        del model.graph.node[:]
        model.graph.node.extend(nodes)
    return model


def laid_out(folder: Path, model: onnx.ModelProto, **files: bytes) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "model.onnx").write_bytes(model.SerializeToString())
    for name, data in files.items():
        (folder / name.replace("_", ".")).write_bytes(data)
    return folder / "model.onnx"


def refused(path: Path, says: str) -> ExternalDataError:
    for load in (load_model, lambda path: inspect_model(path, threads=1)):
        with pytest.raises(ExternalDataError, match=says) as caught:
            load(path)
        error = caught.value
        assert error.where["tensor"] == "w"
        assert error.hint
    return error


def test_external_weights_are_mapped_at_their_offsets(tmp_path: Path) -> None:
    other = np.arange(3, dtype=np.int8)
    path = laid_out(
        tmp_path,
        model_with(external(offset="5"), external("v", other, offset="2", length="3")),
        model_data=b"\0\0" + other.tobytes() + VALUES.tobytes(),
    )
    model = load_model(path)
    weights = model.graph.initializers
    np.testing.assert_array_equal(weights["w"].const_value.numpy(), VALUES)  # type: ignore[union-attr]
    np.testing.assert_array_equal(weights["v"].const_value.numpy(), other)  # type: ignore[union-attr]
    assert weights["w"].const_value.numpy().flags.aligned  # type: ignore[union-attr]
    saved = ir.to_proto(model).graph.initializer  # one file with all weights
    np.testing.assert_array_equal(onnx.numpy_helper.to_array(saved[0]), VALUES)


def test_a_file_may_lie_in_a_sub_folder_and_be_a_hard_link(tmp_path: Path) -> None:
    """As the store makes them."""
    (tmp_path / "store").write_bytes(VALUES.tobytes())
    path = laid_out(tmp_path / "in", model_with(external(location="./weights/a.bin")))
    (tmp_path / "in" / "weights").mkdir()
    (tmp_path / "in" / "weights" / "a.bin").hardlink_to(tmp_path / "store")
    assert inspect_model(path, threads=1).parameter_count == VALUES.size
    np.testing.assert_array_equal(load_model(path).graph.initializers["w"].const_value.numpy(), VALUES)  # type: ignore[union-attr]


@pytest.mark.parametrize("place", ["attribute", "sub-graph", "sub-graph-attribute"])
def test_external_tensors_are_attached_wherever_they_are(tmp_path: Path, place: str) -> None:
    constant = helper.make_node("Constant", [], ["w"], value=external())
    matmul = helper.make_node("MatMul", ["x", "w"], ["y"])
    model = model_with(nodes=[constant, matmul])
    if place != "attribute":
        inside = place == "sub-graph-attribute"
        result = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
        nodes, held = ([constant, matmul], []) if inside else ([matmul], [external()])
        body = helper.make_graph(nodes, "body", [], result, held)
        true = helper.make_node("Constant", [], ["c"], value=helper.make_tensor("t", TensorProto.BOOL, [], [True]))
        model = model_with(nodes=[true, helper.make_node("If", ["c"], ["y"], then_branch=body, else_branch=body)])
    path = laid_out(tmp_path, model, model_data=VALUES.tobytes())
    found = ir.to_proto(load_model(path)).SerializeToString()
    assert b"model.data" not in found
    assert VALUES.tobytes() in found
    assert inspect_model(path, threads=1).parameter_count >= VALUES.size


def test_types_that_numpy_has_not_and_empty_tensors(tmp_path: Path) -> None:
    halves = VALUES.astype(ml_dtypes.bfloat16)
    packed = TensorProto(name="q", data_type=TensorProto.INT4, dims=[3], data_location=TensorProto.EXTERNAL)
    packed.external_data.add(key="location", value="four.data")
    empty = external("e", np.zeros((0, 4), np.float32), "none.data")
    path = laid_out(
        tmp_path,
        model_with(external(), external("h", halves, "half.data"), packed, empty),
        model_data=VALUES.tobytes(),
        half_data=halves.tobytes(),
        four_data=b"\x21\x0f",
        none_data=b"",
    )
    weights = load_model(path).graph.initializers
    np.testing.assert_array_equal(weights["h"].const_value.numpy().astype(np.float32), VALUES)  # type: ignore[union-attr]
    assert weights["q"].const_value.numpy().astype(int).tolist() == [1, 2, -1]  # type: ignore[union-attr]
    assert weights["e"].const_value.shape == (0, 4)  # type: ignore[union-attr]


def test_size_and_digest_cover_the_external_files(tmp_path: Path) -> None:
    model = model_with(external())
    summaries = [
        inspect_model(laid_out(tmp_path / name, model, model_data=data), threads=1)
        for name, data in {"a": VALUES.tobytes(), "b": (VALUES + 1).tobytes(), "c": VALUES.tobytes()}.items()
    ]
    assert summaries[0].size_bytes == (tmp_path / "a" / "model.onnx").stat().st_size + VALUES.nbytes
    assert summaries[0].sha256 == summaries[2].sha256 != summaries[1].sha256


@pytest.mark.parametrize(
    ("entries", "size", "says"),
    [
        ({}, 47, "has 47 bytes, the tensor ends at 48: it is too short"),
        ({"offset": "8"}, 48, "ends at 56"),
        ({"offset": "99999999999999999999"}, 48, "too short"),
        ({"length": "47"}, 48, r"declares 47 bytes at offset 0, its shape \[3, 4\] needs 48"),
        ({"length": "34359738368"}, 48, "declares 34359738368"),
    ],
)
def test_offsets_and_lengths_have_to_fit(tmp_path: Path, entries: dict[str, str], size: int, says: str) -> None:
    refused(laid_out(tmp_path, model_with(external(**entries)), model_data=bytes(size)), says)


def test_entries_are_given_once_and_files_are_there(tmp_path: Path) -> None:
    error = refused(laid_out(tmp_path, model_with(external())), "'model.data' of tensor 'w': the file is missing")
    assert error.where == {"tensor": "w", "path": "model.data"}
    assert error.code == "external-data"
    tensor = external()
    tensor.external_data.add(key="location", value="../secret")
    refused(laid_out(tmp_path, model_with(tensor), model_data=VALUES.tobytes()), "given twice")


UNDER_A_LIMIT = """
import resource, sys
from pathlib import Path
from service.contracts.errors import QuantmillError
from worker.quantizer.intake.inspect import inspect_model

resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]), int(sys.argv[2])))
try:
    inspect_model(Path(sys.argv[1]), threads=1)
except QuantmillError as error:
    print(error.code, error.where.get("resource"))
"""


@pytest.mark.slow
@pytest.mark.long
def test_weights_beyond_the_memory_limit_end_in_a_typed_error(tmp_path: Path) -> None:
    rows = 1 << 28
    tensor = external(array=np.zeros((1, 3), np.float32))
    tensor.dims[0] = rows
    gather = helper.make_node("Gather", ["w", "i"], ["y"])
    model = model_with(tensor, onnx.numpy_helper.from_array(np.array([0]), "i"), nodes=[gather])
    path = laid_out(tmp_path, model)
    with (tmp_path / "model.data").open("wb") as file:
        file.truncate(rows * 12)  # 3 GiB of holes
    command = [sys.executable, "-c", UNDER_A_LIMIT, str(path), str(2 << 30)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False)
    assert done.stdout.split() == ["resource-limit", "memory"], done.stderr


@pytest.mark.parametrize("key", ["basepath", "__class__", "__dict__", "LOCATION", "location ", "", "x" * 10_000, "\0"])
def test_only_known_entries_are_read(tmp_path: Path, key: str) -> None:
    """A reader that makes attributes of entries can be led anywhere (CVE-2026-34445)."""
    path = laid_out(tmp_path, model_with(external(**{key: "/etc"})), model_data=VALUES.tobytes())
    assert len(refused(path, "which is not read").detail) < 400


@pytest.mark.parametrize("number", ["-1", "+0", " 0", "1_0", "0x0", "1e0", "٣", "9" * 5000, "0\n", "abc"])
def test_numbers_are_digits(tmp_path: Path, number: str) -> None:
    for key in ("offset", "length"):
        model = model_with(external(**{key: number}))
        refused(laid_out(tmp_path, model, model_data=VALUES.tobytes() + bytes(64)), "not a number")


def test_a_checksum_is_verified_where_it_is_given(tmp_path: Path) -> None:
    digest = hashlib.sha1(VALUES.tobytes()).hexdigest()
    for right in (digest, digest.upper()):
        path = laid_out(tmp_path, model_with(external(checksum=right)), model_data=VALUES.tobytes())
        assert inspect_model(path, threads=1).parameter_count == VALUES.size
    for wrong in ("0" * 40, digest[:-1], digest + "0", "none"):
        path = laid_out(tmp_path, model_with(external(checksum=wrong)), model_data=VALUES.tobytes())
        refused(path, "not what the model's checksum says")


@pytest.mark.parametrize("location", [".//model.data", "././model.data", "sub/../model.data", "model.data/"])
def test_a_file_has_one_spelling(tmp_path: Path, location: str) -> None:
    (tmp_path / "sub").mkdir()
    model = model_with(external(location=location))
    refused(laid_out(tmp_path, model, model_data=VALUES.tobytes()), "not a plain path")

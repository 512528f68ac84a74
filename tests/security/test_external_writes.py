"""Models with external data are written where they belong, whatever a tensor says of its place (CVE-2025-51480)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto

from quantmill.running import model_file
from service.contracts.errors import ExternalDataError
from tests.security.corpus import models
from worker.quantizer.graph import serialized
from worker.quantizer.graph.serialized import save_whole
from worker.quantizer.intake.loading import load_model

# Large enough not to be kept within the model's file.
WEIGHT = np.arange(1024, dtype=np.float32).reshape(32, 32)
UNTOUCHED = b"what lies outside of the output" * 200


@pytest.fixture
def canary(tmp_path: Path) -> Path:
    path = tmp_path / "canary"
    path.write_bytes(UNTOUCHED)
    return path


@pytest.fixture
def output(tmp_path: Path) -> Path:
    path = tmp_path / "a" / "out"
    path.mkdir(parents=True)
    return path


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serialized, "MAX_WEIGHT_BYTES", 0)


def honest() -> onnx.ModelProto:
    proto = onnx.load_from_string(models.WEIGHTED)
    (tensor,) = proto.graph.initializer
    tensor.CopyFrom(onnx.numpy_helper.from_array(WEIGHT, tensor.name))
    return proto


def hostile(location: str) -> onnx.ModelProto:
    """A model whose tensor names that place; with its weights in it, too, as onnx's writer wants them."""
    proto = honest()
    (tensor,) = proto.graph.initializer
    tensor.data_location = TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value=location)
    return proto


PLACES = {
    "above": "../../canary", "by a detour": "folder/../../../canary", "absolute": "", "a link": "link",
    "a linked folder": "folder/canary",
}  # fmt: skip
every_place = pytest.mark.parametrize("place", PLACES)


def named(place: str, canary: Path, output: Path) -> str:
    (output / "link").symlink_to(canary)
    (output / "folder").symlink_to(canary.parent)
    return PLACES[place] or str(canary)


def outside(canary: Path, output: Path) -> set[Path]:
    return {path for path in canary.parent.rglob("*") if path.is_file() and output not in path.parents}


def test_a_model_of_an_upload_never_comes_as_far_as_being_written(canary: Path, output: Path) -> None:
    path = output / "model.onnx"
    path.write_bytes(hostile(named("above", canary, output)).SerializeToString())
    with pytest.raises(ExternalDataError):
        load_model(path)
    assert canary.read_bytes() == UNTOUCHED


@pytest.mark.usefixtures("large")
@every_place
def test_the_place_that_a_tensor_names_is_not_written_to(canary: Path, output: Path, place: str) -> None:
    """Even where such a tensor were in the graph: weights are written to the one file beside the model."""
    model = ir.from_proto(honest())
    (value,) = model.graph.initializers.values()
    assert value.name is not None
    value.const_value = ir.ExternalTensor(
        named(place, canary, output), 0, WEIGHT.nbytes, ir.DataType.FLOAT, name=value.name,
        shape=ir.Shape(WEIGHT.shape), base_dir=output,
    )  # fmt: skip
    before = outside(canary, output)
    try:
        save_whole(model, output / "model.onnx")
    except (OSError, ValueError) as error:  # onnx-ir's own refusal to read there
        assert str(error)
    else:
        assert (output / "model.onnx.data").is_file()
        written = onnx.load(output / "model.onnx", load_external_data=False)
        (tensor,) = written.graph.initializer
        assert {entry.key: entry.value for entry in tensor.external_data}["location"] == "model.onnx.data"
    assert canary.read_bytes() == UNTOUCHED
    assert outside(canary, output) == before


@pytest.mark.usefixtures("large")
def test_a_link_in_the_output_folder_is_replaced_and_not_followed(canary: Path, output: Path) -> None:
    data = output / "model.onnx.data"
    data.symlink_to(canary)
    model = ir.from_proto(honest())
    save_whole(model, output / "model.onnx")
    assert canary.read_bytes() == UNTOUCHED
    assert not data.is_symlink()
    np.testing.assert_array_equal(
        onnx.numpy_helper.to_array(onnx.load(output / "model.onnx").graph.initializer[0]), WEIGHT
    )


@every_place
def test_a_model_in_memory_that_names_a_place_outside_is_not_written_there(
    canary: Path, output: Path, place: str
) -> None:
    """The door for Quark's users writes the model that it was handed by onnx's own functions."""
    proto = hostile(named(place, canary, output))
    before = outside(canary, output)
    with pytest.raises((onnx.checker.ValidationError, OSError)):
        model_file(proto, output)
    assert canary.read_bytes() == UNTOUCHED
    assert outside(canary, output) == before

"""Real pictures in an archive give the bytes that their decoded arrays give."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from PIL import Image

from service.contracts.config import parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.runner import DatasetSource
from tests.support.data import DATA_MARKS, required_data_dir
from tests.support.media import archive, encoded
from tests.support.provenance import without_provenance
from tests.support.tiny import make_model
from worker.quantizer.data import inspect_dataset
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

pytestmark = DATA_MARKS

FEED = {"*": {"array": "images", "layout": "NHWC", "scale": 1 / 127.5, "mean": [1.0]}}


@pytest.fixture(scope="module")
def photographs() -> np.ndarray[Any, Any]:
    """The 125 calibration pictures, uint8 [n, 224, 224, 3]."""
    with np.load(required_data_dir() / "imagenet" / "calibration.npz") as file:
        found = [file[name] for name in file.files if file[name].ndim == 4]
    (pictures,) = found
    return pictures


@pytest.mark.parametrize("codec", ["PNG", "JPEG"])
def test_an_archive_of_photographs_gives_the_bytes_of_its_arrays(
    tmp_path: Path, photographs: np.ndarray[Any, Any], codec: str
) -> None:
    suffix, options = ("png", {"compress_level": 1}) if codec == "PNG" else ("jpg", {"quality": 90})
    files = {f"{k:03}.{suffix}": encoded(pixels, codec, **options) for k, pixels in enumerate(photographs)}
    decoded = np.stack([np.asarray(Image.open(io.BytesIO(data)).convert("RGB")) for data in files.values()])
    if codec == "PNG":
        np.testing.assert_array_equal(decoded, photographs)
    archive(tmp_path / "data.tar", files)
    np.savez(tmp_path / "data.npz", images=decoded)
    spec = PreprocessingSpec.model_validate({"inputs": FEED})
    summary = inspect_dataset(tmp_path / "data.tar", spec)
    assert summary.samples == len(photographs) == 125
    assert summary.arrays["images"].shape == photographs.shape
    make_model_for_photographs(tmp_path / "net.onnx")
    made = [quantized(tmp_path / "net.onnx", tmp_path / name, spec) for name in ("data.tar", "data.npz")]
    assert without_provenance(made[0]) == without_provenance(made[1])


def make_model_for_photographs(path: Path) -> None:
    """The tiny model, for pictures of any size."""
    make_model(path, channels=4)
    model = onnx.load(path)
    for k, name in ((2, "height"), (3, "width")):
        model.graph.input[0].type.tensor_type.shape.dim[k].dim_param = name
    onnx.save(model, path)


def quantized(model: Path, data: Path, spec: PreprocessingSpec) -> bytes:
    config = parse_config(
        {"preset": "int8", "evaluation": {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}}
    )
    source = DatasetSource(path=str(data), preprocessing=spec)
    return quantize(model, config, source, run=SilentRun(), threads=1).model

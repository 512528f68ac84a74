"""Preparation of the real models: with the default passes and with all of them, they compute the same."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import numpy as np
import onnxruntime as ort
import pytest

from service.contracts.preparation import PreparationSpec
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.intake.loading import load_model
from worker.quantizer.preparation.prepare import prepare

pytestmark = DATA_MARKS

# float16 models are computed in float32 after preparation
TOLERANCES = {"derived_resnet32_fp16": 2e-2}
LABELLED = {
    "cifar10/resnet20.onnx": (3, 32, 32),
    "cifar10/resnet32.onnx": (3, 32, 32),
    "imagenet/mobilenet_v1_0.75_224.onnx": (3, 224, 224),
    "imagenet/mobilenet_v2_1.0_224.onnx": (3, 224, 224),
    "mnist/mnist_cntk_opset8.onnx": (1, 28, 28),
    "speech/kws_dscnn.onnx": (1, 49, 10),
    "speech/kwt1.onnx": None,
}
ZOO = [
    "derived_resnet20_loop",
    "derived_resnet32_external",
    "derived_resnet32_fp16",
    "dtln_model_1",
    "fastestdet",
    "gtcrn_stream_simple",
    "keypoint_classifier",
    "mlperf_ad01_autoencoder",
    "mobilenet_v2_0.35_128_tf2onnx",
    "oww_embedding_model",
    "point_history_lstm",
    "ppocr_mobile_v2_cls",
    "silero_vad_16k_op15",
    "styletransfer_mosaic_nc8_128",
    "yamnet_256_64x96",
    "yunet_s_320",
]
SPECS = {
    "default": PreparationSpec(),
    "all": PreparationSpec(
        batch_norm_to_conv=True,
        reduce_mean_to_global_average_pool=True,
        split_large_pooling=True,
        split_to_slice=True,
        unshare_initializers=True,
    ),
    "unfolded": PreparationSpec(fold_batch_norm=False, batch_norm_to_conv=True),
    "opset 21": PreparationSpec(opset=21),
}

Feeds = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def feed() -> ModuleType:
    """The generator of real inputs that comes with the models."""
    spec = importlib.util.spec_from_file_location("zoo_feed", required_data_dir() / "zoo" / "feed.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def session_of(model: bytes | Path) -> ort.InferenceSession:
    """Without the runtime's own fusions, which would hide or add differences."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    return ort.InferenceSession(
        model if isinstance(model, bytes) else str(model), options, providers=["CPUExecutionProvider"]
    )


def run(session: ort.InferenceSession, feeds: Feeds) -> Feeds:
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def assert_same(path: Path, feeds: list[Feeds], spec: PreparationSpec, tolerance: float) -> None:
    reference = session_of(path)
    prepared = session_of(to_bytes(prepare(load_model(path), spec).model))
    for sample in feeds:
        expected, got = run(reference, sample), run(prepared, sample)
        assert list(expected) == list(got)
        for name, array in expected.items():
            assert (got[name].dtype, got[name].shape) == (array.dtype, array.shape)
            if array.dtype.kind == "f":
                atol = tolerance * float(np.abs(array).max(initial=0)) + 1e-7
                np.testing.assert_allclose(got[name], array, rtol=0, atol=atol, err_msg=name)
            else:
                np.testing.assert_array_equal(got[name], array, err_msg=name)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("file", LABELLED)
def test_labelled_models(file: str, spec: str) -> None:
    path = required_data_dir() / file
    entry = session_of(path).get_inputs()[0]
    shape = LABELLED[file] or tuple(entry.shape[1:])
    values = np.random.default_rng(0).standard_normal((1, *shape)).astype(np.float32)
    assert_same(path, [{entry.name: values}], SPECS[spec], 1e-4)


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize("name", ZOO)
def test_zoo_models(feed: ModuleType, name: str, spec: str) -> None:
    zoo = required_data_dir() / "zoo"
    path = zoo / name / "model.onnx" if (zoo / name).is_dir() else zoo / f"{name}.onnx"
    session = session_of(path)
    feeds = feed.feeds(name, 2, run=lambda sample: run(session, sample))
    assert_same(path, feeds, SPECS[spec], TOLERANCES.get(name, 1e-4))

"""The real models: accepted with the facts that their publishers state, or refused with the right code and words."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.contracts.errors import UnsupportedModelError
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.intake.loading import load_model

pytestmark = DATA_MARKS

LABELLED = [
    "cifar10/resnet20.onnx",
    "cifar10/resnet32.onnx",
    "imagenet/mobilenet_v1_0.75_224.onnx",
    "imagenet/mobilenet_v2_1.0_224.onnx",
    "mnist/mnist_cntk_opset8.onnx",
    "speech/kws_dscnn.onnx",
    "speech/kwt1.onnx",
]
REFUSED = {
    "sklearn_randomforest": ("value 'output_probability' is a map", {"value": "output_probability"}),
    "superres_prepost_op18": (
        "operator domain 'com.microsoft.extensions'",
        {"node": "pre_process_0", "op_type": "DecodeImage", "domain": "com.microsoft.extensions"},
    ),
}
ZOO = [
    "derived_resnet20_loop",
    "derived_resnet32_external",
    "derived_resnet32_fp16",
    "derived_resnet32_ort_qdq",
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
    "sklearn_randomforest",
    "styletransfer_mosaic_nc8_128",
    "superres_prepost_op18",
    "tiny_multi_io",
    "yamnet_256_64x96",
    "yunet_s_320",
]


def zoo() -> dict[str, Any]:
    facts: dict[str, Any] = json.loads((required_data_dir() / "zoo" / "meta.json").read_text())
    return facts


def path_of(name: str) -> Path:
    return required_data_dir() / "zoo" / zoo()[name]["file"]


def test_the_list_is_whole() -> None:
    assert sorted(zoo()) == sorted(ZOO)


@pytest.mark.parametrize("name", sorted(set(ZOO) - set(REFUSED)))
def test_zoo_models_are_accepted_with_their_facts(name: str) -> None:
    facts, path = zoo()[name], path_of(name)
    summary = inspect_model(path, threads=1)
    assert summary.opset == facts["opset"]
    assert summary.ir_version == facts["ir_version"]
    assert summary.op_counts == facts["ops"]
    assert summary.node_count == sum(facts["ops"].values())
    assert [(tensor.name, tensor.dtype) for tensor in summary.inputs] == [
        (given["name"], given["dtype"]) for given in facts["inputs"]
    ]
    for tensor, given in zip(summary.inputs, facts["inputs"], strict=True):
        assert tensor.shape is not None
        assert [axis for axis in tensor.shape if isinstance(axis, int)] == [
            axis for axis in given["shape"] if isinstance(axis, int) and axis >= 0
        ]
    assert len(summary.outputs) == len(facts["outputs"])
    assert summary.parameter_count > 0 or name == "tiny_multi_io"
    assert len(list(load_model(path).graph)) <= summary.node_count


@pytest.mark.parametrize("name", sorted(REFUSED))
def test_zoo_models_that_cannot_run_are_refused(name: str) -> None:
    says, where = REFUSED[name]
    with pytest.raises(UnsupportedModelError, match=says) as caught:
        inspect_model(path_of(name), threads=1)
    assert caught.value.code == "unsupported-model"
    assert caught.value.where == where
    assert caught.value.hint


@pytest.mark.parametrize("file", LABELLED)
def test_labelled_models_are_accepted(file: str) -> None:
    path = required_data_dir() / file
    summary = inspect_model(path, threads=1)
    assert len(summary.inputs) == len(summary.outputs) == 1
    assert summary.inputs[0].dtype == "float32"
    assert summary.size_bytes == path.stat().st_size
    assert 4 * summary.parameter_count <= summary.size_bytes

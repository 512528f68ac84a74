"""Real models: the same decision is spoken of for classifiers alone."""

from __future__ import annotations

import onnx_ir as ir
import pytest

from service.contracts.evaluation import EvaluationSpec
from tests.data.zoo import model_path
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.evaluation.class_axis import class_outputs

pytestmark = DATA_MARKS
CLASSIFIERS = ("mobilenet_v2_0.35_128_tf2onnx", "yamnet_256_64x96", "ppocr_mobile_v2_cls", "derived_resnet32_fp16")
OTHERS = (
    "mlperf_ad01_autoencoder",
    "oww_embedding_model",
    "styletransfer_mosaic_nc8_128",
    "dtln_model_1",
    "gtcrn_stream_simple",
    "fastestdet",
    "silero_vad_16k_op15",
)


@pytest.mark.parametrize("name", CLASSIFIERS)
def test_a_classifier_has_scores(name: str) -> None:
    model = ir.load(model_path(name))
    assert class_outputs(model, EvaluationSpec(), None) == {model.graph.outputs[0].name}


@pytest.mark.parametrize("name", OTHERS)
def test_embeddings_sounds_pictures_and_boxes_are_none(name: str) -> None:
    assert class_outputs(ir.load(model_path(name)), EvaluationSpec(), None) == frozenset()


@pytest.mark.parametrize("name", ["cifar10/resnet20", "imagenet/mobilenet_v2_1.0_224", "mnist/mnist_cntk_opset8"])
def test_labelled_models_have_scores_without_their_labels(name: str) -> None:
    model = ir.load(required_data_dir() / f"{name}.onnx")
    assert class_outputs(model, EvaluationSpec(), None) == {model.graph.outputs[0].name}

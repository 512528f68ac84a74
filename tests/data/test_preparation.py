"""Prepared by any passes, the real models compute the same."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest

from service.contracts.preparation import PreparationSpec
from tests.data.test_zoo import QUANTIZED
from tests.data.zoo import Feeds, feeds_of, model_path, mostly_long, run, session_of
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.intake.loading import load_model
from worker.quantizer.preparation.prepare import prepare

pytestmark = DATA_MARKS

# float16 models are computed in float32 after preparation
TOLERANCES = {"derived_resnet32_fp16": 2e-2}
LABELLED = {
    "cifar10/resnet20.onnx": (3, 32, 32), "cifar10/resnet32.onnx": (3, 32, 32),
    "imagenet/mobilenet_v1_0.75_224.onnx": (3, 224, 224), "imagenet/mobilenet_v2_1.0_224.onnx": (3, 224, 224),
    "mnist/mnist_cntk_opset8.onnx": (1, 28, 28), "speech/kws_dscnn.onnx": (1, 49, 10), "speech/kwt1.onnx": None,
}  # fmt: skip
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


def labelled_feeds(file: str) -> list[Feeds]:
    entry = session_of(required_data_dir() / file).get_inputs()[0]
    shape = LABELLED[file] or tuple(entry.shape[1:])
    return [{entry.name: np.random.default_rng(0).standard_normal((1, *shape)).astype(np.float32)}]


@lru_cache(maxsize=2)  # the tests of one model come one after the other
def case_of(name: str) -> tuple[Path, list[Feeds], list[Feeds]]:
    path = required_data_dir() / name if name in LABELLED else model_path(name)
    feeds = labelled_feeds(name) if name in LABELLED else feeds_of(name, 2)
    session = session_of(path, optimized=False)
    return path, feeds, [run(session, sample) for sample in feeds]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(
    "name", mostly_long([*LABELLED, *QUANTIZED], "derived_resnet20_loop", "derived_resnet32_fp16", "point_history_lstm")
)
def test_prepared_models_compute_the_same(name: str, spec: str) -> None:
    path, feeds, outputs = case_of(name)
    prepared = session_of(to_bytes(prepare(load_model(path), SPECS[spec]).model), optimized=False)
    for sample, expected in zip(feeds, outputs, strict=True):
        got = run(prepared, sample)
        assert list(expected) == list(got)
        for output, array in expected.items():
            assert (got[output].dtype, got[output].shape) == (array.dtype, array.shape)
            if array.dtype.kind == "f":
                atol = TOLERANCES.get(name, 1e-4) * float(np.abs(array).max(initial=0)) + 1e-7
                np.testing.assert_allclose(got[output], array, rtol=0, atol=atol, err_msg=output)
            else:
                np.testing.assert_array_equal(got[output], array, err_msg=output)

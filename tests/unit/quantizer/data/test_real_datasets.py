"""The real datasets: facts, and values equal to numpy.load."""

from __future__ import annotations

import numpy as np
import pytest

from service.contracts.dataset import InputSpec, PreprocessingSpec
from tests.support.data import DATA_MARKS, required_data_dir
from worker.quantizer.data import inspect_dataset, open_dataset

pytestmark = DATA_MARKS


@pytest.mark.parametrize(
    ("file", "array", "labels", "samples", "classes"),
    [
        pytest.param("imagenet/calibration.npz", "images", None, 125, 1000, marks=pytest.mark.long),
        pytest.param("imagenet/evaluation.npz", "images", None, 438, 1000, marks=pytest.mark.long),
        ("cifar10/calibration.npz", "images", None, 1000, 10),
        ("mnist/mnist.npz", "test", "test_labels", 3000, 10),
        ("speech/kwt1_calibration.npz", "inputs", None, 482, 35),
        ("speech/kws_dscnn_mfcc49x10.npz", "test", "test_labels", 4000, 12),
        ("zoo/hand_landmarks.npz", "keypoint", "keypoint_label", None, None),
    ],
)
def test_real_archives(file: str, array: str, labels: str | None, samples: int | None, classes: int | None) -> None:
    path = required_data_dir() / file
    preprocessing = PreprocessingSpec(inputs={"x": InputSpec(array=array)}, labels=labels)
    summary = inspect_dataset(path, preprocessing)
    stored = np.load(path)
    stored_array = stored[array]
    assert summary.samples == len(stored_array) == (samples or summary.samples)
    assert summary.arrays[array].shape == stored_array.shape
    assert summary.labels is not None
    assert summary.labels.count == summary.samples
    assert classes is None or summary.labels.maximum < classes
    dataset = open_dataset(path, preprocessing)
    np.testing.assert_array_equal(dataset.labels, stored[labels or "labels"])
    reader = dataset.selection.arrays[array].open()
    for start in range(0, summary.samples, 97):
        np.testing.assert_array_equal(reader.read(97), stored_array[start : start + 97])
    reader.close()

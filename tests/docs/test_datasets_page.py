"""The example of docs/datasets.md makes the dataset that the page tells of."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.contracts.dataset import ArraySummary, PreprocessingSpec
from service.contracts.model import TensorInfo
from tests.docs.blocks import ROOT, fenced
from worker.quantizer.data import inspect_dataset, open_dataset

PAGE = ROOT / "docs" / "datasets.md"


def test_samples_of_different_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (block,) = fenced(PAGE, "python")
    names: dict[str, list[list[int]]] = {}
    exec(block, names)
    path = tmp_path / "calibration.npz"
    summary = inspect_dataset(path, PreprocessingSpec())
    assert summary.arrays == {"input_ids": ArraySummary(dtype="int64", shape=(3, None), shortest=(2,), longest=(5,))}
    (tensor,) = [TensorInfo(name="input_ids", dtype="int64", shape=(None, None))]
    batches = open_dataset(path, PreprocessingSpec()).batches([tensor], 8)
    for sentence, label, batch in zip(names["sentences"], (1, 0, 1), batches, strict=True):
        np.testing.assert_array_equal(batch.feeds["input_ids"], [sentence])
        assert batch.labels is not None
        assert batch.labels.tolist() == [label]

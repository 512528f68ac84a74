"""Minibatches hold the very samples that the dataset holds, wherever they lie and however the model takes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.errors import CanceledError, DatasetMismatchError, ResourceLimitError
from service.contracts.model import TensorInfo
from worker.quantizer.data import ArrayDataset, open_dataset
from worker.quantizer.layerwise.frontier import StoreLimits
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.training.samples import TrainingSamples, epoch_order

SAMPLES = 23
_PICTURES = PreprocessingSpec(inputs={"x": InputSpec(layout="NHWC", scale=1 / 255, mean=(0.5,), std=(0.25,))})
_ON_DISK = (StoreLimits(level=2), StoreLimits(memory_bytes=0))


def picture(batch: int | str = "N") -> TensorInfo:
    return TensorInfo(name="x", dtype="float32", shape=(batch, 3, 4, 5))


def stored() -> dict[str, np.ndarray]:
    random = np.random.default_rng(3)
    return {
        "x": random.integers(0, 256, (SAMPLES, 4, 5, 3)).astype(np.uint8),
        "labels": random.integers(0, 7, SAMPLES),
        "boxes": random.standard_normal((SAMPLES, 2, 4)).astype(np.float32),
    }


def prepared(pictures: np.ndarray) -> np.ndarray:
    return ((pictures.transpose(0, 3, 1, 2) / 255.0 - 0.5) / 0.25).astype(np.float32)


def samples(path: Path, tensor: TensorInfo, **settings: Any) -> TrainingSamples:
    arrays = stored()
    np.savez(path / "data.npz", **arrays)
    data = open_dataset(path / "data.npz", _PICTURES)
    known: dict[str, Any] = {"count": 17, "arrays": (None, "boxes"), "run": SilentRun()}
    return TrainingSamples(data, [tensor], **(known | settings))


@pytest.mark.parametrize("limits", [StoreLimits(), *_ON_DISK])
def test_batches_hold_the_samples_of_their_numbers(tmp_path: Path, limits: StoreLimits) -> None:
    arrays = stored()
    with samples(tmp_path, picture(), limits=limits, folder=tmp_path) as found:
        assert (found.count, found.fixed_batch) == (17, None)
        assert bool(found.notes) == (limits != StoreLimits())
        for numbers in ([16, 0, 3], [5], list(range(17))):
            batch = found.batch(np.array(numbers))
            wanted = np.array(numbers)
            np.testing.assert_allclose(batch.feeds["x"], prepared(arrays["x"][wanted]), atol=1e-6)
            assert batch.feeds["x"].dtype == np.float32
            np.testing.assert_array_equal(batch.arrays[None], arrays["labels"][wanted])
            np.testing.assert_array_equal(batch.arrays["boxes"], arrays["boxes"][wanted])
            assert (batch.valid, batch.size) == (len(numbers), len(numbers))
            batch.feeds["x"][:] = 0.0  # a batch is the caller's own
        np.testing.assert_allclose(found.batch(np.array([5])).feeds["x"], prepared(arrays["x"][5:6]), atol=1e-6)
        assert len(list(tmp_path.glob("training-*/*"))) == (0 if limits == StoreLimits() else 3)
    assert list(tmp_path.glob("training-*")) == []


def test_small_arrays_stay_in_memory_where_large_ones_do_not_fit(tmp_path: Path) -> None:
    labels_and_boxes = 17 * 8 + 17 * 2 * 4 * 4
    with samples(tmp_path, picture(), limits=StoreLimits(memory_bytes=labels_and_boxes), folder=tmp_path) as found:
        (file,) = tmp_path.glob("training-*/*")
        assert file.stat().st_size == 17 * 3 * 4 * 5 * 4
        np.testing.assert_allclose(found.batch(np.array([7])).feeds["x"], prepared(stored()["x"][7:8]), atol=1e-6)


@pytest.mark.parametrize("limits", [StoreLimits(), *_ON_DISK])
def test_a_fixed_batch_is_filled_up(tmp_path: Path, limits: StoreLimits) -> None:
    arrays = stored()
    with samples(tmp_path, picture(5), limits=limits) as found:
        assert found.fixed_batch == 5
        # The stream's last batch holds two samples and three that fill up: those are not taken for samples.
        batch = found.batch(np.array([16, 15]))
        np.testing.assert_allclose(batch.feeds["x"], prepared(arrays["x"][[16, 15, 15, 15, 15]]), atol=1e-6)
        np.testing.assert_array_equal(batch.arrays[None], arrays["labels"][[16, 15]])
        assert (batch.valid, batch.size, batch.numbers.tolist()) == (2, 5, [16, 15])
        with pytest.raises(ValueError, match="6 samples"):
            found.batch(np.arange(6))


def test_whole_inputs_run_one_at_a_time(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    arrays = {
        "state": random.standard_normal((6, 2, 3)).astype(np.float32),
        "x": random.standard_normal((6, 4)).astype(np.float32),
    }
    inputs = [
        TensorInfo(name="state", dtype="float32", shape=(2, 3)),
        TensorInfo(name="x", dtype="float32", shape=("N", 4)),
    ]
    for limits in (StoreLimits(), StoreLimits(level=2)):
        with TrainingSamples(ArrayDataset(arrays), inputs, 6, (), SilentRun(), limits) as found:
            assert found.fixed_batch == 1
            batch = found.batch(np.array([3]))
            np.testing.assert_array_equal(batch.feeds["state"], arrays["state"][3])
            np.testing.assert_array_equal(batch.feeds["x"], arrays["x"][3:4])


def test_bfloat16_survives_the_disk(tmp_path: Path) -> None:
    values = np.arange(12, dtype=np.float32).reshape(6, 2).astype(ml_dtypes.bfloat16)
    save_file({"x": values}, str(tmp_path / "data.safetensors"))
    data = open_dataset(tmp_path / "data.safetensors", PreprocessingSpec())
    tensor = TensorInfo(name="x", dtype="bfloat16", shape=("N", 2))
    with TrainingSamples(data, [tensor], 6, (), SilentRun(), StoreLimits(level=2)) as found:
        feed = found.batch(np.array([5, 2])).feeds["x"]
    assert feed.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(feed.astype(np.float32), [[10, 11], [4, 5]])


def test_reading_stops_where_the_run_is_canceled_or_nothing_fits(tmp_path: Path) -> None:
    class Canceled(SilentRun):
        def check(self) -> None:
            raise CanceledError("canceled")

    with pytest.raises(CanceledError):
        samples(tmp_path, picture(), run=Canceled(), limits=StoreLimits(level=2), folder=tmp_path).__enter__()
    assert list(tmp_path.glob("training-*")) == []
    # what does not fit is refused
    nowhere = StoreLimits(memory_bytes=10, disk_bytes=10)
    with pytest.raises(ResourceLimitError), samples(tmp_path, picture(), limits=nowhere, folder=tmp_path):
        pass
    assert list(tmp_path.glob("training-*")) == []
    with pytest.raises(DatasetMismatchError, match="'masks'"), samples(tmp_path, picture(), arrays=("masks",)):
        pass
    with pytest.raises(ValueError, match="no samples"):
        samples(tmp_path, picture(), count=0)
    with samples(tmp_path, picture()) as found, pytest.raises(IndexError):
        found.batch(np.array([17]))


def test_epochs_take_all_samples_in_orders_of_their_own_that_minibatches_cut(tmp_path: Path) -> None:
    orders = [epoch_order(100, seed, epoch) for seed in (0, 1) for epoch in range(4)]
    assert all(sorted(order) == list(range(100)) for order in orders)
    assert len({tuple(order) for order in orders}) == 8
    np.testing.assert_array_equal(epoch_order(100, 1, 2), orders[6])
    # minibatches cut an order
    order = np.arange(17)[::-1]
    with samples(tmp_path, picture()) as found:
        pieces = list(found.minibatches(order, 8, fill=False))
        assert [len(piece) for piece in pieces] == [8, 8, 1]
        np.testing.assert_array_equal(np.concatenate(pieces), order)
    with samples(tmp_path, picture(5)) as found:
        assert [len(piece) for piece in found.minibatches(order, 8, fill=False)] == [5, 5, 5]
        assert [len(piece) for piece in found.minibatches(order, 8, fill=True)] == [5, 5, 5, 2]
        assert [len(piece) for piece in found.minibatches(order[:3], 8, fill=False)] == [3]

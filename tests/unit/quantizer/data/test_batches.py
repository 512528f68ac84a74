"""Batches: size rule, padding, whole inputs, limits, several inputs, early stop."""

from __future__ import annotations

import gc
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.errors import DatasetArraysError, DatasetMismatchError
from service.contracts.model import TensorInfo
from tests.support.patience import PATIENCE_SECONDS
from worker.quantizer.data import ArrayDataset, Dataset, choose_batch_size, open_dataset


def tensor(name: str, *shape: int | str | None, dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@given(samples=st.integers(1, 20), size=st.integers(1, 8), limit=st.none() | st.integers(1, 25))
def test_fixed_batches_are_padded_with_the_last_sample(samples: int, size: int, limit: int | None) -> None:
    data = floats(samples, 3)
    labels = np.arange(samples)
    dataset = ArrayDataset({"x": data}, labels)
    inputs = [tensor("x", size, 3)]
    assert choose_batch_size(inputs, dataset, 99) == size
    batches = list(dataset.batches(inputs, size, limit=limit))
    total = min(samples, limit or samples)
    assert sum(batch.valid for batch in batches) == total
    for batch in batches:
        values = batch.feeds["x"]
        assert values.shape == (size, 3)
        np.testing.assert_array_equal(values[: batch.valid], data[batch.start : batch.start + batch.valid])
        assert (values[batch.valid :] == values[batch.valid - 1]).all()
        assert batch.labels is not None
        np.testing.assert_array_equal(batch.labels, labels[batch.start : batch.start + batch.valid])


def test_a_dynamic_batch_is_short_at_the_end_and_not_padded() -> None:
    dataset = ArrayDataset({"x": floats(7, 3)})
    for shape in (("batch", 3), (None, 3), None):
        inputs = [TensorInfo(name="x", dtype="float32", shape=shape)]
        assert choose_batch_size(inputs, dataset, 4) == 4
    inputs = [tensor("x", "batch", 3)]
    shapes = [(batch.feeds["x"].shape, batch.valid, batch.labels) for batch in dataset.batches(inputs, 4)]
    assert shapes == [((4, 3), 4, None), ((3, 3), 3, None)]


def test_arrays_of_one_axis_more_hold_whole_inputs() -> None:
    """ "frame" and "state" hold whole inputs as well: [5, 1, 8] for [1, 8]; "x" is batched."""
    frames, states, rates = floats(5, 1, 8), floats(5, 2, 1, 4), np.array([8, 8, 16, 16, 8], np.int64)
    spec = PreprocessingSpec(inputs={"double": InputSpec(array="x", scale=2.0)})
    arrays = {"frame": frames, "state": states, "rate": rates, "x": floats(5, 3)}
    dataset = ArrayDataset(arrays, preprocessing=spec)
    inputs = [tensor("frame", 1, 8), tensor("state", 2, "n", 4), tensor("rate", dtype="int64"), tensor("x", "n", 3)]
    assert choose_batch_size(inputs, dataset, 16) == 1
    batches = list(dataset.batches([*inputs, tensor("double", "n", 3)], 1))
    assert len(batches) == 5
    for number, batch in enumerate(batches):
        np.testing.assert_array_equal(batch.feeds["frame"], frames[number])
        np.testing.assert_array_equal(batch.feeds["state"], states[number])
        assert (batch.feeds["rate"].shape, batch.feeds["rate"].dtype) == ((), np.int64)
        assert batch.feeds["rate"] == rates[number]
        np.testing.assert_array_equal(batch.feeds["x"] * 2, batch.feeds["double"])  # one array feeds two inputs


def test_contradicting_batch_sizes_are_refused() -> None:
    dataset = ArrayDataset({"x": floats(8, 3), "y": floats(8, 3), "steps": np.arange(8)})
    with pytest.raises(DatasetMismatchError, match=r"2 \(input 'x'\) and 4 \(input 'y'\)"):
        choose_batch_size([tensor("x", 2, 3), tensor("y", 4, 3)], dataset, 1)
    with pytest.raises(DatasetMismatchError, match=r"1 .*'steps'.* and 4 "):
        choose_batch_size([tensor("x", 4, 3), tensor("steps", dtype="int64")], dataset, 1)


def test_arrays_that_are_not_there_are_refused() -> None:
    dataset, inputs = ArrayDataset({"x": floats(5, 3)}), [tensor("x", "n", 3)]
    with pytest.raises(DatasetMismatchError, match=r"'y' has no array 'y'; the dataset holds 'x'"):
        dataset.batches([tensor("y", "n", 3)], 1)
    for name, says in ((None, "no labels"), ("boxes", "no array 'boxes'")):
        with pytest.raises(DatasetMismatchError, match=says):
            next(iter(dataset.batches(inputs, 4, arrays=(name,))))
    with pytest.raises(DatasetArraysError, match="is a scalar"):
        ArrayDataset({"x": floats(4, 3), "rate": np.array(16000)})


def reading() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith("read-ahead")]


def test_passes_may_cross_and_stopping_early_leaves_no_thread_and_no_open_file(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez_compressed(path, x=floats(40, 5))
    dataset, inputs = open_dataset(path, PreprocessingSpec()), [tensor("x", "n", 5)]
    batches = dataset.batches(inputs, 3)
    next(batches)
    inner = np.concatenate([batch.feeds["x"] for batch in dataset.batches(inputs, 7)])
    np.testing.assert_array_equal(inner, floats(40, 5))
    np.testing.assert_array_equal(next(batches).feeds["x"], floats(40, 5)[3:6])
    threads = reading()
    assert threads
    del batches
    for thread in threads:
        thread.join(PATIENCE_SECONDS)
    assert reading() == []
    open_files = [link.resolve() for link in Path("/proc/self/fd").iterdir() if link.exists()]
    assert path.resolve() not in open_files


def test_one_that_is_left_to_the_garbage_collector_waits_for_no_lock(tmp_path: Path) -> None:
    """The collector comes at any moment, also to a thread that just holds a lock of ``threading``."""
    np.savez(tmp_path / "x.npz", x=floats(100, 2))
    dataset = open_dataset(tmp_path / "x.npz", PreprocessingSpec())

    def leave() -> None:
        # a thread takes over from the one that starts it whether it is waited for at the end of all, by that lock
        threading.current_thread()._daemonic = False  # type: ignore[attr-defined]
        batches = dataset.batches([tensor("x", "n", 2)], 10)
        next(batches)
        assert reading()
        threading.current_thread()._daemonic = True  # type: ignore[attr-defined]
        cycle: list[Any] = [batches]
        cycle.append(cycle)

    def collect() -> None:
        leave()
        with threading._shutdown_locks_lock:  # type: ignore[attr-defined] # held while a thread starts
            gc.collect()
        ended.set()

    ended = threading.Event()
    thread = threading.Thread(target=collect, daemon=True)
    thread.start()
    assert ended.wait(PATIENCE_SECONDS), "it waits for itself"


def test_no_more_than_one_batch_is_read_ahead() -> None:
    array = ArrayDataset({"x": floats(100, 2)}).selection.arrays["x"]
    read: list[int] = []

    class Watched:
        name, dtype, shape, refusal = array.name, array.dtype, array.shape, None

        def open(self) -> Any:
            reader = array.open()
            return SimpleNamespace(read=lambda count: read.append(count) or reader.read(count), close=reader.close)

    watched = Dataset({"x": Watched()}, PreprocessingSpec())
    for done, _ in enumerate(watched.batches([tensor("x", "n", 2)], 10), start=1):
        assert len(read) <= done + 1
    assert sum(read) == 100


def test_arrays_in_memory_make_a_dataset_like_a_file(tmp_path: Path) -> None:
    arrays, labels = {"x": floats(6, 3)}, np.arange(6)
    np.savez(tmp_path / "x.npz", **arrays, labels=labels)
    memory, file = ArrayDataset(arrays, labels), open_dataset(tmp_path / "x.npz", PreprocessingSpec())
    hidden = {"sha256", "size_bytes"}
    assert memory.summary.model_dump(exclude=hidden) == file.summary.model_dump(exclude=hidden)
    assert memory.summary.sha256 == ArrayDataset(arrays, labels).summary.sha256
    assert memory.summary.sha256 != ArrayDataset({"x": floats(6, 3) + 1}, labels).summary.sha256
    assert memory.labels is not None
    assert memory.labels.dtype == np.int64


@pytest.mark.parametrize(("first", "limit", "batch"), [(0, None, 4), (3, None, "n"), (0, 5, "n"), (2, 7, 4)])
def test_arrays_asked_for_come_with_their_samples(first: int, limit: int | None, batch: int | str) -> None:
    x, boxes, labels = floats(10, 3), floats(10, 2, 4), floats(10, 5, 5).astype(np.uint8)
    dataset = ArrayDataset({"x": x, "boxes": boxes}, labels)
    inputs = [tensor("x", batch, 3)]
    seen = list(dataset.batches(inputs, 4, limit=limit, start=first, arrays=("boxes", None, "x")))
    for found in seen:
        part = slice(found.start, found.start + found.valid)
        np.testing.assert_array_equal(found.arrays["boxes"], boxes[part])
        np.testing.assert_array_equal(found.arrays[None], labels[part])
        np.testing.assert_array_equal(found.arrays["x"], x[part])  # as stored, and not filled up
        assert found.labels is None
        assert found.size == (4 if batch == 4 else found.valid)
        output = floats(found.size, 2)
        np.testing.assert_array_equal(found.cut(output), output[: found.valid])
        np.testing.assert_array_equal(found.cut(output.T, 1), output.T[:, : found.valid])
    assert sum(found.valid for found in seen) == (limit or 10) - first

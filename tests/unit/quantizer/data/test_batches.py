"""Batches: size rule, padding, whole inputs, limits, early stop; and of samples that are stored one by one."""

from __future__ import annotations

import gc
import json
import threading
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from service.contracts.dataset import ArraySummary, InputSpec, PreprocessingSpec
from service.contracts.errors import (
    DatasetArraysError,
    DatasetError,
    DatasetFormatError,
    DatasetLabelsError,
    DatasetMismatchError,
    NonFiniteDataError,
)
from service.contracts.model import TensorInfo
from tests.support.patience import PATIENCE_SECONDS
from worker.quantizer.data import ArrayDataset, OpenDataset, choose_batch_size, inspect_dataset, open_dataset


def tensor(name: str, *shape: int | str | None, dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def floats(*shape: int) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@given(samples=st.integers(1, 20), size=st.integers(1, 8), chosen=st.none() | st.sets(st.integers(0, 24), min_size=1))
def test_fixed_batches_are_padded_with_the_last_sample(samples: int, size: int, chosen: set[int] | None) -> None:
    data = floats(samples, 3)
    labels = np.arange(samples)
    dataset = ArrayDataset({"x": data}, labels)
    inputs = [tensor("x", size, 3)]
    assert choose_batch_size(inputs, dataset, 99) == size
    batches = list(dataset.batches(inputs, size, samples=None if chosen is None else sorted(chosen)))
    wanted = [number for number in range(samples) if chosen is None or number in chosen]
    assert [number for batch in batches for number in batch.numbers] == wanted
    for batch in batches:
        values = batch.feeds["x"]
        assert values.shape == (size, 3)
        np.testing.assert_array_equal(values[: batch.valid], data[batch.numbers])
        assert (values[batch.valid :] == values[batch.valid - 1]).all()
        assert batch.labels is not None
        np.testing.assert_array_equal(batch.labels, labels[batch.numbers])


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


def test_batch_sizes_that_contradict_and_arrays_that_are_not_there_are_refused() -> None:
    dataset = ArrayDataset({"x": floats(8, 3), "y": floats(8, 3), "steps": np.arange(8)})
    with pytest.raises(DatasetMismatchError, match=r"2 \(input 'x'\) and 4 \(input 'y'\)"):
        choose_batch_size([tensor("x", 2, 3), tensor("y", 4, 3)], dataset, 1)
    with pytest.raises(DatasetMismatchError, match=r"1 .*'steps'.* and 4 "):
        choose_batch_size([tensor("x", 4, 3), tensor("steps", dtype="int64")], dataset, 1)
    dataset, inputs = ArrayDataset({"x": floats(5, 3)}), [tensor("x", "n", 3)]
    with pytest.raises(DatasetMismatchError, match=r"'y' has no array 'y'; the dataset contains 'x'"):
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


@pytest.mark.slow
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

    watched = OpenDataset({"x": Watched()}, PreprocessingSpec())
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
    shapes = [((2, 3), (1, 3)), ((1, 3), (2, 3)), ((3, 3),)]
    made = [{f"x/{k:04d}": np.ones(shape, np.float32) for k, shape in enumerate(each)} for each in shapes]
    assert len({ArrayDataset(each).summary.sha256 for each in made}) == 3
    assert memory.labels is not None
    assert memory.labels.dtype == np.int64


@pytest.mark.parametrize(("first", "limit", "batch"), [(0, None, 4), (3, None, "n"), (0, 5, "n"), (2, 7, 4)])
def test_arrays_asked_for_come_with_their_samples(first: int, limit: int | None, batch: int | str) -> None:
    x, boxes, labels = floats(10, 3), floats(10, 2, 4), floats(10, 5, 5).astype(np.uint8)
    dataset = ArrayDataset({"x": x, "boxes": boxes}, labels)
    inputs = [tensor("x", batch, 3)]
    seen = list(dataset.batches(inputs, 4, samples=range(first, limit or 10), arrays=("boxes", None, "x")))
    for found in seen:
        part = list(found.numbers)
        np.testing.assert_array_equal(found.arrays["boxes"], boxes[part])
        np.testing.assert_array_equal(found.arrays[None], labels[part])
        np.testing.assert_array_equal(found.arrays["x"], x[part])  # as stored, and not filled up
        assert found.labels is None
        assert found.size == (4 if batch == 4 else found.valid)
        output = floats(found.size, 2)
        np.testing.assert_array_equal(found.cut(output), output[: found.valid])
        np.testing.assert_array_equal(found.cut(output.T, 1), output.T[:, : found.valid])
    assert sum(found.valid for found in seen) == (limit or 10) - first


PLAIN = PreprocessingSpec()
Samples = np.ndarray[Any, Any]


def samples(*lengths: int, width: int = 3, name: str = "x") -> dict[str, Samples]:
    """Samples [length, width], each filled with its own number."""
    return {f"{name}/{k:04d}": np.full((n, width), k, np.float32) for k, n in enumerate(lengths)}


def saved(folder: Path, arrays: Mapping[str, Samples], form: str = "npz") -> Path:
    path = folder / f"data.{form}"
    if form == "npz":
        np.savez_compressed(path, **arrays)
    else:
        save_file(dict(arrays), path)
    return path


@pytest.mark.parametrize("form", ["npz", "safetensors"])
def test_a_file_of_samples_is_one_array_whose_lengths_vary(tmp_path: Path, form: str) -> None:
    path = saved(tmp_path, {**samples(5, 2, 2, 9), "labels": np.array([3, 1, 0, 2])}, form)
    summary = inspect_dataset(path, PLAIN)
    assert summary.samples == 4
    assert summary.arrays == {"x": ArraySummary(dtype="float32", shape=(4, None, 3), shortest=(2, 3), longest=(9, 3))}
    assert summary.labels is not None
    assert (summary.labels.minimum, summary.labels.maximum) == (0, 3)
    batches = list(open_dataset(path, PLAIN).batches([tensor("x", "n", "length", 3)], 8))
    assert [(batch.numbers, batch.feeds["x"].shape) for batch in batches] == [
        ([0], (1, 5, 3)),
        ([1, 2], (2, 2, 3)),
        ([3], (1, 9, 3)),
    ]
    assert [batch.labels.tolist() for batch in batches if batch.labels is not None] == [[3], [1, 0], [2]]


@given(
    lengths=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    size=st.integers(1, 4),
    fixed=st.booleans(),
    chosen=st.sets(st.integers(0, 14)),
)
def test_batches_mix_no_shapes_and_keep_the_order(lengths: list[int], size: int, fixed: bool, chosen: set[int]) -> None:
    labels = np.arange(len(lengths))
    data = ArrayDataset(samples(*lengths), labels)
    inputs = [tensor("x", size if fixed else None, None, 3)]
    assert choose_batch_size(inputs, data, size) == size
    seen: list[int] = []
    for batch in data.batches(inputs, size, samples=sorted(chosen), arrays=(None,)):
        rows = batch.feeds["x"]
        assert len(rows) == batch.size == (size if fixed else batch.valid)
        numbers = rows[: batch.valid, 0, 0].astype(int).tolist()
        assert numbers == batch.numbers
        assert {lengths[number] for number in numbers} == {rows.shape[1]}
        assert (rows[batch.valid :] == rows[batch.valid - 1]).all()
        assert batch.labels is not None
        assert batch.labels.tolist() == batch.arrays[None].tolist() == numbers
        seen += numbers
    assert seen == sorted(number for number in chosen if number < len(lengths))


def test_a_batch_ends_where_any_array_changes_its_shape() -> None:
    arrays = {**samples(2, 2, 2, 2), **samples(4, 4, 5, 5, name="y", width=1)}
    boxes = {f"boxes/{k:04d}": np.ones((n, 4), np.float32) for k, n in enumerate((1, 1, 1, 0))}
    data = ArrayDataset({**arrays, **boxes})
    inputs = [tensor("x", None, None, 3), tensor("y", None, None, 1)]
    assert [batch.valid for batch in data.batches(inputs, 8)] == [2, 2]
    found = list(data.batches(inputs, 8, arrays=("boxes",)))
    assert [batch.arrays["boxes"].shape for batch in found] == [(2, 1, 4), (1, 1, 4), (1, 0, 4)]
    # samples with all axes of the input are whole inputs
    data = ArrayDataset({f"x/{k:04d}": np.full((1, n, 3), k, np.float32) for k, n in enumerate((5, 2, 2))})
    for first in (None, 1):
        inputs = [tensor("x", first, None, 3)]
        assert choose_batch_size(inputs, data, 16) == 1
        assert [batch.feeds["x"].shape for batch in data.batches(inputs, 1)] == [(1, 5, 3), (1, 2, 3), (1, 2, 3)]


def test_pictures_of_different_sizes_are_laid_out_and_normalized() -> None:
    pictures = [np.random.default_rng(k).integers(0, 256, (4 + k, 6 - k, 3)).astype(np.uint8) for k in range(3)]
    mean, std = (0.1, 0.2, 0.3), (0.4, 0.5, 0.6)
    for wanted, shape in (("NCHW", (None, 3, None, None)), ("NHWC", (None, None, None, 3))):
        spec = InputSpec(array="images", layout="NHWC", model_layout=wanted, scale=1 / 255, mean=mean, std=std)
        data = ArrayDataset(
            {f"images/{k:04d}": picture for k, picture in enumerate(pictures)},
            preprocessing=PreprocessingSpec(inputs={"x": spec}),
        )
        for picture, batch in zip(pictures, data.batches([tensor("x", *shape)], 4), strict=True):
            expected = ((picture.astype(np.float64) * (1 / 255) - mean) / std).astype(np.float32)
            expected = expected.transpose(2, 0, 1) if wanted == "NCHW" else expected
            np.testing.assert_array_equal(batch.feeds["x"][0], expected)


def test_the_largest_sample_and_the_inputs_that_vary() -> None:
    data = ArrayDataset({**samples(2, 7, 3), "mask": np.ones((3, 4), np.float32)})
    inputs = [tensor("x", None, None, 3), tensor("mask", None, 4)]
    assert (data.varying(inputs), data.largest(inputs), data.largest(inputs[1:])) == (["x"], 1, 0)


def test_labels_may_be_stored_one_by_one(tmp_path: Path) -> None:
    numbers = {f"labels/{k:04d}": np.int64(n) for k, n in enumerate((4, 0, 2))}
    summary = inspect_dataset(saved(tmp_path, {**samples(1, 2, 3), **numbers}), PLAIN)
    assert summary.labels is not None
    assert summary.labels.are_classes
    assert open_dataset(tmp_path / "data.npz", PLAIN).labels.tolist() == [4, 0, 2]  # type: ignore[union-attr]
    tags = {f"labels/{k:04d}": np.zeros(n, np.int64) for k, n in enumerate((1, 0, 1))}
    summary = inspect_dataset(saved(tmp_path, {**samples(1, 2, 3), **tags}), PLAIN)
    assert summary.labels is not None
    assert (summary.labels.are_classes, summary.labels.shape) == (False, (3, None))


def test_names_with_fewer_digits_are_names_of_plain_arrays(tmp_path: Path) -> None:
    summary = inspect_dataset(saved(tmp_path, {"x/0": np.ones((3, 2)), "x/001": np.ones((3, 4))}), PLAIN)
    assert set(summary.arrays) == {"x/0", "x/001"}
    # a number that is too long for Python's int() is none
    long = f"x/{'0' * 5000}"
    assert set(ArrayDataset({long: np.ones((3, 2))}).summary.arrays) == {long}


ROW = np.ones((2, 3), np.float32)
REFUSED = [
    ({"x/0000": ROW, "x/0002": ROW}, "'x' has no sample 'x/0001', although there is 'x/0002'"),
    ({"x/999999999": ROW}, "'x' has no sample 'x/0000', although there is 'x/999999999'"),
    ({**samples(2, 3), "x/00001": ROW}, "contains sample 1 twice: 'x/0001' and 'x/00001'"),
    ({**samples(2, 3), "labels/0001": np.int64(1)}, "'labels/0000'"),
    ({**samples(2, 3, 4), **samples(2, 3, name="y")}, "'y/0002' is missing"),
    ({**samples(2, 3), "labels": np.arange(3)}, "labels 'labels' have 3 values for 2 samples; 'x/0002' is missing"),
    ({**samples(2, 2), "x": np.ones((2, 2, 3), np.float32)}, "stored whole, and sample by sample ('x/0000'), too"),
    ({**samples(2, 2), "x/0002": np.ones((2, 3))}, "dtype: 'x/0000' is float32, 'x/0002' is float64"),
    ({**samples(2, 2), "x/0002": ROW[0]}, "number of axes: 'x/0000' has 2, 'x/0002' has 1"),
    ({**samples(2, 2), "x/0002": np.asfortranarray(ROW)}, "'x/0002', which is stored in Fortran order"),
    ({**samples(2, 2), "x/0002": np.array([[None]], object)}, "'x/0002', which contains pickled Python objects"),
    ({f"x/{k:04d}": np.ones((2, 2), np.complex64) for k in range(2)}, "has dtype complex64"),
    ({f"x/{k:04d}": np.ones((0, 3), np.float32) for k in range(2)}, "[0, 3], without a single element"),
    ({**samples(2, 2, 3), "x/0003": np.full((2, 3), np.nan, np.float32)}, "contains nan in sample 3"),
]


@pytest.mark.parametrize(("arrays", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_makes_no_array_is_refused_by_name(tmp_path: Path, arrays: dict[str, Samples], says: str) -> None:
    with pytest.raises(DatasetError) as caught:
        inspect_dataset(saved(tmp_path, arrays), PLAIN)
    assert says in caught.value.detail
    assert caught.value.hint
    assert isinstance(caught.value, DatasetLabelsError) == ("labels" in says)
    assert isinstance(caught.value, NonFiniteDataError) == ("nan" in says)
    assert "lacks" not in says or caught.value.errors[0].pointer == "/arrays/x"


def test_an_empty_sample_with_endless_axes_is_refused(tmp_path: Path) -> None:
    tensors = {"x/0000": ([1, 2], [0, 8]), "x/0001": ([0, 1 << 61], [8, 8])}
    header = {k: {"dtype": "F32", "shape": shape, "data_offsets": at} for k, (shape, at) in tensors.items()}
    raw = json.dumps(header).encode()
    path = tmp_path / "data.safetensors"
    path.write_bytes(len(raw).to_bytes(8, "little") + raw + bytes(8))
    with pytest.raises(DatasetArraysError, match="has samples of 9223372036854775808 bytes"):
        inspect_dataset(path, PLAIN)


def test_an_array_that_nobody_named_is_left_out_if_its_samples_do_not_fit(tmp_path: Path) -> None:
    spec = PreprocessingSpec(inputs={"input": InputSpec(array="x")})
    arrays = {**samples(2, 3), "y/0001": np.ones(2), **samples(1, 1, 1, name="z")}
    assert set(inspect_dataset(saved(tmp_path, arrays), spec).arrays) == {"x"}


def test_damaged_bytes_of_a_sample_are_found(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    np.savez(path, **samples(2, 40))
    raw = bytearray(path.read_bytes())
    at = raw.index(np.full(9, 1, np.float32).tobytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    with pytest.raises(DatasetFormatError, match=r"x/0001.*checksum"):
        inspect_dataset(path, PLAIN)


def test_reading_across_shapes_is_refused_not_garbled() -> None:
    source = ArrayDataset(samples(2, 2, 3)).stored("x")
    assert source is not None
    reader = source.open()
    with pytest.raises(DatasetArraysError, match=r"\[2, 3\] in 0 and \[3, 3\] in 2"):
        reader.read(3)
    assert reader.read(2).shape == (2, 2, 3)
    assert reader.read(5).shape == (1, 3, 3)
    assert len(reader.read(5)) == 0
    # values per channel need one number of channels
    grey_and_rgb = {"x/0000": np.ones((4, 4, 1), np.uint8), "x/0001": np.ones((4, 4, 3), np.uint8)}
    spec = PreprocessingSpec(inputs={"x": InputSpec(layout="NHWC", mean=(0.1, 0.2, 0.3))})
    with pytest.raises(DatasetMismatchError, match="varying number of channels"):
        next(iter(ArrayDataset(grey_and_rgb, preprocessing=spec).batches([tensor("x", *[None] * 4)], 1)))

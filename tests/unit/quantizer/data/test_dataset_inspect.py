"""What validation says of datasets: facts of good ones; code, place and next step of bad ones."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.contracts.dataset import ArraySummary, InputSpec, LabelSummary, PreprocessingSpec
from service.contracts.errors import DatasetArraysError, DatasetError, NonFiniteDataError
from tests.support.each import each
from worker.quantizer.data import ArrayDataset, inspect_dataset, open_dataset
from worker.quantizer.data.summary import Profiler

PLAIN = PreprocessingSpec()


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def mapped(labels: str | None = None, **arrays: str) -> PreprocessingSpec:
    return PreprocessingSpec(inputs={name: InputSpec(array=array) for name, array in arrays.items()}, labels=labels)


def test_the_summary_of_a_good_dataset(tmp_path: Path) -> None:
    arrays = {
        "extra": np.full((6, 2), np.finfo(np.float16).max),
        "images": np.zeros((6, 8, 8, 3), np.uint8),
        "large": np.full((6, 2), np.finfo(np.float32).max).astype(">f4"),
    }
    path = saved(tmp_path, **arrays, labels=np.array([[3], [1], [0], [9], [2], [2]]), classes=np.array(["cat", "dog"]))
    summary = inspect_dataset(path, PLAIN)
    assert summary.format == "npz"
    assert summary.samples == 6
    assert summary.arrays == {
        "extra": ArraySummary(dtype="float16", shape=(6, 2)),
        "images": ArraySummary(dtype="uint8", shape=(6, 8, 8, 3)),
        "large": ArraySummary(dtype="float32", shape=(6, 2)),
    }
    assert summary.labels == LabelSummary(array="labels", count=6, minimum=0, maximum=9, dtype="int64", shape=(6, 1))
    assert summary.size_bytes == path.stat().st_size
    assert summary.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    labels = open_dataset(path, PLAIN).labels
    assert labels is not None
    assert labels.tolist() == [3, 1, 0, 9, 2, 2]
    assert labels.dtype == np.int64


@pytest.mark.parametrize(
    ("dtype", "value", "word"), [("float16", np.inf, "inf"), ("float32", np.nan, "nan"), ("float64", -np.inf, "-inf")]
)
def test_non_finite_values_are_found_and_located(tmp_path: Path, dtype: str, value: float, word: str) -> None:
    values = np.ones((3000, 700), dtype)  # several blocks; -Inf beside nothing above 0 is a mask
    values[2345, 17] = value
    values[2346, 0] = np.nan
    with pytest.raises(NonFiniteDataError, match=f"array 'x' contains {word} in sample 2345") as caught:
        inspect_dataset(saved(tmp_path, x=values), PLAIN)
    assert caught.value.where == {"array": "x", "sample": 2345}


def test_mapping_arrays_leaves_other_splits_out(tmp_path: Path) -> None:
    path = saved(
        tmp_path,
        train=np.zeros((9, 2), np.float32),
        train_labels=np.zeros(9, np.int64),
        test=np.ones((4, 2), np.float32),
        test_labels=np.array([0, 1, 2, 1]),
        classes=np.array(["cat", "dog", "emu"]),
        rate=np.array(16000),
        pickled=np.array([None, {}], object),
        complex=np.zeros((4, 2), np.complex64),
    )
    summary = inspect_dataset(path, mapped(labels="test_labels", image="test"))
    assert (summary.samples, list(summary.arrays)) == (4, ["test"])
    assert summary.labels == LabelSummary(array="test_labels", count=4, minimum=0, maximum=2, dtype="int64", shape=(4,))
    path = saved(tmp_path, x=np.zeros((4, 2)), y=np.zeros((9, 2)), marks=np.arange(4))
    summary = inspect_dataset(path, PreprocessingSpec(labels="marks"))  # picks the arrays that belong to them
    assert (summary.samples, list(summary.arrays)) == (4, ["x"])
    summary = inspect_dataset(saved(tmp_path, labels=np.zeros((4, 2), np.float32)), mapped(x="labels"))
    assert (summary.labels, list(summary.arrays)) == (None, ["labels"])


@pytest.mark.parametrize(
    ("labels", "name"),
    [
        (np.array([0.5, -1.5, 2.0, 0.0], np.float32), "targets"),
        (np.full((4, 3, 3), 255, np.uint8), "labels"),
        (np.zeros((4, 5, 4), np.float64), "boxes"),
    ],
)
def test_labels_may_be_other_than_class_numbers(tmp_path: Path, labels: np.ndarray, name: str) -> None:
    path = saved(tmp_path, x=np.zeros((4, 2), np.float32), **{name: labels})
    dataset = open_dataset(path, PreprocessingSpec(labels=None if name == "labels" else name))
    assert dataset.labels is None
    summary = dataset.summary
    assert summary.labels is not None and not summary.has_classes
    assert (summary.labels.dtype, summary.labels.shape) == (labels.dtype.name, labels.shape)
    assert summary.array(None) == summary.array(name) == summary.labels.stored
    stored = dataset.stored(None)
    assert stored is not None
    np.testing.assert_array_equal(stored.open().read(4), labels)
    path.unlink()
    assert dataset.summary is summary  # it is computed once


@pytest.mark.parametrize(
    ("labels", "lowest", "highest", "without"), [([-1, 3, 2, -1], 2, 3, 2), ([-1, -1, -1, -1], None, None, 4)]
)
def test_minus_one_is_no_label(
    tmp_path: Path, labels: list[int], lowest: int | None, highest: int | None, without: int
) -> None:
    dataset = open_dataset(saved(tmp_path, x=np.zeros((4, 2)), labels=np.array(labels)), PLAIN)
    assert (None if dataset.labels is None else dataset.labels.tolist()) == (labels if highest else None)
    found = dataset.summarized(Profiler(4096)).labels
    assert found is not None
    assert (found.minimum, found.maximum, found.unlabelled, found.count) == (lowest, highest, without, 4)


def tensors(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.safetensors"
    save_file(arrays, path, metadata={"made": "here"})
    return path


@pytest.mark.parametrize("dtype", ["bool", "u1", "i2", "u4", "i8", "f2", "f4", "f8", ml_dtypes.bfloat16])
def test_safetensors_arrays_are_read_like_the_library_does(tmp_path: Path, dtype: Any) -> None:
    array = (np.random.default_rng(0).random((7, 3, 2)) * 100).astype(dtype)
    path = tensors(tmp_path, x=array, labels=np.arange(7))
    dataset = open_dataset(path, PLAIN)
    assert dataset.summary.format == "safetensors"
    assert dataset.summary.arrays == {"x": ArraySummary(dtype=array.dtype.name, shape=(7, 3, 2))}
    reader = dataset.selection.arrays["x"].open()
    got = np.concatenate([reader.read(3), reader.read(3), reader.read(3)])
    reader.close()
    np.testing.assert_array_equal(got.astype(np.float64), array.astype(np.float64))


def test_truncated_safetensors(tmp_path: Path) -> None:
    path = tensors(tmp_path, a=np.ones(50, np.float32), x=np.ones((50, 20), np.float32))
    data = path.read_bytes()
    for keep in (0, 5, 8, 60, len(data) // 2, len(data) - 9):
        path.write_bytes(data[:keep])
        assert fault(path).code == "dataset-format"
    assert fault(path).errors[0].pointer == "/arrays/x"
    path.write_bytes(b"")
    assert fault(path).errors == ()  # its place is left to who took it in
    with pytest.raises(DatasetArraysError, match="F8_E4M3"):
        inspect_dataset(tensors(tmp_path, x=np.zeros((4, 2), ml_dtypes.float8_e4m3fn)), PLAIN)


ENTRY = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
LIES = [
    *({"data_offsets": at} for at in ([0, 15], [0, 1600], [-16, 0])),
    *({"shape": shape} for shape in ([-2, -2], [2.0, 2], [True, 4], 2)), {"dtype": ["F32"]},
]  # fmt: skip


@pytest.mark.parametrize(
    "header",
    [
        *(json.dumps({"x": {**ENTRY, **lie}}) for lie in LIES),
        json.dumps({"x": {"shape": [2, 2], "data_offsets": [0, 16]}}),
        '{"x":[1]}',
        '{"x":' + "[" * 3000,
        f'{{"x":{json.dumps(ENTRY)},"x":{json.dumps(ENTRY)}}}',
    ],
)
def test_lying_safetensors_headers(tmp_path: Path, header: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"\0" * 16)
    assert fault(path).code == "dataset-format"


GOOD = np.ones((4, 2), np.float32)
NAN = np.array([[1.0], [np.nan], [1.0], [1.0]], np.float32)


def fault(path: Path, spec: PreprocessingSpec = PLAIN) -> DatasetError:
    with pytest.raises(DatasetError) as caught:
        inspect_dataset(path, spec)
    return caught.value


MISSING = "which the dataset does not contain; .*'labels' int64\\[4\\], 'x' float32\\[4, 2\\]"
FAULTS = [
    # values
    ({"x": NAN}, PLAIN, "/arrays/x", "non-finite-data", "nan in sample 1"),
    ({"a/b~c": NAN}, PLAIN, "/arrays/a~1b~0c", "non-finite-data", "nan in sample 1"),
    ({"x": GOOD, "labels": NAN[:, 0]}, PLAIN, "/arrays/labels", "non-finite-data", "nan in sample 1"),
    # lengths
    ({"x": GOOD[:0]}, PLAIN, "/arrays/x", "dataset-empty", "'x' contains zero samples"),
    ({}, PLAIN, "/arrays", "dataset-empty", "no numeric array"),
    ({"labels": np.arange(4)}, PLAIN, "/arrays", "dataset-empty", "no numeric array.*'labels'"),
    ({"x": np.zeros((3, 0), np.float32)}, PLAIN, "/arrays/x", "dataset-arrays", "without a single element"),
    ({"x": GOOD, "y": GOOD, "z": GOOD[:3]}, PLAIN, "/arrays/z", "dataset-arrays", "'x' has 4, 'z' has 3"),
    ({"x": GOOD, "y": GOOD[:3]}, mapped(a="x", b="y"), "/arrays/y", "dataset-arrays", "differ"),
    ({"x": GOOD, "t": np.zeros(3, np.int64)}, PreprocessingSpec(labels="t"), "/labels", "dataset-labels", "3"),
    ({"x": GOOD, "labels": np.arange(9)}, mapped(a="x"), "/labels", "dataset-labels", "have 9 values for 4 samples"),
    # types that are refused unless a mapping leaves them out
    *(
        ({"x": GOOD, "odd": values}, spec, "/arrays/odd", "dataset-arrays", "'odd'")
        for values in (
            np.array(1.0),
            np.array([None] * 4, object),
            np.zeros((4, 2), np.complex64),
            np.zeros(4, [("a", "f4"), ("b", "i4")]),
            np.zeros((4, 2), np.longdouble),
            np.zeros((4, 2), ml_dtypes.bfloat16),  # numpy stores it as raw bytes
        )
        for spec in (PLAIN, mapped(a="odd"))
    ),
    ({"x": np.ones((3, 3), np.float32).T.copy(order="F")}, PLAIN, "/arrays/x", "dataset-arrays", "Fortran"),
    # labels
    ({"x": GOOD, "labels": np.array(["a", "b", "c", "d"])}, PLAIN, "/labels", "dataset-labels", "<U1, not numbers"),
    ({"x": GOOD, "labels": np.array(1.5)}, PLAIN, "/labels", "dataset-labels", "a scalar"),
    ({"x": GOOD, "labels": np.array([None] * 4, object)}, PLAIN, "/labels", "dataset-labels", "pickled Python objects"),
    ({"x": GOOD, "labels": np.zeros((4, 0), np.int64)}, PLAIN, "/labels", "dataset-labels", "without a single element"),
    ({"x": GOOD, "labels": np.array([0, -1, -2, 0])}, PLAIN, "/labels", "dataset-labels", "-2 at sample 2"),
    ({"x": GOOD, "labels": np.array([0, 1, 2, 2**64 - 1], np.uint64)}, PLAIN, "/labels", "dataset-labels", "sample 3"),
    # what the preprocessing names
    (
        {"x": GOOD},
        PreprocessingSpec(labels="t"),
        "/preprocessing/labels",
        "dataset-labels",
        "'t', which the dataset does not contain",
    ),
    (
        {"x": GOOD, "labels": np.arange(4)},
        mapped(**{"in/put": "y"}),
        "/preprocessing/inputs/in~1put/array",
        "dataset-arrays",
        MISSING,
    ),
    (
        {"x": GOOD},
        PreprocessingSpec(inputs={"image": InputSpec(layout="NHW")}),
        "/preprocessing/inputs/image",
        "dataset-arrays",
        "'image'",
    ),
]


@pytest.mark.parametrize(("arrays", "spec", "pointer", "code", "says"), FAULTS)
def test_the_place_of_a_fault(
    tmp_path: Path, arrays: dict[str, Any], spec: PreprocessingSpec, pointer: str, code: str, says: str
) -> None:
    path = tmp_path / "x.npz"
    if any("/" in name for name in arrays):
        path = tmp_path / "x.safetensors"
        save_file(arrays, path)
    else:
        np.savez(path, **arrays)
    error = fault(path, spec)
    assert error.code == code
    assert re.search(says, error.detail)
    assert error.hint or pointer.startswith("/preprocessing")
    assert [(found.pointer, found.code, found.message) for found in error.errors] == [(pointer, code, error.detail)]


@each(
    ("labels", "numbers"),
    [
        (np.eye(4, dtype=np.float32)[[2, 0, 3]], [2, 0, 3]),
        (np.eye(4, dtype=np.uint8)[[1, 1, 1]], [1, 1, 1]),
        (np.eye(4, dtype=bool)[[0, 3, 2]], [0, 3, 2]),
        (np.array([[1, 0], [1, 1], [0, 1]]), None),
        (np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]]), None),
        (np.zeros((3, 4), np.float32), None),
    ],
)
def test_one_hot_labels_are_class_numbers_and_said_to_be_so(labels: np.ndarray, numbers: list[int] | None) -> None:
    data = ArrayDataset({"x": np.zeros((3, 2), np.float32)}, labels)
    assert (None if data.labels is None else data.labels.tolist()) == numbers
    found = data.summary
    assert found.has_classes == (numbers is not None)
    assert found.labels is not None and found.labels.is_one_hot == (numbers is not None)
    assert any("one-hot" in note for note in found.notes) == (numbers is not None)


def test_missing_labels_are_said_at_once() -> None:
    (note,) = ArrayDataset({"x": np.zeros((3, 2), np.float32)}).summary.notes
    assert note == "No labels: accuracy is not measured; agreement with the float model is."
    assert ArrayDataset({"x": np.zeros((3, 2), np.float32)}, np.array([0, 1, 2])).summary.notes == ()

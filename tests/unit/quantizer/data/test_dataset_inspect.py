"""What validation says of datasets: facts of good ones, and code, array, sample and next step of bad ones."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.contracts.dataset import ArraySummary, InputSpec, LabelSummary, PreprocessingSpec
from service.contracts.errors import (
    DatasetArraysError,
    DatasetError,
    DatasetLabelsError,
    EmptyDatasetError,
    NonFiniteDataError,
)
from worker.quantizer.data import inspect_dataset, open_dataset

PLAIN = PreprocessingSpec()


def saved(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def mapped(labels: str | None = None, **arrays: str) -> PreprocessingSpec:
    return PreprocessingSpec(inputs={name: InputSpec(array=array) for name, array in arrays.items()}, labels=labels)


def test_the_summary_of_a_good_dataset(tmp_path: Path) -> None:
    images = np.zeros((6, 8, 8, 3), np.uint8)
    path = saved(
        tmp_path, images=images, extra=np.ones((6, 2), np.float16), labels=np.array([[3], [1], [0], [9], [2], [2]])
    )
    summary = inspect_dataset(path, PLAIN)
    assert summary.format == "npz"
    assert summary.samples == 6
    assert summary.arrays == {
        "extra": ArraySummary(dtype="float16", shape=(6, 2)),
        "images": ArraySummary(dtype="uint8", shape=(6, 8, 8, 3)),
    }
    assert summary.labels == LabelSummary(array="labels", count=6, minimum=0, maximum=9, dtype="int64", shape=(6, 1))
    assert summary.size_bytes == path.stat().st_size
    assert summary.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    labels = open_dataset(path, PLAIN).labels
    assert labels is not None
    assert labels.tolist() == [3, 1, 0, 9, 2, 2]
    assert labels.dtype == np.int64


def test_big_endian_arrays_are_described_in_native_words(tmp_path: Path) -> None:
    summary = inspect_dataset(saved(tmp_path, x=np.ones((3, 2), ">f4")), PLAIN)
    assert summary.arrays["x"].dtype == "float32"


def test_the_summary_is_computed_once(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.ones((3, 2), np.float32))
    dataset = open_dataset(path, PLAIN)
    first = dataset.summary
    path.unlink()
    assert dataset.summary is first


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(("value", "word"), [(np.nan, "nan"), (np.inf, "inf"), (-np.inf, "-inf")])
def test_non_finite_values_are_found_and_located(tmp_path: Path, dtype: str, value: float, word: str) -> None:
    values = np.zeros((3000, 700), dtype)  # several blocks
    values[2345, 17] = value
    values[2346, 0] = np.nan
    with pytest.raises(NonFiniteDataError, match=f"array 'x' holds {word} in sample 2345") as caught:
        inspect_dataset(saved(tmp_path, x=values), PLAIN)
    assert caught.value.where == {"array": "x", "sample": 2345}


def test_large_finite_values_are_fine(tmp_path: Path) -> None:
    arrays = {name: np.full((4, 4), np.finfo(name).max) for name in ("float16", "float32", "float64")}
    assert inspect_dataset(saved(tmp_path, **arrays), PLAIN).samples == 4


def test_zero_samples(tmp_path: Path) -> None:
    with pytest.raises(EmptyDatasetError, match="'x' holds zero samples"):
        inspect_dataset(saved(tmp_path, x=np.zeros((0, 3), np.float32)), PLAIN)


def test_no_arrays(tmp_path: Path) -> None:
    with pytest.raises(EmptyDatasetError, match="no numeric array"):
        inspect_dataset(saved(tmp_path), PLAIN)


def test_labels_alone(tmp_path: Path) -> None:
    with pytest.raises(EmptyDatasetError, match=r"no numeric array.*'labels'"):
        inspect_dataset(saved(tmp_path, labels=np.arange(4)), PLAIN)


def test_samples_without_elements(tmp_path: Path) -> None:
    with pytest.raises(DatasetArraysError, match="without a single element"):
        inspect_dataset(saved(tmp_path, x=np.zeros((3, 0), np.float32)), PLAIN)


def test_arrays_of_unequal_length_name_the_odd_one(tmp_path: Path) -> None:
    path = saved(tmp_path, a=np.zeros((5, 2)), b=np.zeros((4, 2)), c=np.zeros((5, 2)))
    with pytest.raises(DatasetArraysError, match="'a' holds 5, 'b' holds 4") as caught:
        inspect_dataset(path, PLAIN)
    assert caught.value.where == {"array": "b"}


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
    )
    summary = inspect_dataset(path, mapped(labels="test_labels", image="test"))
    assert summary.samples == 4
    assert list(summary.arrays) == ["test"]
    assert summary.labels == LabelSummary(array="test_labels", count=4, minimum=0, maximum=2, dtype="int64", shape=(4,))


def test_naming_only_the_labels_picks_the_arrays_that_belong_to_them(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((4, 2)), y=np.zeros((9, 2)), marks=np.arange(4))
    summary = inspect_dataset(path, PreprocessingSpec(labels="marks"))
    assert (summary.samples, list(summary.arrays)) == (4, ["x"])


def test_default_labels_of_the_wrong_length_are_never_dropped_in_silence(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((4, 2)), labels=np.arange(9))
    with pytest.raises(DatasetLabelsError, match="hold 9 values for 4 samples"):
        inspect_dataset(path, mapped(image="x"))


def test_two_mapped_arrays_of_unequal_length(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((4, 2)), y=np.zeros((9, 2)))
    with pytest.raises(DatasetArraysError, match="differ"):
        inspect_dataset(path, mapped(a="x", b="y"))


def test_a_mapped_array_that_is_not_there_lists_what_is(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((4, 2), np.float32), labels=np.arange(4))
    with pytest.raises(
        DatasetArraysError, match=r"'y', which is not there; .*'labels' int64\[4\], 'x' float32\[4, 2\]"
    ) as e:
        inspect_dataset(path, mapped(**{"in/put": "y"}))
    assert e.value.errors[0].pointer == "/preprocessing/inputs/in~1put/array"


def test_an_input_named_without_an_array_has_to_be_there(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((4, 2), np.float32))
    with pytest.raises(DatasetArraysError) as caught:
        inspect_dataset(path, PreprocessingSpec(inputs={"image": InputSpec(layout="NHW")}))
    assert caught.value.errors[0].pointer == "/preprocessing/inputs/image"


@pytest.mark.parametrize(
    ("labels", "says"),
    [
        (np.array(["a", "b", "c", "d"]), "<U1, not numbers"),
        (np.array(1.5), "a scalar"),
        (np.array([None] * 4, object), "label array 'labels' holds pickled Python objects"),
        (np.zeros((4, 0), np.int64), "without a single element"),
        (np.zeros((3, 10), np.float32), "3 values for 4 samples"),
        (np.arange(3), "3 values for 4 samples"),
        (np.array([0, 1, -1, 2]), "-1 at sample 2"),
        (np.array([0, 1, 2, 2**64 - 1], np.uint64), "at sample 3"),
    ],
)
def test_bad_labels(tmp_path: Path, labels: Any, says: str) -> None:
    path = saved(tmp_path, x=np.zeros((4, 2), np.float32), labels=labels)
    with pytest.raises(DatasetLabelsError, match=says) as caught:
        inspect_dataset(path, PLAIN)
    assert caught.value.hint
    assert caught.value.where["array"] == "labels"


@pytest.mark.parametrize(
    "labels",
    [np.array([0.5, -1.5, 2.0, 0.0], np.float32), np.full((4, 3, 3), 255, np.uint8), np.zeros((4, 5, 4), np.float64)],
    ids=["targets", "maps", "boxes"],
)
@pytest.mark.parametrize("named", [True, False])
def test_labels_may_be_other_than_class_numbers(tmp_path: Path, labels: np.ndarray, named: bool) -> None:
    name = "truth" if named else "labels"
    path = saved(tmp_path, x=np.zeros((4, 2), np.float32), **{name: labels})
    dataset = open_dataset(path, PreprocessingSpec(labels="truth" if named else None))
    assert dataset.labels is None
    summary = dataset.summary
    assert summary.labels is not None
    assert not summary.has_classes
    assert (summary.labels.dtype, summary.labels.shape) == (labels.dtype.name, labels.shape)
    assert summary.array(None) == summary.array(name) == summary.labels.stored
    stored = dataset.stored(None)
    assert stored is not None
    np.testing.assert_array_equal(stored.open().read(4), labels)


def test_other_labels_must_be_finite(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((4, 2), np.float32), labels=np.array([0.0, np.nan, 1.0, 2.0]))
    with pytest.raises(NonFiniteDataError, match="nan in sample 1"):
        inspect_dataset(path, PLAIN)


def test_named_labels_that_are_not_there(tmp_path: Path) -> None:
    with pytest.raises(DatasetLabelsError, match="'marks', which are not there") as caught:
        inspect_dataset(saved(tmp_path, x=np.zeros((4, 2))), PreprocessingSpec(labels="marks"))
    assert caught.value.errors[0].pointer == "/preprocessing/labels"


def test_an_array_named_labels_may_feed_an_input(tmp_path: Path) -> None:
    path = saved(tmp_path, labels=np.zeros((4, 2), np.float32))
    summary = inspect_dataset(path, mapped(x="labels"))
    assert (summary.labels, list(summary.arrays)) == (None, ["labels"])


@pytest.mark.parametrize(
    "values",
    [
        np.zeros((4, 2), np.complex64),
        np.zeros(4, [("a", "f4"), ("b", "i4")]),
        np.zeros((4, 2), np.longdouble),
        np.zeros((4, 2), ml_dtypes.bfloat16),  # numpy stores it as raw bytes
        np.array([None] * 4, object),
        np.array(5.0),
    ],
)
def test_unsupported_types_are_refused_unless_left_out_by_a_mapping(tmp_path: Path, values: Any) -> None:
    path = saved(tmp_path, x=np.zeros((4, 2), np.float32), odd=values)
    with pytest.raises(DatasetArraysError, match="'odd'") as caught:
        inspect_dataset(path, PLAIN)
    assert caught.value.code == "dataset-arrays"
    assert list(inspect_dataset(path, mapped(image="x")).arrays) == ["x"]
    with pytest.raises(DatasetArraysError, match="'odd'"):
        inspect_dataset(path, mapped(image="odd"))


def test_text_beside_the_data_is_left_out(tmp_path: Path) -> None:
    path = saved(tmp_path, x=np.zeros((4, 2), np.float32), classes=np.array(["cat", "dog"]))
    assert list(inspect_dataset(path, PLAIN).arrays) == ["x"]


# --- .safetensors ----------------------------------------------------------------------------------------------------


def tensors(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.safetensors"
    save_file(arrays, path, metadata={"made": "here"})
    return path


@pytest.mark.parametrize(
    "dtype", ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8", ml_dtypes.bfloat16]
)
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


def test_safetensors_types_without_a_numpy_word_are_refused_by_name(tmp_path: Path) -> None:
    path = tensors(tmp_path, x=np.zeros((4, 2), ml_dtypes.float8_e4m3fn))
    with pytest.raises(DatasetArraysError, match="F8_E4M3"):
        inspect_dataset(path, PLAIN)


def test_safetensors_bfloat16_nan_is_found(tmp_path: Path) -> None:
    values = np.zeros((4, 2), ml_dtypes.bfloat16)
    values[3, 1] = np.nan
    with pytest.raises(NonFiniteDataError, match="sample 3"):
        inspect_dataset(tensors(tmp_path, x=values), PLAIN)


@pytest.mark.parametrize("keep", [0, 5, 8, 9, 60, 0.5, 0.99])
def test_truncated_safetensors(tmp_path: Path, keep: float) -> None:
    path = tensors(tmp_path, x=np.ones((50, 20), np.float32))
    data = path.read_bytes()
    path.write_bytes(data[: int(keep * len(data)) if isinstance(keep, float) else keep])
    with pytest.raises(DatasetError) as caught:
        inspect_dataset(path, PLAIN)
    assert caught.value.code == "dataset-format"


@pytest.mark.parametrize(
    "header",
    [
        '{"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,15]}}',
        '{"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,1600]}}',
        '{"x":{"dtype":"F32","shape":[-2,-2],"data_offsets":[0,16]}}',
        '{"x":{"dtype":"F32","shape":[2.0,2],"data_offsets":[0,16]}}',
        '{"x":{"dtype":"F32","shape":[true,4],"data_offsets":[0,16]}}',
        '{"x":{"dtype":"F32","shape":[2,2],"data_offsets":[-16,0]}}',
        '{"x":{"dtype":"F32","shape":2,"data_offsets":[0,16]}}',
        '{"x":{"dtype":["F32"],"shape":[2,2],"data_offsets":[0,16]}}',
        '{"x":{"shape":[2,2],"data_offsets":[0,16]}}',
        '{"x":[1]}',
        '{"x":' + "[" * 3000,
        '{"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]},"x":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}}',
    ],
)
def test_lying_safetensors_headers(tmp_path: Path, header: str) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(len(header).to_bytes(8, "little") + header.encode() + b"\0" * 16)
    with pytest.raises(DatasetError) as caught:
        inspect_dataset(path, PLAIN)
    assert caught.value.code == "dataset-format"


def test_a_safetensors_header_too_large_to_parse(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    with path.open("wb") as file:
        file.write((64 << 20).to_bytes(8, "little") + b"{")
        file.truncate(80 << 20)
    with pytest.raises(DatasetError, match="header takes 67108864 bytes"):
        inspect_dataset(path, PLAIN)

"""Samples that are stored one by one: their numbering, shapes, batches, labels and summary, and what is refused."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
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
from worker.quantizer.data import ArrayDataset, choose_batch_size, inspect_dataset, open_dataset

PLAIN = PreprocessingSpec()
Array = np.ndarray[Any, Any]


def tensor(name: str, *shape: int | str | None, dtype: str = "float32") -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def samples(*lengths: int, width: int = 3, name: str = "x") -> dict[str, Array]:
    """Samples [length, width], each filled with its own number."""
    return {f"{name}/{k:04d}": np.full((n, width), k, np.float32) for k, n in enumerate(lengths)}


def saved(folder: Path, arrays: Mapping[str, Array], form: str = "npz") -> Path:
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
    assert summary.arrays == {
        "x": ArraySummary(dtype="float32", shape=(4, None, 3), shortest=(2, 3), longest=(9, 3)),
    }
    assert summary.labels is not None
    assert (summary.labels.minimum, summary.labels.maximum) == (0, 3)
    batches = list(open_dataset(path, PLAIN).batches([tensor("x", "n", "length", 3)], 8))
    assert [(batch.start, batch.valid, batch.feeds["x"].shape) for batch in batches] == [
        (0, 1, (1, 5, 3)),
        (1, 2, (2, 2, 3)),
        (3, 1, (1, 9, 3)),
    ]
    assert [batch.labels.tolist() for batch in batches if batch.labels is not None] == [[3], [1, 0], [2]]


@given(
    lengths=st.lists(st.integers(1, 3), min_size=1, max_size=12),
    size=st.integers(1, 4),
    fixed=st.booleans(),
    start=st.integers(0, 12),
    limit=st.none() | st.integers(0, 14),
)
def test_batches_mix_no_shapes_and_keep_the_order(
    lengths: list[int], size: int, fixed: bool, start: int, limit: int | None
) -> None:
    labels = np.arange(len(lengths))
    data = ArrayDataset(samples(*lengths), labels)
    inputs = [tensor("x", size if fixed else None, None, 3)]
    assert choose_batch_size(inputs, data, size) == size
    seen: list[int] = []
    for batch in data.batches(inputs, size, start=start, limit=limit, arrays=(None,)):
        rows = batch.feeds["x"]
        assert len(rows) == batch.size == (size if fixed else batch.valid)
        numbers = rows[: batch.valid, 0, 0].astype(int).tolist()
        assert numbers == list(range(batch.start, batch.start + batch.valid))
        assert {lengths[number] for number in numbers} == {rows.shape[1]}
        assert (rows[batch.valid :] == rows[batch.valid - 1]).all()
        assert batch.labels is not None
        assert batch.labels.tolist() == batch.arrays[None].tolist() == numbers
        seen += numbers
    assert seen == list(range(start, len(lengths) if limit is None else min(limit, len(lengths))))


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


def test_the_identity_in_memory_tells_shapes_apart() -> None:
    def sha256(*shapes: tuple[int, ...]) -> str:
        return ArrayDataset({f"x/{k:04d}": np.ones(s, np.float32) for k, s in enumerate(shapes)}).summary.sha256

    assert sha256((2, 3), (1, 3)) == sha256((2, 3), (1, 3))
    assert len({sha256((2, 3), (1, 3)), sha256((1, 3), (2, 3)), sha256((3, 3))}) == 3


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
    ({"x/0000": ROW, "x/0002": ROW}, "'x' lacks sample 'x/0001', though there is 'x/0002'"),
    ({"x/999999999": ROW}, "'x' lacks sample 'x/0000', though there is 'x/999999999'"),
    ({**samples(2, 3), "x/00001": ROW}, "holds sample 1 twice: 'x/0001' and 'x/00001'"),
    ({**samples(2, 3), "labels/0001": np.int64(1)}, "'labels/0000'"),
    ({**samples(2, 3, 4), **samples(2, 3, name="y")}, "'y/0002' is missing"),
    ({**samples(2, 3), "y": np.ones((3, 1))}, "'x/0002' is missing"),
    ({**samples(2, 3), "labels": np.arange(3)}, "labels 'labels' hold 3 values for 2 samples; 'x/0002' is missing"),
    ({**samples(2, 3, 4), **{f"labels/{k:04d}": np.int64(k) for k in range(2)}}, "'labels/0002' is missing"),
    ({**samples(2, 2), "x": np.ones((2, 2, 3), np.float32)}, "stored whole, and sample by sample ('x/0000'), too"),
    ({**samples(2, 2), "x/0002": np.ones((2, 3))}, "dtype: 'x/0000' is float32, 'x/0002' is float64"),
    ({**samples(2, 2), "x/0002": ROW[0]}, "number of axes: 'x/0000' has 2, 'x/0002' has 1"),
    ({**samples(2, 2), "x/0002": np.asfortranarray(ROW)}, "'x/0002', which is stored in Fortran order"),
    ({**samples(2, 2), "x/0002": np.array([[None]], object)}, "'x/0002', which holds pickled Python objects"),
    ({f"x/{k:04d}": np.ones((2, 2), np.complex64) for k in range(2)}, "has dtype complex64"),
    ({f"x/{k:04d}": np.ones((0, 3), np.float32) for k in range(2)}, "[0, 3], without a single element"),
    ({**samples(2, 2, 3), "x/0003": np.full((2, 3), np.nan, np.float32)}, "holds nan in sample 3"),
]


@pytest.mark.parametrize(("arrays", "says"), REFUSED, ids=[says for _, says in REFUSED])
def test_what_makes_no_array_is_refused_by_name(tmp_path: Path, arrays: dict[str, Array], says: str) -> None:
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

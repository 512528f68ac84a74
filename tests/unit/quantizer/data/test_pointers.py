"""Every fault of one array, of the labels or of the preprocessing points at its place in the dataset."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.errors import DatasetError
from worker.quantizer.data import inspect_dataset
from worker.quantizer.data.pointers import array_pointer

GOOD = np.ones((4, 2), np.float32)
NAN = np.array([[1.0], [np.nan], [1.0], [1.0]], np.float32)
PLAIN = PreprocessingSpec()


def fault(path: Path, spec: PreprocessingSpec = PLAIN) -> DatasetError:
    with pytest.raises(DatasetError) as caught:
        inspect_dataset(path, spec)
    return caught.value


def named(array: str, name: str = "in") -> PreprocessingSpec:
    return PreprocessingSpec(inputs={name: InputSpec(array=array)})


MISSING = "which is not there; .*'labels' int64\\[4\\], 'x' float32\\[4, 2\\]"
FAULTS = [
    # values
    ({"x": NAN}, PLAIN, "/arrays/x", "non-finite-data", "nan in sample 1"),
    ({"a/b~c": NAN}, PLAIN, "/arrays/a~1b~0c", "non-finite-data", "nan in sample 1"),
    ({"x": GOOD, "labels": NAN[:, 0]}, PLAIN, "/arrays/labels", "non-finite-data", "nan in sample 1"),
    # lengths
    ({"x": GOOD[:0]}, PLAIN, "/arrays/x", "dataset-empty", "'x' holds zero samples"),
    ({}, PLAIN, "/arrays", "dataset-empty", "no numeric array"),
    ({"labels": np.arange(4)}, PLAIN, "/arrays", "dataset-empty", "no numeric array.*'labels'"),
    ({"x": np.zeros((3, 0), np.float32)}, PLAIN, "/arrays/x", "dataset-arrays", "without a single element"),
    ({"x": GOOD, "y": GOOD, "z": GOOD[:3]}, PLAIN, "/arrays/z", "dataset-arrays", "'x' holds 4, 'z' holds 3"),
    (
        {"x": GOOD, "y": GOOD[:3]},
        PreprocessingSpec(inputs={"a": InputSpec(array="x"), "b": InputSpec(array="y")}),
        "/arrays/y",
        "dataset-arrays",
        "differ",
    ),
    ({"x": GOOD, "t": np.zeros(3, np.int64)}, PreprocessingSpec(labels="t"), "/labels", "dataset-labels", "3"),
    ({"x": GOOD, "labels": np.arange(9)}, named("x"), "/labels", "dataset-labels", "hold 9 values for 4 samples"),
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
        for spec in (PLAIN, named("odd"))
    ),
    ({"x": np.ones((3, 3), np.float32).T.copy(order="F")}, PLAIN, "/arrays/x", "dataset-arrays", "Fortran"),
    # labels
    ({"x": GOOD, "labels": np.array(["a", "b", "c", "d"])}, PLAIN, "/labels", "dataset-labels", "<U1, not numbers"),
    ({"x": GOOD, "labels": np.array(1.5)}, PLAIN, "/labels", "dataset-labels", "a scalar"),
    ({"x": GOOD, "labels": np.array([None] * 4, object)}, PLAIN, "/labels", "dataset-labels", "pickled Python objects"),
    ({"x": GOOD, "labels": np.zeros((4, 0), np.int64)}, PLAIN, "/labels", "dataset-labels", "without a single element"),
    ({"x": GOOD, "labels": np.array([0, 1, -1, 0])}, PLAIN, "/labels", "dataset-labels", "-1 at sample 2"),
    ({"x": GOOD, "labels": np.array([0, 1, 2, 2**64 - 1], np.uint64)}, PLAIN, "/labels", "dataset-labels", "sample 3"),
    (
        {"x": GOOD, "labels": np.zeros((3, 10), np.float32)},
        PLAIN,
        "/labels",
        "dataset-labels",
        "3 values for 4 samples",
    ),
    # what the preprocessing names
    ({"x": GOOD}, PreprocessingSpec(labels="t"), "/preprocessing/labels", "dataset-labels", "'t', which are not there"),
    (
        {"x": GOOD, "labels": np.arange(4)},
        named("y", "in/put"),
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


def test_a_damaged_member_points_at_its_array(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, good=GOOD, bad=np.arange(4096, dtype=np.float32).reshape(4, -1))
    data = bytearray(path.read_bytes())
    data[-5000] ^= 0xFF
    path.write_bytes(data)
    error = fault(path)
    assert [found.pointer for found in error.errors] == ["/arrays/bad"]
    assert error.where["member"] == "bad.npy"


def test_a_cut_safetensors_array_points_at_itself(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": GOOD, "b": GOOD}, path)
    path.write_bytes(path.read_bytes()[:-4])
    assert [found.pointer for found in fault(path).errors] == ["/arrays/b"]


def test_a_fault_of_the_whole_file_leaves_the_place_to_who_took_it_in(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(b"")
    assert fault(path).errors == ()


@pytest.mark.parametrize(("name", "pointer"), [("x", "/arrays/x"), ("x.npy", "/arrays/x"), ("~/", "/arrays/~0~1")])
def test_pointers_are_escaped(name: str, pointer: str) -> None:
    assert array_pointer(name) == pointer

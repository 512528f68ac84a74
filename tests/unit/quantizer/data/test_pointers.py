"""Every fault of one array, of the labels or of the preprocessing points at its place in the dataset."""

from __future__ import annotations

from pathlib import Path
from typing import Any

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


@pytest.mark.parametrize(
    ("arrays", "spec", "pointer", "code"),
    [
        ({"x": NAN}, PLAIN, "/arrays/x", "non-finite-data"),
        ({"a/b~c": NAN}, PLAIN, "/arrays/a~1b~0c", "non-finite-data"),
        ({"x": GOOD, "y": GOOD, "z": GOOD[:3]}, PLAIN, "/arrays/z", "dataset-arrays"),
        ({"x": np.array(1.0)}, PLAIN, "/arrays/x", "dataset-arrays"),
        ({"x": np.array([None, None])}, PLAIN, "/arrays/x", "dataset-arrays"),
        ({"x": GOOD[:0]}, PLAIN, "/arrays/x", "dataset-empty"),
        ({"x": np.ones((3, 3), np.float32, order="C").T.copy(order="F")}, PLAIN, "/arrays/x", "dataset-arrays"),
        ({"x": GOOD, "labels": np.array(["a", "b", "c", "d"])}, PLAIN, "/labels", "dataset-labels"),
        ({"x": GOOD, "labels": np.zeros((4, 0), np.int64)}, PLAIN, "/labels", "dataset-labels"),
        ({"x": GOOD, "labels": np.array([0, 1, -1, 0])}, PLAIN, "/labels", "dataset-labels"),
        ({"x": GOOD, "labels": np.zeros(3, np.int64)}, PLAIN, "/labels", "dataset-labels"),
        ({"x": GOOD, "t": np.zeros(3, np.int64)}, PreprocessingSpec(labels="t"), "/labels", "dataset-labels"),
        ({"x": GOOD}, PreprocessingSpec(labels="t"), "/preprocessing/labels", "dataset-labels"),
        (
            {"x": GOOD},
            PreprocessingSpec(inputs={"in": InputSpec(array="y")}),
            "/preprocessing/inputs/in/array",
            "dataset-arrays",
        ),
    ],
)
def test_the_place_of_a_fault(
    tmp_path: Path, arrays: dict[str, Any], spec: PreprocessingSpec, pointer: str, code: str
) -> None:
    path = tmp_path / "x.npz"
    if any("/" in name for name in arrays):
        path = tmp_path / "x.safetensors"
        save_file(arrays, path)
    else:
        np.savez(path, **arrays)
    error = fault(path, spec)
    assert [(found.pointer, found.code) for found in error.errors] == [(pointer, code)]
    assert error.errors[0].message == error.detail


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

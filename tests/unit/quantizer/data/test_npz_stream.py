"""Streaming .npz members gives what numpy.load gives, for every type, shape, batch size and way of packing."""

from __future__ import annotations

import zipfile
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import DatasetArraysError, DatasetFormatError
from service.contracts.model import TensorInfo
from worker.quantizer.data import open_dataset
from worker.quantizer.data.archive import read_npz
from worker.quantizer.data.zips import MemberStream

DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]


def members(draw_dtype: Any, order: Any) -> Any:
    dtype = st.builds(lambda code, swap: np.dtype(swap + code if code != "bool" else code), draw_dtype, order)
    shape = st.tuples(st.integers(1, 9), st.lists(st.integers(1, 5), max_size=3)).map(lambda s: (s[0], *s[1]))
    return st.tuples(dtype, shape).flatmap(lambda pair: hnp.arrays(pair[0], pair[1], elements=finite(pair[0])))


def finite(dtype: np.dtype[Any]) -> Any:
    return hnp.from_dtype(dtype, allow_nan=False, allow_infinity=False)


def info(name: str, array: np.ndarray[Any, Any]) -> TensorInfo:
    return TensorInfo(name=name, dtype=array.dtype.name, shape=("n", *array.shape[1:]))


@given(
    array=members(st.sampled_from(DTYPES), st.sampled_from(["<", ">"])),
    packed=st.booleans(),
    batch_size=st.integers(1, 11),
    limit=st.none() | st.integers(1, 12),
)
def test_batches_equal_numpy_load(
    tmp_path: Path, array: np.ndarray[Any, Any], packed: bool, batch_size: int, limit: int | None
) -> None:
    path = tmp_path / "x.npz"
    (np.savez_compressed if packed else np.savez)(path, x=array)
    expected = np.load(path)["x"]
    expected = expected.astype(expected.dtype.newbyteorder("="))[:limit]
    dataset = open_dataset(path, PreprocessingSpec())
    assert dataset.samples == len(array)
    for _ in range(2):  # every pass starts from sample 0
        batches = list(dataset.batches([info("x", array)], batch_size, limit=limit))
        got = [batch.feeds["x"] for batch in batches]
        assert all(values.flags.c_contiguous and values.dtype == expected.dtype for values in got)
        np.testing.assert_array_equal(np.concatenate(got), expected)
        assert [batch.start for batch in batches] == list(range(0, len(expected), batch_size))
        assert [batch.valid for batch in batches] == [len(values) for values in got]


@pytest.mark.parametrize("packed", [False, True])
def test_arrays_of_several_megabytes_cross_chunk_borders(tmp_path: Path, packed: bool) -> None:
    generator = np.random.default_rng(0)
    arrays = {
        "noise": generator.normal(size=(700, 1021)).astype(np.float32),
        "steps": np.repeat(np.arange(700, dtype=np.int64)[:, None], 513, axis=1),
        "zeros": np.zeros((700, 3000), np.uint8),
    }
    path = tmp_path / "x.npz"
    (np.savez_compressed if packed else np.savez)(path, **arrays)
    dataset = open_dataset(path, PreprocessingSpec())
    batches = list(dataset.batches([info(name, array) for name, array in arrays.items()], 33))
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.concatenate([batch.feeds[name] for batch in batches]), array)


@given(data=st.binary(max_size=5000), repeat=st.integers(1, 400), sizes=st.lists(st.integers(1, 9000), max_size=20))
def test_member_stream_gives_the_bytes_whatever_the_read_sizes(
    tmp_path: Path, data: bytes, repeat: int, sizes: list[int]
) -> None:
    buffer = BytesIO()
    np.lib.format.write_array(buffer, np.frombuffer(data * repeat, np.uint8)[None])
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("x.npy", buffer.getvalue())
    stream = MemberStream(read_npz(path)["x"].source)  # type: ignore[arg-type]
    pieces = [stream.read(size) for size in sizes]
    pieces.append(stream.read(1 << 30))
    assert b"".join(pieces) == buffer.getvalue()
    assert stream.read(1) == b""
    stream.close()


def test_zip64_and_prefixed_names_are_read_and_other_members_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("net/in:0.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, array)
        archive.writestr("README.txt", "hello")
        archive.mkdir("folder")
    dataset = open_dataset(path, PreprocessingSpec())
    assert list(dataset.selection.arrays) == ["net/in:0"]
    (batch,) = dataset.batches([info("net/in:0", array)], 8)
    np.testing.assert_array_equal(batch.feeds["net/in:0"], array)


def test_fortran_order_is_refused_with_the_way_out_where_it_matters(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.asfortranarray(np.arange(12.0).reshape(4, 3)))
    with pytest.raises(DatasetArraysError, match="ascontiguousarray") as caught:
        open_dataset(path, PreprocessingSpec())
    assert caught.value.where == {"array": "x"}
    column = np.arange(5, dtype=np.float32).reshape(5, 1)
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": True, "shape": (5, 1)})
        member.write(column.tobytes())
    (batch,) = open_dataset(path, PreprocessingSpec()).batches([info("x", column)], 9)
    np.testing.assert_array_equal(batch.feeds["x"], column)


def test_a_damaged_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    array = np.random.default_rng(0).normal(size=(64, 1000))
    for save in (np.savez, np.savez_compressed):
        save(path, x=array)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)
        dataset = open_dataset(path, PreprocessingSpec())
        with pytest.raises(DatasetFormatError, match=r"'x.npy' is damaged"):
            list(dataset.batches([info("x", array)], 8))

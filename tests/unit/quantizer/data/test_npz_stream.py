"""Members of .npz give what numpy.load gives; archives that lie or are cut short are refused; more: tests/security."""

from __future__ import annotations

import struct
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
from service.contracts.errors import DatasetArraysError, DatasetError, DatasetFormatError, EmptyDatasetError
from service.contracts.model import TensorInfo
from worker.quantizer.data import inspect_dataset, open_dataset, selection
from worker.quantizer.data.media.members import shared_folders
from worker.quantizer.data.zips import Directory, DirectoryError, DirectoryTooLargeError

DTYPES = ["bool", "u1", "i1", "u2", "i2", "u4", "i4", "u8", "i8", "f2", "f4", "f8"]
PLAIN = PreprocessingSpec()


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
    dataset = open_dataset(path, PLAIN)
    assert dataset.samples == len(array)
    for _ in range(2):  # every pass starts from sample 0
        batches = list(dataset.batches([info("x", array)], batch_size, samples=range(limit or len(array))))
        got = [batch.feeds["x"] for batch in batches]
        assert all(values.flags.c_contiguous and values.dtype == expected.dtype for values in got)
        np.testing.assert_array_equal(np.concatenate(got), expected)
        assert [batch.numbers[0] for batch in batches] == list(range(0, len(expected), batch_size))
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
    dataset = open_dataset(path, PLAIN)
    batches = list(dataset.batches([info(name, array) for name, array in arrays.items()], 33))
    for name, array in arrays.items():
        np.testing.assert_array_equal(np.concatenate([batch.feeds[name] for batch in batches]), array)


def test_zip64_and_prefixed_names_are_read_and_other_members_ignored(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    array = np.arange(12, dtype=np.float32).reshape(4, 3)
    with zipfile.ZipFile(path, "w") as archive:
        with archive.open("net/in:0.npy", "w", force_zip64=True) as member:
            np.lib.format.write_array(member, array)
        archive.writestr("README.txt", "hello")
        archive.mkdir("folder")
    dataset = open_dataset(path, PLAIN)
    assert list(dataset.selection.arrays) == ["net/in:0"]
    (batch,) = dataset.batches([info("net/in:0", array)], 8)
    np.testing.assert_array_equal(batch.feeds["net/in:0"], array)


def test_fortran_order_is_refused_with_the_way_out_where_it_matters(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    np.savez(path, x=np.asfortranarray(np.arange(12.0).reshape(4, 3)))
    with pytest.raises(DatasetArraysError, match="ascontiguousarray") as caught:
        open_dataset(path, PLAIN)
    assert caught.value.where == {"array": "x"}
    column = np.arange(5, dtype=np.float32).reshape(5, 1)
    with zipfile.ZipFile(path, "w") as archive, archive.open("x.npy", "w") as member:
        np.lib.format.write_array_header_1_0(member, {"descr": "<f4", "fortran_order": True, "shape": (5, 1)})
        member.write(column.tobytes())
    (batch,) = open_dataset(path, PLAIN).batches([info("x", column)], 9)
    np.testing.assert_array_equal(batch.feeds["x"], column)


def test_a_damaged_byte_is_found(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    array = np.random.default_rng(0).normal(size=(64, 1000))
    for save in (np.savez, np.savez_compressed):
        save(path, x=array)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 0x10
        path.write_bytes(data)
        dataset = open_dataset(path, PLAIN)
        with pytest.raises(DatasetFormatError, match=r"'x.npy' is damaged") as caught:
            list(dataset.batches([info("x", array)], 8))
        assert caught.value.where["member"] == "x.npy"
        assert [found.pointer for found in caught.value.errors] == ["/arrays/x"]


def npy(array: np.ndarray[Any, Any]) -> bytes:
    buffer = BytesIO()
    np.lib.format.write_array(buffer, array)
    return buffer.getvalue()


def header(descr: str, shape: tuple[int, ...], data: bytes = b"") -> bytes:
    buffer = BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + data


def archive_of(path: Path, **members: bytes) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(name + ".npy", data)
    return path


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"),
        (b"hello, this is a text file", "neither"),
        (b"PK\x03\x04" + b"\0" * 40, "directory is missing"),
        (b"\x93NUMPY\x01\0", "single .npy array"),
        (b"\x80\x04\x95abc", "pickle"),
        (b"PK\x05\x06" + b"\0" * 18, "no numeric array"),
    ],
)
def test_other_files_are_named_for_what_they_are(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "x.npz"
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=says) as caught:
        inspect_dataset(path, PLAIN)
    assert caught.value.hint
    assert isinstance(caught.value, EmptyDatasetError if says.startswith("no numeric") else DatasetFormatError)
    path.unlink()
    with pytest.raises(DatasetFormatError, match="No such file"):
        open_dataset(path, PLAIN)


@given(packed=st.booleans(), cut=st.floats(0, 0.999))
def test_truncation_is_refused(tmp_path: Path, packed: bool, cut: float) -> None:
    path = tmp_path / "x.npz"
    save = np.savez_compressed if packed else np.savez
    save(path, x=np.arange(60.0).reshape(20, 3), labels=np.arange(20))
    raw = path.read_bytes()
    path.write_bytes(raw[: int(cut * len(raw))])
    with pytest.raises(DatasetFormatError):
        inspect_dataset(path, PLAIN)


def test_a_name_with_a_nul_byte_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("x.npy#evil", npy(np.zeros((2, 2))))
    path.write_bytes(path.read_bytes().replace(b"x.npy#evil", b"x.npy\0evil"))
    with pytest.raises(DatasetFormatError):
        open_dataset(path, PLAIN)


def test_sizes_are_held_against_what_is_there_and_what_memory_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = archive_of(tmp_path / "x.npz", x=header("<f4", (1 << 20, 1 << 20), b"\0" * 64))
    with pytest.raises(DatasetFormatError, match="contains 64"):
        open_dataset(path, PLAIN)
    path = archive_of(tmp_path / "x.npz", x=npy(np.zeros((64, 4096), np.uint8)))
    assert open_dataset(path, PLAIN, max_total_bytes=1 << 20).samples == 64
    with pytest.raises(DatasetFormatError, match="unpacks to"):
        open_dataset(path, PLAIN, max_total_bytes=1 << 17)
    monkeypatch.setattr(selection, "MAX_SAMPLE_BYTES", 4096)
    assert open_dataset(path, PLAIN).samples == 64
    monkeypatch.setattr(selection, "MAX_SAMPLE_BYTES", 4095)
    with pytest.raises(DatasetArraysError, match="samples of 4096 bytes"):
        open_dataset(path, PLAIN)


def written(path: Path, *, prefix: bytes = b"", comment: bytes = b"", long: bool = False) -> Path:
    with path.open("wb") as file:
        file.write(prefix)
    with zipfile.ZipFile(path, "a", zipfile.ZIP_DEFLATED) as made:
        made.comment = comment
        for name in ("a.png", "folder/", "folder/größe.png", "folder/b.npy"):
            with made.open(zipfile.ZipInfo(name), "w", force_zip64=long) as member:
                member.write(b"" if name.endswith("/") else name.encode() * 9)
        made.writestr("last", b"x", zipfile.ZIP_STORED)
    return path


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(("prefix", "comment"), [(b"", b"c" * 65_535), (b"#!/bin/sh\n" * 7, b""), (b"", b"")])
def test_entries_are_those_of_zipfile(tmp_path: Path, prefix: bytes, comment: bytes, long: bool) -> None:
    path = written(tmp_path / "x.zip", prefix=prefix, comment=comment, long=long)
    found = list(Directory(path, max_members=5))
    with zipfile.ZipFile(path) as archive:
        expected = [entry for entry in archive.infolist() if not entry.is_dir()]
    assert [entry.name for entry in found] == [entry.filename for entry in expected]
    assert len(found) == 4
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.packed_bytes == theirs.compress_size
        assert mine.size_bytes == theirs.file_size
        assert mine.header_offset == theirs.header_offset
        assert (mine.crc, mine.method, mine.flags) == (theirs.CRC, theirs.compress_type, theirs.flag_bits)
        assert mine.mode == theirs.external_attr >> 16


def test_names_are_read_as_zipfile_reads_them_and_their_endings_found(tmp_path: Path) -> None:
    path = written(tmp_path / "old.zip")
    path.write_bytes(path.read_bytes().replace(b"a.png", b"\x94.png"))
    assert next(iter(Directory(path, max_members=5))).name == zipfile.ZipFile(path).namelist()[0] == "ö.png"
    path = tmp_path / "x.zip"
    for name, found in (("a.npy.png", False), ("folder.npy/b.png", False), ("ä.npy", True)):
        with zipfile.ZipFile(path, "a") as made:
            made.writestr(name, b"x")
        assert Directory(path, max_members=5).has_ending(".npy") is found


def test_more_members_than_are_accepted_are_refused_whatever_the_record_says(tmp_path: Path) -> None:
    path = written(tmp_path / "x.zip")
    with pytest.raises(DirectoryTooLargeError, match="lists 5 members"):
        list(Directory(path, max_members=4))
    data = bytearray(path.read_bytes())
    struct.pack_into("<2H", data, len(data) - 14, 1, 1)
    path.write_bytes(data)
    with pytest.raises(DirectoryTooLargeError, match="lists 5 members"):
        list(Directory(path, max_members=4))


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [(-10, 1 << 12, "not where it is said"), (-6, 1 << 20, "not where it is said"), (-10, 90, "an invalid entry")],
    ids=["size", "offset", "cut"],
)
def test_a_record_that_leads_elsewhere_is_refused(tmp_path: Path, field: int, value: int, says: str) -> None:
    path = written(tmp_path / "x.zip")
    data = bytearray(path.read_bytes())
    struct.pack_into("<L", data, len(data) + field, value)
    path.write_bytes(data)
    with pytest.raises(DirectoryError, match=says):
        list(Directory(path, max_members=9))


def test_folders_that_all_files_share() -> None:
    for names, shared in (
        ([], ""),
        (["x/y/a.png", "x/y/b.png", "x/z/c.png"], "x/"),
        (["x/a.png", "xy/a.png"], ""),
        (["x/a", "x/ab"], "x/"),
        (["a", "x/a"], ""),
    ):
        assert shared_folders(names) == shared, names

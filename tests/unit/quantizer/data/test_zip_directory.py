"""The directory of a zip archive says what Python's zipfile reads in it."""

from __future__ import annotations

import struct
import zipfile
from pathlib import Path

import pytest

from worker.quantizer.data.media.members import shared_folders
from worker.quantizer.data.zip_directory import Directory, DirectoryError, DirectoryTooLargeError, Entry


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


def read_directory(path: Path, *, max_members: int) -> list[Entry]:
    return list(Directory(path, max_members=max_members))


@pytest.mark.parametrize("long", [False, True])
@pytest.mark.parametrize(("prefix", "comment"), [(b"", b"c" * 65_535), (b"#!/bin/sh\n" * 7, b""), (b"", b"")])
def test_entries_are_those_of_zipfile(tmp_path: Path, prefix: bytes, comment: bytes, long: bool) -> None:
    path = written(tmp_path / "x.zip", prefix=prefix, comment=comment, long=long)
    found = read_directory(path, max_members=5)
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
    assert read_directory(path, max_members=5)[0].name == zipfile.ZipFile(path).namelist()[0] == "ö.png"
    path = tmp_path / "x.zip"
    for name, found in (("a.npy.png", False), ("folder.npy/b.png", False), ("ä.npy", True)):
        with zipfile.ZipFile(path, "a") as made:
            made.writestr(name, b"x")
        assert Directory(path, max_members=5).has_ending(".npy") is found


def test_more_members_than_are_accepted_are_refused_whatever_the_record_says(tmp_path: Path) -> None:
    path = written(tmp_path / "x.zip")
    with pytest.raises(DirectoryTooLargeError, match="lists 5 members"):
        read_directory(path, max_members=4)
    data = bytearray(path.read_bytes())
    struct.pack_into("<2H", data, len(data) - 14, 1, 1)
    path.write_bytes(data)
    with pytest.raises(DirectoryTooLargeError, match="lists 5 members"):
        read_directory(path, max_members=4)


@pytest.mark.parametrize(
    ("field", "value", "says"),
    [(-10, 1 << 12, "not where it is said"), (-6, 1 << 20, "not where it is said"), (-10, 90, "no entry")],
    ids=["size", "offset", "cut"],
)
def test_a_record_that_leads_elsewhere_is_refused(tmp_path: Path, field: int, value: int, says: str) -> None:
    path = written(tmp_path / "x.zip")
    data = bytearray(path.read_bytes())
    struct.pack_into("<L", data, len(data) + field, value)
    path.write_bytes(data)
    with pytest.raises(DirectoryError, match=says):
        read_directory(path, max_members=9)


def test_folders_that_all_files_share() -> None:
    for names, shared in (
        ([], ""),
        (["a.png"], ""),
        (["x/y/a.png"], "x/y/"),
        (["x/y/a.png", "x/y/b.png", "x/z/c.png"], "x/"),
        (["x/a.png", "xy/a.png"], ""),
        (["x/a", "x/ab"], "x/"),
        (["x/a/b", "x/a"], "x/"),
        (["a", "x/a"], ""),
    ):
        assert shared_folders(names) == shared, names

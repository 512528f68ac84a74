"""The file that an upload grows in: one writer, and a whole file sent anew beside the earlier bytes."""

from __future__ import annotations

import fcntl
import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.uploads.digests import RunningDigests
from service.uploads.errors import UploadBusyError
from service.uploads.writer import UploadFile


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "upl_x"
    file.write_bytes(b"earlier")
    return file


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def test_undone_the_earlier_bytes_are_there(path: Path) -> None:
    with UploadFile(path) as file:
        file.begin_anew()
        file.write(b"new")
        assert file.size_bytes == 3
        assert path.read_bytes() == b"earlier"
        file.undo()
        assert file.size_bytes == 7
    assert path.read_bytes() == b"earlier"
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize("left", [None, b"of a process that was killed"])
def test_kept_they_take_the_place_of_what_was_and_of_what_a_crash_left(path: Path, left: bytes | None) -> None:
    if left is not None:
        path.with_name("upl_x.anew").write_bytes(left)
    with UploadFile(path) as file:
        file.begin_anew()
        file.write(b"new")
        file.keep()
        assert file.sha256() == sha256(b"new")
        with pytest.raises(UploadBusyError):
            UploadFile(path)
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_whole_of_which_nothing_came_replaces_nothing_and_cleared_nothing_is_there(path: Path) -> None:
    with UploadFile(path) as file:
        file.begin_anew()
        file.keep()
        assert file.size_bytes == 7
    assert path.read_bytes() == b"earlier"
    with UploadFile(path) as file:
        file.write(b" and later")
        file.clear()
        assert file.size_bytes == 0
    assert path.read_bytes() == b""


def test_a_lock_on_a_file_that_lost_its_name_is_worth_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = fcntl.flock, []

    def replaced_in_between(descriptor: int, operation: int) -> None:
        if not calls:
            path.with_name("other").write_bytes(b"other")
            path.with_name("other").replace(path)
        calls.append(operation)
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", replaced_in_between)
    with UploadFile(path) as file:
        assert file.size_bytes == 5
    assert len(calls) == 2


ENDINGS = st.sampled_from(["keep", "undo", "crash"])
STEPS = st.tuples(st.booleans(), st.lists(st.binary(max_size=20), max_size=4), ENDINGS)


@given(st.lists(STEPS, max_size=8))
def test_against_a_plain_model(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, list[bytes], str]]):
    path = tmp_path_factory.mktemp("upload") / "upl_x"
    expected = b""
    digests = RunningDigests()
    for anew, blocks, ending in steps:
        sent = b"".join(blocks)
        with UploadFile(path, digests=digests) as file:
            if anew:
                file.begin_anew()
            for block in blocks:
                file.write(block)
            if ending == "undo":
                file.undo()
            elif ending == "keep":
                file.keep()
                assert file.sha256() == sha256(path.read_bytes())
        if not anew or not expected:
            # written in place: a crash leaves a prefix of what was sent
            expected += b"" if ending == "undo" else sent
        elif ending == "keep" and sent:
            expected = sent
        assert path.read_bytes() == expected


def test_bytes_that_lie_in_the_store_too_are_not_thrown_away_there(path: Path) -> None:
    """The database could not take note of a whole upload; later its bytes turn out to be wrong."""
    stored = path.with_name("stored")
    stored.hardlink_to(path)
    with UploadFile(path) as file:
        file.clear()
        assert file.size_bytes == 0
        file.write(b"new")
        file.keep()
        with pytest.raises(UploadBusyError):
            UploadFile(path)
    assert (path.read_bytes(), stored.read_bytes()) == (b"new", b"earlier")
    assert sorted(path.parent.iterdir()) == sorted([path, stored])


def test_a_file_that_came_in_parts_is_not_read_again(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_again(path: Path) -> str:
        raise AssertionError(f"{path} is read again")

    path.unlink()
    digests = RunningDigests()
    for part in (b"first", b"second"):
        with UploadFile(path, digests=digests) as file:
            file.write(part)
            file.keep()
    monkeypatch.setattr("service.uploads.writer.file_sha256", read_again)
    with UploadFile(path, digests=digests) as file:
        file.write(b"third")
        assert file.sha256() == sha256(b"firstsecondthird")


def test_bytes_of_another_process_are_not_taken_for_ones_own(path: Path) -> None:
    digests = RunningDigests()
    with UploadFile(path, digests=digests) as file:
        file.write(b"mine")
        file.keep()
    path.write_bytes(b"else")
    os.utime(path, ns=(0, 0))  # two writes within one tick of a coarse clock would look like one
    with UploadFile(path, digests=digests) as file:
        file.write(b"!")
        assert file.sha256() == sha256(b"else!")


def test_of_too_many_files_the_earliest_is_forgotten(tmp_path: Path) -> None:
    digests = RunningDigests(2)
    files = [(tmp_path / str(number)).open("w+b") for number in range(3)]
    for file in files:
        digests.remember(file.fileno(), hashlib.sha256(b""))
    assert [digests.known(file.fileno()) is not None for file in files] == [False, True, True]
    for file in files:
        file.close()

"""The file that an upload grows in: one writer, and a whole file sent anew beside the earlier bytes."""

from __future__ import annotations

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


def test_kept_they_take_the_place(path: Path) -> None:
    with UploadFile(path) as file:
        file.begin_anew()
        file.write(b"new")
        file.keep()
        assert file.sha256() == hashlib.sha256(b"new").hexdigest()
        with pytest.raises(UploadBusyError):
            UploadFile(path)
    assert path.read_bytes() == b"new"
    assert list(path.parent.iterdir()) == [path]


def test_a_whole_of_which_nothing_came_replaces_nothing(path: Path) -> None:
    with UploadFile(path) as file:
        file.begin_anew()
        file.keep()
        assert file.size_bytes == 7
    assert path.read_bytes() == b"earlier"


def test_what_a_crash_left_of_a_whole_is_not_taken_over(path: Path) -> None:
    path.with_name("upl_x.anew").write_bytes(b"of a process that was killed")
    with UploadFile(path) as file:
        file.begin_anew()
        file.write(b"new")
        file.keep()
    assert path.read_bytes() == b"new"


def test_cleared_nothing_is_there(path: Path) -> None:
    with UploadFile(path) as file:
        file.write(b" and later")
        file.clear()
        assert file.size_bytes == 0
    assert path.read_bytes() == b""


def test_a_lock_on_a_file_that_lost_its_name_is_worth_nothing(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

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


STEPS = st.lists(
    st.tuples(st.booleans(), st.lists(st.binary(max_size=20), max_size=4), st.sampled_from(["keep", "undo", "crash"])),
    max_size=8,
)


@given(STEPS)
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
                assert file.sha256() == hashlib.sha256(path.read_bytes()).hexdigest()
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
        assert file.sha256() == hashlib.sha256(b"firstsecondthird").hexdigest()


def test_bytes_of_another_process_are_not_taken_for_ones_own(path: Path) -> None:
    path.unlink()
    digests = RunningDigests()
    with UploadFile(path, digests=digests) as file:
        file.write(b"mine")
        file.keep()
    path.write_bytes(b"else")
    os.utime(path, ns=(0, 0))  # two writes within one tick of a coarse clock would look like one
    with UploadFile(path, digests=digests) as file:
        file.write(b"!")
        assert file.sha256() == hashlib.sha256(b"else!").hexdigest()


def test_of_too_many_files_the_earliest_is_forgotten(tmp_path: Path) -> None:
    digests = RunningDigests(2)
    descriptors = [os.open(tmp_path / str(number), os.O_RDWR | os.O_CREAT) for number in range(3)]
    try:
        for descriptor in descriptors:
            digests.remember(descriptor, hashlib.sha256(b""))
        assert [digests.known(descriptor) is not None for descriptor in descriptors] == [False, True, True]
    finally:
        for descriptor in descriptors:
            os.close(descriptor)

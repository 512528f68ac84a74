"""The file that an upload grows in, and bytes of a request on their way to it: nothing is undone under way."""

from __future__ import annotations

import asyncio
import fcntl
import hashlib
import os
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import ClientDisconnect

from service.contracts.quota import Quota
from service.quotas.rates import RateMeter
from service.storage import BLOCK_BYTES, StorageFullError
from service.uploads.copying import SizeLimit, copy
from service.uploads.schemas import UploadBusyError, UploadStalledError, UploadTooLargeError
from service.uploads.writer import RunningDigests, UploadFile
from tests.support.patience import PATIENCE_SECONDS


@pytest.fixture
def path(tmp_path: Path) -> Path:
    file = tmp_path / "upl_x"
    file.write_bytes(b"earlier")
    return file


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@pytest.mark.parametrize("left", [None, b"of a process that was killed"])
def test_kept_they_take_the_place_of_what_was_and_of_what_a_crash_left(
    path: Path, left: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    durable: set[int] = set()
    monkeypatch.setattr(os, "fsync", lambda descriptor: durable.add(os.fstat(descriptor).st_ino))
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
    assert durable == {path.stat().st_ino, path.parent.stat().st_ino}


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
        assert not anew or ending == "crash" or list(path.parent.iterdir()) == [path]
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


BLOCK = b"x" * BLOCK_BYTES
LIMIT = SizeLimit(4 * BLOCK_BYTES, "/size_bytes")


class Slow(UploadFile):
    """Writes nothing before it is allowed to."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.writes, self.go_on = threading.Event(), threading.Event()
        self.written = 0

    def write(self, *blocks: bytes) -> None:
        self.writes.set()
        assert self.go_on.wait(PATIENCE_SECONDS)
        super().write(*blocks)
        self.written += sum(map(len, blocks))


async def copied(blocks: AsyncIterator[bytes], file: UploadFile) -> None:
    await copy(blocks, file, LIMIT, PATIENCE_SECONDS, RateMeter(Quota()))


def test_the_next_bytes_arrive_while_some_are_written(tmp_path: Path) -> None:
    async def blocks(file: Slow) -> AsyncIterator[bytes]:
        yield BLOCK
        yield b"next"
        assert file.written == 0
        file.go_on.set()

    with Slow(tmp_path / "upl_x") as file:
        asyncio.run(copied(blocks(file), file))
        assert file.written == BLOCK_BYTES + 4
    assert (tmp_path / "upl_x").read_bytes() == BLOCK + b"next"


@pytest.mark.parametrize(
    ("error", "kept"),
    [(ClientDisconnect(), BLOCK + b"rest"), (UploadStalledError("It is silent."), BLOCK + b"rest"), (OSError(), BLOCK)],
)
def test_what_came_before_the_client_fell_silent_is_written(tmp_path: Path, error: Exception, kept: bytes) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield BLOCK
        yield b"rest"
        raise error

    with UploadFile(tmp_path / "upl_x") as file, pytest.raises(type(error)):
        asyncio.run(copied(blocks(), file))
    assert (tmp_path / "upl_x").read_bytes() == kept


def test_a_request_that_is_canceled_waits_for_its_write(tmp_path: Path) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield BLOCK
        await asyncio.sleep(PATIENCE_SECONDS)

    async def main(file: Slow) -> None:
        task = asyncio.create_task(copied(blocks(), file))
        assert await asyncio.to_thread(file.writes.wait, PATIENCE_SECONDS)
        task.cancel()
        done, _ = await asyncio.wait({task}, timeout=0.05)
        assert not done
        task.cancel()
        file.go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert file.written == BLOCK_BYTES

    with Slow(tmp_path / "upl_x") as file:
        asyncio.run(main(file))


@pytest.mark.parametrize(("free", "error", "most"), [(2**60, StorageFullError, 2), (0, UploadTooLargeError, 5)])
def test_the_disks_refusal_ends_it_and_more_than_was_declared(
    tmp_path: Path, free: int, error: type[Exception], most: int
) -> None:
    taken = 0

    async def blocks() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(5):
            taken += 1
            yield BLOCK

    with UploadFile(tmp_path / "upl_x", min_free_bytes=free) as file, pytest.raises(error):
        asyncio.run(copied(blocks(), file))
    assert taken <= most
    assert (tmp_path / "upl_x").stat().st_size <= LIMIT.size_bytes

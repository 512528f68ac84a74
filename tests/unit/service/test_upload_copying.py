"""Bytes of a request on their way to the disk: the next ones arrive meanwhile, and nobody undoes a write under way."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from starlette.requests import ClientDisconnect

from service.contracts.quota import Quota
from service.quotas.rates import Meter
from service.storage import BLOCK_BYTES, StorageFullError
from service.uploads.copying import Limit, copy
from service.uploads.errors import UploadStalledError, UploadTooLargeError
from service.uploads.writer import UploadFile
from tests.support.patience import PATIENCE_SECONDS

BLOCK = b"x" * BLOCK_BYTES
LIMIT = Limit(4 * BLOCK_BYTES, "/size_bytes")


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


@pytest.fixture
def meter() -> Meter:
    return Meter(Quota())


def test_the_next_bytes_arrive_while_some_are_written(tmp_path: Path, meter: Meter) -> None:
    async def blocks(file: Slow) -> AsyncIterator[bytes]:
        yield BLOCK
        yield b"next"
        assert file.written == 0
        file.go_on.set()

    with Slow(tmp_path / "upl_x") as file:
        asyncio.run(copy(blocks(file), file, LIMIT, PATIENCE_SECONDS, meter))
        assert file.written == BLOCK_BYTES + 4
    assert (tmp_path / "upl_x").read_bytes() == BLOCK + b"next"


@pytest.mark.parametrize(
    ("error", "kept"),
    [(ClientDisconnect(), BLOCK + b"rest"), (UploadStalledError("It is silent."), BLOCK + b"rest"), (OSError(), BLOCK)],
)
def test_what_came_before_the_client_fell_silent_is_written(
    tmp_path: Path, meter: Meter, error: Exception, kept: bytes
) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield BLOCK
        yield b"rest"
        raise error

    with UploadFile(tmp_path / "upl_x") as file, pytest.raises(type(error)):
        asyncio.run(copy(blocks(), file, LIMIT, PATIENCE_SECONDS, meter))
    assert (tmp_path / "upl_x").read_bytes() == kept


def test_a_request_that_is_canceled_waits_for_its_write(tmp_path: Path, meter: Meter) -> None:
    async def blocks() -> AsyncIterator[bytes]:
        yield BLOCK
        await asyncio.sleep(PATIENCE_SECONDS)

    async def main(file: Slow) -> None:
        task = asyncio.create_task(copy(blocks(), file, LIMIT, PATIENCE_SECONDS, meter))
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
    tmp_path: Path, meter: Meter, free: int, error: type[Exception], most: int
) -> None:
    taken = 0

    async def blocks() -> AsyncIterator[bytes]:
        nonlocal taken
        for _ in range(5):
            taken += 1
            yield BLOCK

    with UploadFile(tmp_path / "upl_x", min_free_bytes=free) as file, pytest.raises(error):
        asyncio.run(copy(blocks(), file, LIMIT, PATIENCE_SECONDS, meter))
    assert taken <= most
    assert (tmp_path / "upl_x").stat().st_size <= LIMIT.size_bytes

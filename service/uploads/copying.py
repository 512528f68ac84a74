"""Copies a request body to disk, limited in size and time, writing while the next bytes arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from types import TracebackType
from typing import NamedTuple, NoReturn

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect

from service.quotas.rates import RateMeter
from service.storage import BLOCK_BYTES
from service.uploads.base import UploadWriter
from service.uploads.schemas import UploadStalledError, UploadTooLargeError

# A body that drips in, byte by byte, would hold its upload for ever.
_LEAST_BYTES = 4096


class SizeLimit(NamedTuple):
    """The bytes that an upload may have, and what says so."""

    size_bytes: int
    pointer: str

    def refuse(self, size_bytes: int) -> NoReturn:
        """Say that so many bytes are too many.

        Raises:
            UploadTooLargeError: always.
        """
        raise UploadTooLargeError(
            f"{size_bytes} bytes exceed the limit of {self.size_bytes} bytes for this upload.",
            pointer=self.pointer,
            hint="Declare the correct size_bytes. The limit of the service is QUANTMILL_MAX_UPLOAD_BYTES.",
        )


async def copy(
    blocks: AsyncIterator[bytes], file: UploadWriter, limit: SizeLimit, idle_seconds: float, meter: RateMeter
) -> None:
    """Write the blocks as they come.

    Raises:
        UploadTooLargeError: more come than may.
        UploadStalledError: they do not come any more; what came was written.
        ClientDisconnect: as well; what came was written.
        StorageFullError: the disk would go below its floor.
        OSError: the disk refused.
    """
    size_bytes = file.size_bytes
    async with _Writing(file) as writing:
        async for block in _in_time(blocks, idle_seconds):
            size_bytes += len(block)
            if size_bytes > limit.size_bytes:
                limit.refuse(size_bytes)
            await writing.add(block)
            if pause_seconds := meter.upload_pause_seconds(len(block)):
                await asyncio.sleep(pause_seconds)


class _Writing:
    """Collects blocks and has them written in another thread, one write at a time; memory holds two of them at most.

    When its block ends, nothing is being written any more. What was collected is written as well, unless the block
    ended by an error other than the client's silence.
    """

    def __init__(self, file: UploadWriter) -> None:
        self._file = file
        self._collected: list[bytes] = []
        self._size_bytes = 0
        self._write: asyncio.Future[None] | None = None

    async def __aenter__(self) -> _Writing:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is None or isinstance(error, (ClientDisconnect, UploadStalledError)):
            await self._flush()
        await self._settle()

    async def add(self, block: bytes) -> None:
        """Take a block over."""
        self._collected.append(block)
        self._size_bytes += len(block)
        if self._size_bytes >= BLOCK_BYTES:
            await self._flush()

    async def _flush(self) -> None:
        await self._settle()
        blocks, self._collected, self._size_bytes = self._collected, [], 0
        self._write = asyncio.ensure_future(run_in_threadpool(self._file.write, *blocks))

    async def _settle(self) -> None:
        """Wait for the write that is under way, also where the request is being canceled; raise what it has raised."""
        if self._write is None:
            return
        write, canceled = self._write, None
        while not write.done():
            try:
                await asyncio.wait({write})
            except asyncio.CancelledError as error:
                canceled = error
        self._write = None
        if canceled is not None:
            write.exception()  # seen; whoever cancels asks for no result
            raise canceled
        write.result()


async def _in_time(blocks: AsyncIterator[bytes], idle_seconds: float) -> AsyncIterator[bytes]:
    """The blocks, as long as they come: of each span of ``idle_seconds`` some kilobytes have to, or the end."""
    loop = asyncio.get_running_loop()
    arrived, left_seconds = 0, idle_seconds
    while True:
        begun = loop.time()
        try:
            async with asyncio.timeout(left_seconds):
                block = await anext(blocks)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise UploadStalledError(
                f"Only {arrived} bytes arrived within {idle_seconds:g} s; the minimum is {_LEAST_BYTES}. "
                "They were kept.",
                hint="Get the current offset with HEAD and continue from there.",
            ) from None
        arrived += len(block)
        left_seconds -= loop.time() - begun  # of what the disk takes, nothing
        if arrived >= _LEAST_BYTES:
            arrived, left_seconds = 0, idle_seconds
        yield block

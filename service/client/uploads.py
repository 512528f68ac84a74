"""Uploads: files sent block by block, taken up again where the service's bytes end."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import httpx

from service.client.connection import BLOCK_BYTES, Connection
from service.storage import file_sha256
from service.transport import ApiError, Patience

_FINISH_BYTES_PER_SECOND = 20e6
UploadProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class Upload:
    """A complete upload."""

    id: str
    sha256: str
    size_bytes: int


class UploadCalls(Connection):
    """Calls of ``/v1/uploads``."""

    def upload_file(self, path: Path, *, kind: str | None = None, progress: UploadProgress | None = None) -> Upload:
        """Send a file; after a lost connection it goes on where the service's bytes end.

        Args:
            path: the file; must not change meanwhile.
            kind: "model" or "dataset", for people.
            progress: called with the bytes sent so far and all bytes.
        """
        size_bytes, sha256 = path.stat().st_size, file_sha256(path)
        body = {"filename": path.name, "size_bytes": size_bytes, "sha256": sha256, "kind": kind}
        upload_id: str = self._json("POST", "/v1/uploads", json=body)["id"]
        self._send_bytes(path, f"/v1/uploads/{upload_id}", size_bytes, progress or _no_progress)
        return Upload(upload_id, sha256, size_bytes)

    def _send_bytes(self, path: Path, url: str, size_bytes: int, progress: UploadProgress) -> None:
        patience = Patience(self._transport)
        # once all bytes are sent, the service makes them durable and may have to read them again
        finish_seconds = size_bytes / _FINISH_BYTES_PER_SECOND
        offset, complete = 0, False
        progress(offset, size_bytes)
        while not complete:
            # where all bytes are there and the service could not write that down, no more of them follow
            headers = {"Upload-Offset": str(offset), "Content-Length": str(size_bytes - offset)}
            try:
                with path.open("rb") as stream:
                    blocks = _blocks(stream, offset, size_bytes, progress)
                    answer = self._transport.send(
                        "PATCH", url, content=blocks, headers=headers, wait_seconds=finish_seconds
                    )
                offset = int(answer.headers["Upload-Offset"])
                complete = offset >= size_bytes
            except (httpx.TransportError, ApiError) as error:
                code = error.sent.code if isinstance(error, ApiError) else None
                if code == "upload-complete":  # an answer got lost
                    return
                if code != "upload-offset-mismatch":
                    patience.endure(error)
                reached = self._transport.patiently(lambda: self._transport.send("HEAD", url))
                if int(reached.headers["Upload-Offset"]) > offset:
                    patience.renew()
                offset = int(reached.headers["Upload-Offset"])


def _blocks(stream: IO[bytes], offset: int, size_bytes: int, progress: UploadProgress) -> Iterator[bytes]:
    stream.seek(offset)
    while offset < size_bytes:
        block = stream.read(min(BLOCK_BYTES, size_bytes - offset))
        if not block:
            return  # the file has shrunk: the service will say so
        offset += len(block)
        yield block
        progress(offset, size_bytes)


def _no_progress(sent_bytes: int, size_bytes: int) -> None:
    """Tell nobody."""

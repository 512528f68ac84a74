"""Uploads: files sent in parts, taken up again where the service's bytes end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.client.bars import upload_bar
from service.client.connection import Connection
from service.client.driving import Call
from service.client.errors import ApiError
from service.client.steps import FilePart, Steps, work
from service.storage import file_sha256

# Parts grow while they get through, for each costs a round trip and the time that a disk takes to be done with it.
PART_BYTES = 64 * 1024 * 1024
MAX_PART_BYTES = 1024 * 1024 * 1024
_LEAST_PART_BYTES = 256 * 1024
# The service itself has a code of its own for what is too large.
_TOO_LARGE_FOR_PROXY = "http-413"
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

    @Call
    def upload_file(
        self, path: Path | str, *, kind: str | None = None, progress: UploadProgress | None = None
    ) -> Steps[Upload]:
        """Send a file; after a lost connection it goes on where the service's bytes end. What is there is not sent.

        Args:
            path: the file; must not change meanwhile.
            kind: "model" or "dataset", for people.
            progress: called with the bytes sent so far and all bytes; default: a bar, on a terminal.
        """
        return (yield from self._upload(Path(path), kind, progress))

    def _upload(self, path: Path, kind: str | None, progress: UploadProgress | None) -> Steps[Upload]:
        size_bytes = path.stat().st_size
        sha256 = yield from work(lambda: file_sha256(path))
        body = {"filename": path.name, "size_bytes": size_bytes, "sha256": sha256, "kind": kind}
        # announced twice after a lost answer, one is never sent and is forgotten after a day
        announced = yield from self._json("POST", "/v1/uploads", json=body, repeatable=True)
        upload_id: str = announced["id"]
        with upload_bar(path.name, size_bytes, progress) as tell:
            tell(0, size_bytes)
            if announced["state"] == "complete":
                tell(size_bytes, size_bytes)
            else:
                yield from self._send_parts(path, f"/v1/uploads/{upload_id}", size_bytes, tell)
        return Upload(upload_id, sha256, size_bytes)

    def _send_parts(self, path: Path, url: str, size_bytes: int, progress: UploadProgress) -> Steps[None]:
        patience = self._patience()
        # once all bytes are sent, the service makes them durable and may have to read them again
        finish_seconds = size_bytes / _FINISH_BYTES_PER_SECOND
        offset, complete, parts = 0, False, _Parts()
        while not complete:
            end = min(offset + parts.size_bytes, size_bytes)
            part = FilePart(path, offset, end, lambda sent: progress(sent, size_bytes))
            # where all bytes are there and the service could not write that down, no more of them follow
            headers = {"Upload-Offset": str(offset), "Content-Length": str(part.end - offset)}
            try:
                answer = yield from self._send("PATCH", url, content=part, headers=headers, wait_seconds=finish_seconds)
                offset = int(answer.headers["Upload-Offset"])
                complete = offset >= size_bytes
                patience.renew()
                parts.grow()
            except (httpx.TransportError, ApiError) as error:
                if isinstance(error, ApiError) and error.code == "upload-complete":  # an answer got lost
                    return
                shrunk = isinstance(error, ApiError) and parts.shrink(error, part.end - part.start)
                if not shrunk and (not isinstance(error, ApiError) or error.code != "upload-offset-mismatch"):
                    yield from patience.endure(error)
                reached = yield from self._request("HEAD", url)
                if int(reached.headers["Upload-Offset"]) > offset:
                    patience.renew()
                offset = int(reached.headers["Upload-Offset"])


class _Parts:
    """How many bytes go at a time: more while they get through, fewer where something on the way takes no such many."""

    def __init__(self) -> None:
        self.size_bytes = PART_BYTES
        self._most_bytes = MAX_PART_BYTES

    def grow(self) -> None:
        """One got through."""
        self.size_bytes = min(2 * self.size_bytes, self._most_bytes)

    def shrink(self, error: ApiError, refused_bytes: int) -> bool:
        """Whether the refusal is a proxy's, of a body too large for it, and smaller parts are worth a try."""
        if error.code != _TOO_LARGE_FOR_PROXY or refused_bytes <= _LEAST_PART_BYTES:
            return False
        self.size_bytes = self._most_bytes = refused_bytes // 2
        return True

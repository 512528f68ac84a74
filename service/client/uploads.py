"""Uploads: files and their external data, in parts that are taken up again; and bars that show how far they are."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx

from service.client.connection import Connection
from service.client.driving import Call
from service.client.errors import ApiError
from service.client.steps import FilePart, Steps, work
from service.contracts.command_errors import FileAccessError
from service.contracts.errors import ExternalDataError
from service.protobuf import DamagedError, fields
from service.storage import file_sha256

# Of each kind of message: which fields hold messages that matter, and of which kind (onnx.proto3).
_INSIDE: dict[str, dict[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "entry"},
}
_ENTRY_KEY, _ENTRY_VALUE = 1, 2
_DATA_LOCATION, _EXTERNAL = 14, 1
# Messages that wait to be looked into: what is no model must not take the memory of one.
_MOST_WAITING = 1_000_000


def check_file(path: Path) -> None:
    """Refuse what is no file that can be uploaded.

    Raises:
        FileAccessError: it is not there, or it is a folder.
    """
    if path.is_dir():
        raise FileAccessError(f"{path} is a folder.", hint="Pack it into one .tar or .zip file.")
    if not path.exists():
        raise FileAccessError(f"{path} cannot be read: there is no such file.", hint="Check the path.")


def external_files(model: Path) -> list[Path]:
    """The files of a model's external data, by name. A file that is no model has none: the service says what it is.

    Raises:
        ExternalDataError: one is missing, or lies elsewhere than beside the model.
    """
    found = []
    for location in sorted(_locations(model)):
        path = model.parent / location
        if "/" in location or location in ("", ".", ".."):
            raise ExternalDataError(
                f"The model keeps weights in {location!r}; a service takes external data beside the model only.",
                hint="Save the model again with its external data in the same folder.",
            )
        if not path.is_file():
            raise ExternalDataError(
                f"The model's weights are in {location!r}, which is not beside {model.name}.",
                hint="Put it there under this name, or save the model again in one file.",
            )
        found.append(path)
    return found


def _locations(model: Path) -> set[str]:
    if model.stat().st_size == 0:
        return set()
    with model.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return set(_external(data))
        except DamagedError:
            return set()


def _external(data: mmap.mmap) -> Iterator[str]:
    waiting = [("model", 0, len(data))]
    while waiting:
        kind, start, end = waiting.pop()
        if kind == "tensor":
            yield from _location(data, start, end)
            continue
        for number, value, at in fields(data, start, end):
            inner = _INSIDE[kind].get(number)
            if inner is not None and at is not None:
                waiting.append((inner, at, at + value))
                if len(waiting) > _MOST_WAITING:
                    raise DamagedError("there are more messages than any model has")


def _location(data: mmap.mmap, start: int, end: int) -> Iterator[str]:
    """Where a tensor's bytes are, if they are not in the tensor."""
    external, location = False, None
    for number, value, at in fields(data, start, end):
        if number == _DATA_LOCATION and at is None:
            external = value == _EXTERNAL
        elif at is not None and _INSIDE["tensor"].get(number) == "entry":
            texts = {inner: data[place : place + size] for inner, size, place in fields(data, at, at + value) if place}
            if texts.get(_ENTRY_KEY) == b"location":
                location = texts.get(_ENTRY_VALUE, b"")
    if external and location is not None:
        yield location.decode(errors="surrogateescape")


@contextmanager
def upload_bar(
    name: str, size_bytes: int, progress: Callable[[int, int], None] | None
) -> Iterator[Callable[[int, int], None]]:
    """Whom to tell of an upload's progress: the caller's ``progress``, else a bar on standard error if that is seen."""
    if progress is not None:
        yield progress
    elif not sys.stderr.isatty():
        yield lambda sent_bytes, all_bytes: None
    else:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

        label = TextColumn("{task.description}", markup=False)
        console = Console(stderr=True)
        with Progress(label, BarColumn(), DownloadColumn(), TransferSpeedColumn(), console=console) as bar:
            task = bar.add_task("".join(letter if letter.isprintable() else "?" for letter in name), total=size_bytes)
            yield lambda sent_bytes, _: bar.update(task, completed=sent_bytes)


# Parts grow while they get through, for each costs a round trip and the time that a disk takes to be done with it.
PART_BYTES = 64 * 1024 * 1024
MAX_PART_BYTES = 1024 * 1024 * 1024
_LEAST_PART_BYTES = 256 * 1024
# The service itself has a code of its own for what is too large.
_TOO_LARGE_FOR_PROXY = "http-413"
_FINISH_BYTES_PER_SECOND = 20e6
UploadProgress = Callable[[int, int], None]


@dataclass(frozen=True)
class FileUpload:
    """A complete upload."""

    id: str
    sha256: str
    size_bytes: int


class UploadCalls(Connection):
    """Calls of ``/v1/uploads``."""

    @Call
    def upload_file(
        self, path: Path | str, *, kind: str | None = None, progress: UploadProgress | None = None
    ) -> Steps[FileUpload]:
        """Send a file; after a lost connection it goes on where the service's bytes end. What is there is not sent.

        Args:
            path: the file; must not change meanwhile.
            kind: "model" or "dataset", for people.
            progress: called with the bytes sent so far and all bytes; default: a bar, on a terminal.
        """
        return (yield from self._upload(Path(path), kind, progress))

    def _upload(self, path: Path, kind: str | None, progress: UploadProgress | None) -> Steps[FileUpload]:
        check_file(path)
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
        return FileUpload(upload_id, sha256, size_bytes)

    def _send_parts(self, path: Path, url: str, size_bytes: int, progress: UploadProgress) -> Steps[None]:
        retries = self._retries()
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
                retries.renew()
                parts.grow()
            except (httpx.TransportError, ApiError) as error:
                if isinstance(error, ApiError) and error.code == "upload-complete":  # an answer got lost
                    return
                shrunk = isinstance(error, ApiError) and parts.shrink(error, part.end - part.start)
                if not shrunk and (not isinstance(error, ApiError) or error.code != "upload-offset-mismatch"):
                    yield from retries.endure(error)
                reached = yield from self._request("HEAD", url)
                if int(reached.headers["Upload-Offset"]) > offset:
                    retries.renew()
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

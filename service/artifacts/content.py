"""Responses that contain a file: ranges, entity tags, digests and safe names."""

from __future__ import annotations

import base64
import hashlib
import re
import unicodedata
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote

from starlette.concurrency import run_in_threadpool
from starlette.responses import Response, StreamingResponse

from service.artifacts.schemas import RangeNotSatisfiableError
from service.files.serving import ServedFile
from service.http import etag_matches
from service.threads import Threads

_BLOCK_BYTES = 256 * 1024
_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_UNSAFE = re.compile(r'[\x00-\x1f\x7f-\x9f/\\:*?"<>|]')


@dataclass(frozen=True)
class Content:
    """What is known of a file before it is opened."""

    filename: str
    media_type: str
    size_bytes: int
    sha256: str

    @property
    def etag(self) -> str:
        """Strong entity tag: the digest."""
        return f'"sha256:{self.sha256}"'

    def headers(self) -> dict[str, str]:
        """Headers that every answer about this file carries. What users uploaded is never shown as a page."""
        digest = base64.b64encode(bytes.fromhex(self.sha256)).decode()
        return {
            "ETag": self.etag,
            "Repr-Digest": f"sha-256=:{digest}:",
            "Accept-Ranges": "bytes",
            "Cache-Control": "private, no-cache",
            "Content-Disposition": content_disposition(self.filename),
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": "sandbox; default-src 'none'",
        }


def not_modified(content: Content, headers: Mapping[str, str]) -> bool:
    """True if the client has this file already."""
    return etag_matches(headers.get("if-none-match"), content.etag)


def content_range(content: Content, headers: Mapping[str, str]) -> tuple[int, int] | None:
    """First and last byte that are asked for; None for the whole file.

    A range of another unit, of several parts or with a stale If-Range is passed over, as RFC 9110 wants.

    Raises:
        RangeNotSatisfiableError: it lies outside the file.
    """
    match = _RANGE.fullmatch(headers.get("range", "").strip())
    if match is None or match.group(0) == "bytes=-" or headers.get("if-range", content.etag).strip() != content.etag:
        return None
    first, last = match.groups()
    size_bytes = content.size_bytes
    if not first:
        begin, end = max(0, size_bytes - int(last)), size_bytes - 1
    else:
        begin, end = int(first), min(int(last), size_bytes - 1) if last else size_bytes - 1
        if last and int(last) < begin:
            return None
    if begin >= size_bytes:
        raise RangeNotSatisfiableError(size_bytes)
    return begin, end


def file_response(file: ServedFile, content: Content, part: tuple[int, int] | None, writes: Threads) -> Response:
    """The answer that sends the file, or bytes ``part[0]`` to ``part[1]`` of it; closes the stream afterwards.

    A whole file is checked against its digest on the way: a small one before the answer begins; of a larger one that is
    damaged the last block is never sent, so that the client sees a transfer that broke off, and the file is flagged, so
    that going on by a range is refused. A range is not checked: that would take reading all of the file for each.

    Raises:
        StoredFileCorruptError: a small file is damaged.
    """
    begin, end = part if part is not None else (0, content.size_bytes - 1)
    if part is None and content.size_bytes <= _BLOCK_BYTES:
        with file.stream as stream:
            data = stream.read()
            file.check(hashlib.sha256(data).hexdigest())
        return Response(data, media_type=content.media_type, headers=content.headers())
    headers = {**content.headers(), "Content-Length": str(end - begin + 1)}
    if part is not None:
        headers["Content-Range"] = f"bytes {begin}-{end}/{content.size_bytes}"
    return StreamingResponse(
        _blocks(file, begin, end - begin + 1, writes if part is None else None),
        status_code=200 if part is None else 206,
        media_type=content.media_type,
        headers=headers,
    )


def content_disposition(filename: str) -> str:
    """An attachment with a name that is safe in a header and on any disk (RFC 6266)."""
    name = _UNSAFE.sub("_", unicodedata.normalize("NFC", filename)).strip(". ")[:200] or "download"
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()
    plain = re.sub(r"[^A-Za-z0-9._ -]", "_", plain).strip(". ") or "download"
    if plain == name:
        return f'attachment; filename="{plain}"'
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(name, safe='', errors='replace')}"


async def _blocks(file: ServedFile, begin: int, length: int, writes: Threads | None) -> AsyncIterator[bytes]:
    """Bytes of the file; with ``writes`` they are all that it has, and the last are sent only if it is whole."""
    digest = hashlib.sha256()
    stream = file.stream
    try:
        await run_in_threadpool(stream.seek, begin)
        while length > 0:
            block = await run_in_threadpool(stream.read, min(_BLOCK_BYTES, length))
            if not block:
                # the client sees a body shorter than Content-Length, never a false end
                raise EOFError("the stored file is shorter than its recorded size")
            length -= len(block)
            if writes is not None:
                await run_in_threadpool(digest.update, block)
                if length == 0 and digest.hexdigest() != file.sha256:
                    await writes.run(lambda: file.check(digest.hexdigest()))
            yield block
    finally:
        stream.close()

"""HTTP face of the guide: the pages that ``make guide`` builds from docs/, as files of this host alone."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import RedirectResponse

from service.contracts.errors import QuantmillError
from service.errors import RouteNotFoundError
from service.http import etag_matches

router = APIRouter(include_in_schema=False)

# Where `make guide` writes; git ignores it, and a package contains it if it was built.
SITE = Path(__file__).with_name("site")
START = "index.html"
_MEDIA_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "json": "application/json",
    "svg": "image/svg+xml",
    "png": "image/png",
    "txt": "text/plain; charset=utf-8",
    "xml": "application/xml",
}
_INLINE_SCRIPT = re.compile(rb"<script>(.*?)</script>", re.DOTALL)
# Scripts in a page run by their digest, so that none that gets into it is run. The theme's search adds its own styles.
_POLICY = (
    "default-src 'none'; script-src 'self' {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; "
    "connect-src 'self'; worker-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)


class GuideMissingError(QuantmillError, code="guide-not-built", title="The guide is not built", status=404):
    """The pages of the guide are not part of this installation."""


@dataclass(frozen=True)
class File:
    """One file of the guide.

    Args:
        body: its bytes.
        etag: changes with them.
        media_type: by the ending of its name.
    """

    body: bytes
    etag: str
    media_type: str


@dataclass(frozen=True)
class Site:
    """The guide as it was built.

    Args:
        files: by their paths below /guide/.
        policy: the Content-Security-Policy of all of them.
    """

    files: dict[str, File]
    policy: str


@cache
def read_site(folder: Path) -> Site:
    """All files of the guide; some megabytes, read once.

    Raises:
        GuideMissingError: the guide was not built.
    """
    if not folder.joinpath(START).is_file():
        raise GuideMissingError(
            "The guide is not built in this installation.",
            hint="Run make guide and restart the service, or read the Markdown pages in docs/. "
            "/docs describes the API.",
        )
    files = {path: _file(path, body) for path, body in _walk(folder)}
    pages = (file.body for path, file in files.items() if path.endswith(".html"))
    scripts = {script for page in pages for script in _INLINE_SCRIPT.findall(page)}
    digests = sorted(b64encode(hashlib.sha256(script).digest()).decode() for script in scripts)
    return Site(files, _POLICY.format(scripts=" ".join(f"'sha256-{digest}'" for digest in digests)))


def _walk(folder: Path, prefix: str = "") -> Iterator[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _walk(entry, f"{prefix}{entry.name}/")
        else:
            yield f"{prefix}{entry.name}", entry.read_bytes()


def _file(path: str, body: bytes) -> File:
    media_type = _MEDIA_TYPES.get(path.rpartition(".")[2], "application/octet-stream")
    return File(body, f'"{hashlib.sha256(body).hexdigest()[:16]}"', media_type)


@router.get("/guide")
def guide(request: Request) -> Response:
    """Redirect to the guide's first page, whose links are relative to its folder."""
    return RedirectResponse(str(request.scope.get("root_path", "")).rstrip("/") + "/guide/", 307)


@router.get("/guide/{path:path}")
def page(path: str, if_none_match: Annotated[str | None, Header(max_length=512)] = None) -> Response:
    """A file of the guide; public, as its source is.

    Raises:
        GuideMissingError: the guide was not built.
        RouteNotFoundError: the guide has no such file.
    """
    site = read_site(SITE)
    file = site.files.get(path or START)
    if file is None:
        raise RouteNotFoundError(f"The guide has no page {path[:100]!r}.", hint="Start at /guide.")
    headers = {"ETag": file.etag, "Cache-Control": "no-cache", "Content-Security-Policy": site.policy}
    if etag_matches(if_none_match, file.etag):
        return Response(status_code=304, headers=headers)
    return Response(file.body, media_type=file.media_type, headers=headers)

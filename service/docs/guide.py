"""HTTP face of the guide: the pages that ``make guide`` builds from docs/, as files of this host alone."""

from __future__ import annotations

import hashlib
import re
from base64 import b64encode
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Header, Request, Response
from fastapi.responses import FileResponse, RedirectResponse

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
class Site:
    """The guide as it was built.

    Args:
        etags: of its files, by their paths below /guide/; they change with what is in them.
        policy: the Content-Security-Policy of all of them.
    """

    etags: dict[str, str]
    policy: str


def read_site(folder: Path) -> Site:
    """What is known of the guide's files, which stay on disk; read once for every build.

    Raises:
        GuideMissingError: the guide was not built.
    """
    start = folder / START
    if not start.is_file():
        raise GuideMissingError(
            "The guide is not built in this installation.",
            hint="Run make guide and restart the service, or read the Markdown pages in docs/. "
            "/docs describes the API.",
        )
    return _site_of(folder, start.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _site_of(folder: Path, built: int) -> Site:
    etags: dict[str, str] = {}
    scripts: set[bytes] = set()
    for file in folder.rglob("*"):
        if file.is_file():
            body = file.read_bytes()
            etags[file.relative_to(folder).as_posix()] = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
            scripts.update(_INLINE_SCRIPT.findall(body) if file.suffix == ".html" else ())
    digests = sorted(b64encode(hashlib.sha256(script).digest()).decode() for script in scripts)
    return Site(etags, _POLICY.format(scripts=" ".join(f"'sha256-{digest}'" for digest in digests)))


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
    site, path = read_site(SITE), path or START
    etag = site.etags.get(path)
    if etag is None:
        raise RouteNotFoundError(f"The guide has no page {path[:100]!r}.", hint="Start at /guide.")
    headers = {"ETag": etag, "Cache-Control": "no-cache", "Content-Security-Policy": site.policy}
    if etag_matches(if_none_match, etag):
        return Response(status_code=304, headers=headers)
    media_type = _MEDIA_TYPES.get(path.rpartition(".")[2], "application/octet-stream")
    return FileResponse(SITE / path, media_type=media_type, headers=headers)

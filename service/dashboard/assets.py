"""Styles and scripts of the pages: files of this package, under names that change with their content."""

from __future__ import annotations

import hashlib
import re
from functools import cache
from importlib import resources

from fastapi import APIRouter, Response

from service.errors import RouteNotFoundError

router = APIRouter(include_in_schema=False)

# The tokens and components that the report's page has, too, come first.
_STYLES = (
    ("service.reports", "templates/style.css"),
    ("service.dashboard", "static/pages.css"),
    ("service.dashboard", "static/style_page.css"),
    ("service.dashboard", "static/new_job.css"),
    ("service.dashboard", "static/graph.css"),
    ("service.dashboard", "static/report.css"),
    ("service.dashboard", "static/nouns.css"),
    ("service.dashboard", "static/admin.css"),
)
_MEDIA_TYPES = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8", "svg": "image/svg+xml"}
_NAME = re.compile(r"[a-z_]+\.(css|js|svg)")
_YEAR_SECONDS = 31_536_000


@cache
def _read(asset: str) -> bytes:
    if asset == "style.css":
        return b"\n".join(resources.files(package).joinpath(path).read_bytes() for package, path in _STYLES)
    return resources.files("service.dashboard").joinpath("static", asset).read_bytes()


@cache
def _digest(asset: str) -> str:
    return hashlib.sha256(_read(asset)).hexdigest()[:16]


def asset_url(asset: str) -> str:
    """Where a file is served; another content has another address."""
    return f"/static/{asset}?v={_digest(asset)}"


@router.get("/static/{asset}")
def get_asset(asset: str) -> Response:
    """A style or a script; open to all, as is the source that it is of.

    Raises:
        RouteNotFoundError: there is no such file.
    """
    try:
        body = _read(asset) if _NAME.fullmatch(asset) else None
    except (FileNotFoundError, IsADirectoryError):
        body = None
    if body is None:
        raise RouteNotFoundError(f"There is no file {asset[:100]!r}.", hint="Load the page again.")
    headers = {"Cache-Control": f"public, max-age={_YEAR_SECONDS}, immutable", "ETag": f'"{_digest(asset)}"'}
    return Response(body, media_type=_MEDIA_TYPES[asset.rpartition(".")[2]], headers=headers)

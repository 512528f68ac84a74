"""HTTP face of the documentation: Swagger UI over the OpenAPI document, from files of this host alone."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from importlib import resources
from typing import Literal

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse
from jinja2 import Environment

from service.contracts.errors import QuantmillError
from service.docs.config_page import config_page
from service.docs.metrics_page import metrics_page
from service.quark.table import quark_page

router = APIRouter(include_in_schema=False)

# The package is only where Swagger UI's files are taken from; none of its code is called.
_PACKAGE = "fastapi_swagger.resources"
_MEDIA_TYPES = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon-32x32.png": "image/png",
}
_ASSET_SECONDS = 86400
PageName = Literal["config", "metrics", "quark"]
_PAGES: dict[PageName, Callable[[], str]] = {"config": config_page, "metrics": metrics_page, "quark": quark_page}
AssetName = Literal["swagger-ui-bundle.js", "swagger-ui.css", "favicon-32x32.png"]


class DocsMissingError(
    QuantmillError, code="docs-missing", title="The documentation page is not installed", status=500
):
    """The files of the documentation page are not installed."""


# No script and no style stands in the page itself, so that none that gets into it is run.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
_PAGE = Environment(autoescape=True).from_string("""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1.0">
<link rel="stylesheet" href="{{ root }}/docs/assets/swagger-ui.css">
<link rel="icon" href="{{ root }}/docs/assets/favicon-32x32.png">
<title>{{ title }} API</title>
</head>
<body>
<div id="swagger-ui" data-url="{{ root }}{{ openapi_url }}"></div>
<script src="{{ root }}/docs/assets/swagger-ui-bundle.js"></script>
<script src="{{ root }}/docs/start.js"></script>
</body>
</html>
""")
# by default the page would send the document's address to a validator on the internet
_START = """"use strict";
SwaggerUIBundle({
  url: document.getElementById("swagger-ui").dataset.url,
  dom_id: "#swagger-ui",
  deepLinking: true,
  validatorUrl: null,
  presets: [SwaggerUIBundle.presets.apis, SwaggerUIBundle.SwaggerUIStandalonePreset],
});
"""


@router.get("/docs")
def docs(request: Request) -> Response:
    """The API reference. It loads nothing from other hosts and runs only the two scripts that it names."""
    root = str(request.scope.get("root_path", "")).rstrip("/")
    page = _PAGE.render(root=root, title=request.app.title, openapi_url=request.app.openapi_url)
    return HTMLResponse(page, headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/start.js")
def start() -> Response:
    """The script that renders the OpenAPI document on the page."""
    return Response(_START, media_type="text/javascript", headers=_asset_headers())


@router.get("/docs/{name}.md")
def page(name: PageName) -> Response:
    """A generated page of the documentation, as Markdown."""
    return Response(_page(name), media_type="text/markdown; charset=utf-8", headers=_asset_headers())


@cache
def _page(name: PageName) -> str:
    return _PAGES[name]()


@router.get("/docs/assets/{name}")
def asset(name: AssetName) -> Response:
    """A script or stylesheet of the page.

    Raises:
        DocsMissingError: the package that brings it is not installed, or is another version.
    """
    return Response(_read(name), media_type=_MEDIA_TYPES[name], headers=_asset_headers())


@cache
def _read(name: str) -> bytes:
    try:
        return resources.files(_PACKAGE).joinpath(name).read_bytes()
    except (ModuleNotFoundError, FileNotFoundError) as error:
        raise DocsMissingError(
            f"{name} is not there: {error}", hint="Install the service with its dependencies."
        ) from error


def _asset_headers() -> dict[str, str]:
    return {"Cache-Control": f"public, max-age={_ASSET_SECONDS}", "X-Content-Type-Options": "nosniff"}

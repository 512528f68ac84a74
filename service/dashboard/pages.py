"""What all pages have in common: one way to draw them, one look, and errors as pages."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Coroutine
from functools import cache
from importlib import resources
from typing import Any
from urllib.parse import quote, urlencode, urlsplit

from fastapi import APIRouter, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, RedirectResponse
from fastapi.routing import APIRoute
from jinja2 import ChoiceLoader, Environment, PackageLoader, pass_context
from jinja2.runtime import Context
from markupsafe import Markup, escape

from service.contracts import changes, surfaces
from service.contracts.base import VERSION
from service.contracts.command_errors import HttpError
from service.contracts.compatibility import quantized_ops
from service.contracts.errors import InvalidRequestError, QuantmillError
from service.contracts.validation_words import message_of
from service.dashboard import forms
from service.deps import AppDep, PrincipalDep
from service.errors import RouteNotFoundError
from service.jobs.views import default_name_of
from service.keys.cookies import session_of
from service.keys.schemas import KeyNeededError
from service.principal import NO_KEY, Principal, Scope
from service.reports import figures
from service.reports.environment import environment_of
from service.reports.verdict import accuracy_line

# Styles and scripts of the pages: files of this package, under names that change with their content.

router = APIRouter(include_in_schema=False)
# The tokens and components that the report's page has, too, come first.
_STYLES = (
    ("service.reports", "templates/style.css"),
    ("service.dashboard", "static/pages.css"),
    ("service.dashboard", "static/style_page.css"),
    ("service.dashboard", "static/new_job.css"),
    ("service.dashboard", "static/graph.css"),
    ("service.dashboard", "static/report.css"),
    ("service.dashboard", "static/resources.css"),
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
    """A stylesheet or script; public, as its source is.

    Raises:
        RouteNotFoundError: there is no such file.
    """
    try:
        body = _read(asset) if _NAME.fullmatch(asset) else None
    except (FileNotFoundError, IsADirectoryError):
        body = None
    if body is None:
        raise RouteNotFoundError(f"File {asset[:100]!r} not found.", hint="Reload the page.")
    headers = {"Cache-Control": f"public, max-age={_YEAR_SECONDS}, immutable", "ETag": f'"{_digest(asset)}"'}
    return Response(body, media_type=_MEDIA_TYPES[asset.rpartition(".")[2]], headers=headers)


# Nothing is loaded from elsewhere, and nothing runs or is styled that stands in the page itself.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
)
# Where no referrer is sent at all, browsers tell no origin of a form either, and forms of unknown origin are refused.
_HEADERS = {"Content-Security-Policy": POLICY, "Cache-Control": "no-store", "Referrer-Policy": "same-origin"}
# By group: path, words, the scope that shows it.
NAVIGATION: tuple[tuple[str, tuple[tuple[str, str, Scope], ...]], ...] = (
    (
        "Quantize",
        (
            ("/", "Overview", "read"),
            ("/jobs", "Jobs", "read"),
            ("/batches", "Batches", "read"),
            ("/compare", "Compare", "read"),
        ),
    ),
    ("Registry", (("/models", "Models", "read"), ("/datasets", "Datasets", "read"))),
    (
        "Operate",
        (
            ("/schedules", "Schedules", "read"),
            ("/webhooks", "Webhooks", "manage"),
            ("/workers", "Workers", "read"),
            ("/keys", "Keys", "admin"),
            ("/audit", "Audit log", "admin"),
            ("/tenants", "Tenants", "admin"),
        ),
    ),
)


def navigation_of(principal: Principal | None) -> list[tuple[str, list[tuple[str, str]]]]:
    """Per group the pages that whoever is signed in may see: path and words."""
    if principal is None:
        return []
    return [
        (title, [(path, words) for path, words, scope in pages if principal.may(scope)]) for title, pages in NAVIGATION
    ]


@cache
def environment() -> Environment:
    """Of all templates."""
    made = environment_of(ChoiceLoader([PackageLoader("service.dashboard"), PackageLoader("service.reports")]))
    made.filters |= {
        "ago": forms.ago,
        "moment": forms.moment,
        "iso": forms.iso,
        "pretty": forms.pretty,
        "lines": forms.lines,
        "on_page": on_page,
        "typed": typed,
        "outcome": forms.outcome,
        "default_name": default_name_of,
    }
    made.globals |= {
        "judged": forms.judged,
        "accuracy_line": accuracy_line,
        "changes_of": forms.changes_of,
        "size_change": changes.size_change,
        "quantized_ops": quantized_ops,
    }
    made.globals |= {"asset": asset_url, "count": figures.count, "state_words": forms.STATES, "version": VERSION}
    return made


@pass_context
def on_page(context: Context, text: str) -> Markup:
    """A sentence with links to the pages that it names in place of routes."""
    link, root = Markup('<a href="{}{}">{}</a>'), context["root"]
    parts = surfaces.page_parts(text)
    return Markup().join(words if path is None else link.format(root, path, words) for words, path in parts)


def typed(text: str) -> Markup:
    """What stands in a field of a form: nothing is left out or spelled otherwise, as it is sent again."""
    # half of a surrogate pair is no text; in JSON it is this escape
    return escape(text.encode("utf-8", "backslashreplace").decode())


def page(request: Request, template: str, *, status: int = 200, **context: Any) -> HTMLResponse:
    """A page.

    Args:
        request: whom it is for is known by now, or it is nobody.
        template: of ``templates/``.
        status: of the answer.
        context: what the template shows, beside what all do.
    """
    principal: Principal | None = getattr(request.state, "principal", None)
    session = session_of(request)
    common = {
        "root": root_of(request),
        "here": request.url.path,
        "principal": principal,
        "signed_in": principal is not None and principal.actor != NO_KEY,
        "navigation": navigation_of(principal),
        "csrf": "" if session is None else request.app.state.app.keyring.guard(session),
        "may": (lambda scope: False) if principal is None else principal.may,
        "query": lambda **changes: changed_query(request, **changes),
    }
    text = environment().get_template(template).render(**common, **context)
    return HTMLResponse(text, status, headers=_HEADERS)


def root_of(request: Request) -> str:
    """What stands before every path, behind a proxy that serves this below a folder."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def changed_query(request: Request, **changes: Any) -> str:
    """The query of this page with changes; None takes a parameter away."""
    kept = [(key, value) for key, value in request.query_params.multi_items() if key not in changes]
    pairs = kept + [(key, str(value)) for key, value in changes.items() if value is not None]
    return f"?{urlencode(pairs)}" if pairs else request.url.path


def see(request: Request, path: str) -> RedirectResponse:
    """Go on at another page, after what a form asked for is done."""
    return RedirectResponse(root_of(request) + path, 303)


def add_act(router: APIRouter, path: str, act: Callable[..., object], then: str = "") -> None:
    """Add the route of a button.

    Args:
        router: of the pages.
        path: that is posted to.
        act: is done with the state of the process, who asks, and the parts of the path.
        then: where the browser goes on, default: the path but for its last word; parts of it are put in by name.
    """

    @router.post(path)
    async def do(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
        parts = request.path_params
        await app.writes.run(lambda: act(app, principal, *parts.values()))
        return see(request, (then or path.rpartition("/")[0]).format(**parts))


def sign_in_url(request: Request) -> str:
    """Where to sign in for this page; of a form that was sent, for the page that it stands on."""
    seen = request.url
    if request.method not in ("GET", "HEAD"):
        came = urlsplit(request.headers.get("referer", ""))
        seen = seen.replace(path=came.path, query=came.query) if came.netloc == seen.netloc else seen.replace(path="/")
    wanted = seen.path.removeprefix(root_of(request)) + (f"?{seen.query}" if seen.query else "")
    return f"/sign-in?next={quote(wanted, safe='')}"


# Told to somebody who has just sent a form.
_SIGNED_OUT = KeyNeededError(
    "You are not signed in, so nothing was changed.",
    hint="Sign in, then go back: the browser keeps what you have entered.",
)


class PageRoute(APIRoute):
    """A route of the dashboard: its errors are pages, and who is not signed in is asked for a key."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The handler, its errors shown."""
        inner = super().get_route_handler()

        async def handle(request: Request) -> Response:
            try:
                return await inner(request)
            except KeyNeededError:
                if request.method not in ("GET", "HEAD"):
                    return error_page(request, _SIGNED_OUT)
                return RedirectResponse(root_of(request) + sign_in_url(request), 303)
            except QuantmillError as error:
                return error_page(request, error)
            except RequestValidationError as error:
                return error_page(request, _address_error(error))

        return handle


def _address_error(error: RequestValidationError) -> InvalidRequestError:
    told = "; ".join(f"{one['loc'][-1]} {message_of(one)}" for one in error.errors())
    return InvalidRequestError(f"This address is not valid: {told}.")


def error_page(request: Request, error: QuantmillError) -> Response:
    """What went wrong, for people; the status and the code are those of the API."""
    problem = error.problem(instance=request.url.path, request_id=getattr(request.state, "request_id", None))
    answer = page(request, "error.html.jinja", status=problem.status, problem=problem, sign_in=sign_in_url(request))
    if isinstance(error, HttpError):
        answer.headers.update(error.headers())
    return answer

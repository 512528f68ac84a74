"""Signing in with a key, and out."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from service.dashboard.forms import sent
from service.dashboard.pages import PageRoute, page, see
from service.deps import AppDep, address_of
from service.keys import cookies
from service.keys.files import LOCAL_KEY_FILE

router = APIRouter(route_class=PageRoute, include_in_schema=False)


@router.get("/sign-in")
async def get_sign_in(request: Request, app: AppDep, next: str = "/") -> Response:  # noqa: A002 - as it stands in the address
    """The page that asks for a key."""
    if app.settings.keyless:
        return see(request, _own(next))
    return page(request, "sign_in.html.jinja", next=_own(next), refused=False, key_file=_key_file(app))


@router.post("/sign-in")
async def sign_in(request: Request, app: AppDep) -> Response:
    """Take a key, and give the browser a session for it."""
    form = await sent(request)
    wanted, key = _own(form.text("next") or "/"), form.text("key")
    made = None
    if key is not None:
        made = await app.reads.run(lambda: app.keyring.session_token(key, address_of(request)))
    if made is None:
        shown = {"next": wanted, "refused": True, "key_file": _key_file(app)}
        return page(request, "sign_in.html.jinja", status=401, **shown)
    answer = see(request, wanted)
    cookies.keep(answer, request, made[0])
    return answer


@router.post("/sign-out")
async def sign_out(request: Request) -> Response:
    """Have the browser forget its session."""
    answer = see(request, "/sign-in")
    cookies.drop(answer, request)
    return answer


def _own(path: str) -> str:
    """A path of this service; whatever else was given is the first page."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"


def _key_file(app: AppDep) -> str | None:
    """Where the key of this machine is, for whoever reaches the service on this machine alone."""
    path = app.settings.data_dir / LOCAL_KEY_FILE
    return str(path) if app.settings.api_key is None and path.is_file() else None

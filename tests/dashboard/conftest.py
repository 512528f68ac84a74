from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.deps import AppState
from service.keys import keyring as keyrings
from service.keys.cookies import COOKIE
from service.settings import Settings
from tests.api.conftest import app, front_of, sqlite_front
from tests.support import services
from tests.support.browser import Seen, browser_trouble, new_page, running_browser
from tests.support.filled import fill
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess

__all__ = ["app", "sqlite_front"]
KEY = "0a1b2c3d4e5f-of-some-length-for-pages"
PEPPER = "9f2c7be1d0a84e5536c1aa70b9de4f18"


@pytest.fixture
def closed(app: FastAPI, tmp_path: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """A service that wants a key of everybody, or that of the installation; redirects are looked at, not followed."""
    monkeypatch.setattr(keyrings, "REMEMBERED_SECONDS", 0.0)
    given = {"open": False, "key_pepper": PEPPER, "api_key": KEY, "min_free_bytes": 0}
    settings = Settings(data_dir=tmp_path / "data", database_url=sqlite_url, **given)
    with front_of(app, settings) as front:
        front.http.follow_redirects = False
        yield front


Open = Callable[..., Seen]


@dataclass(frozen=True)
class Place:
    """A service that runs, and what is in it."""

    url: str
    front: Front
    ids: dict[str, str]
    session: str

    def address(self, path: str) -> str:
        """Of a page whose path names things by what they are."""
        return self.url + path.format(**self.ids)


@pytest.fixture(scope="session")
def place(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path) -> Iterator[Place]:
    """One service for all tests that look at pages: they change nothing that others see, but for jobs of their own."""
    folder = tmp_path_factory.mktemp("pages")
    url = f"sqlite:///{shutil.copyfile(_sqlite_template, folder / 'service.db')}"
    settings = Settings(data_dir=folder / "data", database_url=url, min_free_bytes=0, api_key=KEY)
    app, process = AppState.from_settings(settings), ApiProcess(settings)
    headers = {"Authorization": f"Bearer {KEY}"}
    with httpx.Client(base_url=process.url, headers=headers, timeout=PATIENCE_SECONDS) as http:
        front = Front(http, app)  # type: ignore[arg-type] - of the same methods
        signed_in = http.post("/sign-in", data={"key": KEY})
        assert signed_in.status_code == 303, signed_in.text
        session = signed_in.cookies[COOKIE]
        http.cookies.clear()
        yield Place(process.url, front, fill(front), session)
    app.close()
    process.close()


# Not for all modules at once: a process has one driver at a time, and tests elsewhere start their own.
@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    services.require(browser_trouble())
    with running_browser() as program:
        yield program


@pytest.fixture
def open_page(browser: Any, place: Place, tmp_path: Path) -> Iterator[Open]:
    """Opens a page as somebody who is signed in."""
    contexts = []

    def opened(path: str, *, signed_in: bool = True, **options: Any) -> Seen:
        viewport = {"width": options.pop("width", 1440), "height": 900}
        context = browser.new_context(viewport=viewport, **options)
        contexts.append(context)
        if signed_in:
            cookie = {"name": COOKIE, "value": place.session, "url": place.url, "httpOnly": True, "sameSite": "Strict"}
            context.add_cookies([cookie])
        return new_page(context, place.address(path))

    yield opened
    for context in contexts:
        context.close()

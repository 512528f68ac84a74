"""Chromium for tests: the one on PATH, driven by playwright. Without it they are skipped; with CI=true they fail."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from typing import Any

from tests.support.patience import PATIENCE_SECONDS

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Chromium's own sandbox needs privileges that containers do not give; the pages shown are the tests' own.
# Kept in every page before its own scripts run; what the policy refused is told at the end.
_WATCH = """window.refused = [];
document.addEventListener('securitypolicyviolation', e => refused.push(`${e.violatedDirective} ${e.blockedURI}`));"""
ARGUMENTS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")


@functools.cache
def chromium() -> str | None:
    """Path of the browser, or None."""
    return next((path for path in map(shutil.which, _PROGRAMS) if path is not None), None)


def browser_trouble() -> str | None:
    """Why pages cannot be looked at in a browser; None if they can."""
    if chromium() is None:
        return "no chromium on PATH: pages are not looked at in a browser; apt-get install chromium"
    if find_spec("playwright") is None:
        return "no playwright (see requirements.lock): pages are not looked at in a browser"
    return None


@contextmanager
def running_browser() -> Iterator[Any]:
    """A browser of the caller's own."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        program = driver.chromium.launch(
            executable_path=chromium(), args=list(ARGUMENTS), timeout=1000 * PATIENCE_SECONDS
        )
        yield program
        program.close()


@dataclass
class Seen:
    """A page, what it asked for, and what went wrong in it."""

    page: Any
    requests: list[str] = field(default_factory=list)
    troubles: list[str] = field(default_factory=list)

    def refused(self) -> list[str]:
        """What the policy of the page has kept from being loaded or run."""
        found: list[str] = self.page.evaluate("window.refused")
        return found

    def _note(self, message: Any) -> None:
        """A page that says that something is missing or refused is one of status 4xx, of which browsers complain."""
        of_the_page = message.location.get("url", "") == self.page.url and "Failed to load resource" in message.text
        if message.type in ("error", "warning") and not of_the_page:
            self.troubles.append(f"{message.type}: {message.text}")


def new_page(context: Any, url: str) -> Seen:
    """A page of the context, watched from its beginning."""
    context.set_default_timeout(1000 * PATIENCE_SECONDS)
    context.add_init_script(_WATCH)
    seen = Seen(context.new_page())
    seen.page.on("request", lambda request: seen.requests.append(request.url))
    seen.page.on("console", seen._note)
    seen.page.on("pageerror", lambda error: seen.troubles.append(f"error: {error}"))
    seen.page.goto(url, wait_until="load")
    return seen

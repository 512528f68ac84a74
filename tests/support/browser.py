"""Chromium for tests: the one on PATH, driven by playwright. Without it they are skipped; with CI=true they fail."""

from __future__ import annotations

import functools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import Any

from tests.support.patience import PATIENCE_SECONDS

_PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
# Chromium's own sandbox needs privileges that containers do not give; the pages shown are the tests' own.
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

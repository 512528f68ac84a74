"""Chromium for tests: the one on PATH, driven by playwright. Without it they are skipped; with CI=true they fail."""

from __future__ import annotations

import functools
import shutil
from importlib.util import find_spec

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
        return "no chromium on PATH: the pages of reports are not looked at in a browser; apt-get install chromium"
    if find_spec("playwright") is None:
        return "no playwright (see requirements.lock): the pages of reports are not looked at in a browser"
    return None

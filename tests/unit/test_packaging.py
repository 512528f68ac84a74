"""The lock file installs anywhere, and the version stands in one place."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from service.contracts.version import VERSION

ROOT = Path(__file__).resolve().parents[2]


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    pins = [line for line in lines if line and not line.lstrip().startswith("#")]
    found = {}
    for pin in pins:
        match = re.fullmatch(r"([a-z0-9._-]+(?:\[[a-z,]+\])?)==([0-9][0-9a-z.]*)", pin)
        assert match, f"{pin!r} is no plain pin: it would not install on another machine"
        found[match[1].partition("[")[0]] = match[2]
    return found


def test_every_line_of_the_lock_file_is_a_plain_pin() -> None:
    pins = locked()
    assert pins["torch"] == "2.13.0"
    assert "quantmill" not in pins


def test_every_dependency_is_locked() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [name for group in project["optional-dependencies"].values() for name in group]
    wanted = {re.split(r"[\[><=,;]", name)[0].lower() for name in (*project["dependencies"], *extras)} - {"quantmill"}
    assert wanted <= set(locked())


def test_the_version_is_the_same_everywhere() -> None:
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"] == VERSION

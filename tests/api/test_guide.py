"""The guide is served as it was built, with a policy that runs its own scripts alone; or it says how to build it."""

from __future__ import annotations

import base64
import hashlib
import os
from pathlib import Path

import pytest

from service.docs import guide
from tests.api.conftest import ON_SQLITE
from tests.support.front import Front, problem

pytestmark = ON_SQLITE

SCRIPT = "document.title = 1"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A guide of two pages."""
    folder = tmp_path / "site"
    (folder / "how-to").mkdir(parents=True)
    others = '<script type="application/json">{}</script><script src="a.js"></script>'
    (folder / "index.html").write_text(f"<p>start</p><script>{SCRIPT}</script>{others}")
    (folder / "how-to" / "page.html").write_text("<p>page</p>")
    (folder / "main.css").write_text("p {}")
    monkeypatch.setattr(guide, "SITE", folder)
    return folder


def test_pages_and_files_come_with_their_types_and_a_policy_that_names_their_scripts(front: Front, site: Path) -> None:
    front.http.follow_redirects = True
    start = front.http.get("/guide")
    assert (start.status_code, start.url.path) == (200, "/guide/")
    assert "<p>start</p>" in start.text
    digest = base64.b64encode(hashlib.sha256(SCRIPT.encode()).digest()).decode()
    policy = start.headers["content-security-policy"]
    assert f"script-src 'self' 'sha256-{digest}';" in policy
    assert policy.count("sha256-") == 1, "only what is run"
    assert policy.startswith("default-src 'none'")
    page, style = (front.http.get(f"/guide/{path}") for path in ("how-to/page.html", "main.css"))
    assert (page.text, page.headers["content-security-policy"]) == ("<p>page</p>", policy)
    assert style.headers["content-type"].startswith("text/css")


def test_a_page_that_a_browser_has_is_not_sent_again(front: Front, site: Path) -> None:
    first = front.http.get("/guide/")
    again = front.http.get("/guide/", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")
    # browsers keep the headers of a 304 in place of those before
    assert again.headers["content-security-policy"] == first.headers["content-security-policy"]
    other = front.http.get("/guide/", headers={"If-None-Match": '"other"'})
    assert other.status_code == 200


def test_a_guide_that_is_built_again_is_served_with_the_policy_of_its_new_scripts(front: Front, site: Path) -> None:
    first = front.http.get("/guide/").headers
    page = site / "index.html"
    page.write_text("<p>again</p><script>other()</script>")
    os.utime(page, ns=(0, 0))  # whatever the clock of the disk
    again = front.http.get("/guide/")
    assert "again" in again.text
    changed = [name for name in ("etag", "content-security-policy") if again.headers[name] != first[name]]
    assert changed == ["etag", "content-security-policy"]


@pytest.mark.parametrize("path", ["none.html", "..%2Fguide.py", "%2Fetc%2Fpasswd", "how-to", "how-to/"])
def test_only_files_of_the_guide_are_served(front: Front, site: Path, path: str) -> None:
    problem(front.http.get(f"/guide/{path}"), 404, "route-not-found")


def test_a_guide_that_was_not_built_says_how_to_build_it(
    front: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guide, "SITE", tmp_path / "none")
    told = problem(front.http.get("/guide/"), 404, "guide-not-built")
    assert "make guide" in told["hint"]
    shown = front.http.get("/guide/", headers={"Accept": "text/html"})
    assert (shown.status_code, shown.headers["content-type"]) == (404, "text/html; charset=utf-8")
    assert "make guide" in shown.text

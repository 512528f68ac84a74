"""The guide builds without a warning, its links and anchors lead somewhere, and a browser shows it offline."""

from __future__ import annotations

import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from service.app import create_app
from service.docs import guide
from service.settings import Settings
from tests.api.serving import served
from tests.docs.blocks import ROOT
from tests.support import services
from tests.support.browser import browser_trouble, new_page, running_browser
from tests.support.patience import PATIENCE_SECONDS

pytestmark = [pytest.mark.slow, pytest.mark.long]

HOME = ROOT / ".venv-guide"
# What loads something as soon as a page is shown.
LOADED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "src")}


def guide_trouble() -> str | None:
    """Why the guide cannot be built; None if it can."""
    return None if (HOME / ".installed").exists() else f"no Zensical in {HOME.name}: make guide installs it"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The guide, built from a copy, as Zensical writes inside the project alone."""
    services.require(guide_trouble())
    folder = tmp_path_factory.mktemp("guide")
    shutil.copy(ROOT / "zensical.toml", folder)
    shutil.copytree(ROOT / "docs", folder / "docs")
    done = subprocess.run(
        [HOME / "bin" / "zensical", "build", "--strict"], cwd=folder, capture_output=True, text=True,
        timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "service" / "docs" / "site"


class Page(HTMLParser):
    """What a page can be linked by, and what it links to and loads."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loads: list[str] = []
        self.feed(path.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            if name in ("href", "src") and value:
                self.links.append(value)
            if (tag, name) in LOADED and value:
                self.loads.append(value)


def test_every_link_and_anchor_leads_somewhere_and_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    pages = {path.resolve(): Page(path) for path in site.rglob("*.html") if path.name != "404.html"}
    assert len(pages) > 40
    broken = []
    for path, page in pages.items():
        assert not [found for found in page.loads if urlsplit(found).netloc], path.name
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            there = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            there = there / "index.html" if there.is_dir() else there
            known = pages[there].anchors if there in pages else set()
            if not there.exists() or (parts.fragment and there in pages and unquote(parts.fragment) not in known):
                broken.append(f"{path.name}: {link}")
    assert not broken


def test_no_markdown_is_left_over(site: Path) -> None:
    """What GitHub takes for a list or a table may be text here, which no link check sees."""
    for path in site.rglob("*.html"):
        text = re.sub(r"<(code|script|style)\b.*?</\1>", "", path.read_text(), flags=re.DOTALL)
        left = re.findall(r"^(?:\| .*|```.*|[-*] .*|#+ .*|.*\]\(.*)$", text, re.MULTILINE)
        assert not left, f"{path.name}: {left[:3]}"


def test_a_browser_shows_and_searches_it_and_refuses_nothing(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    services.require(browser_trouble())
    monkeypatch.setattr(guide, "SITE", site)
    app = create_app(Settings(data_dir=tmp_path))
    try:
        with served(app) as url, running_browser() as browser:
            seen = new_page(browser.new_context(), f"{url}/guide")
            page = seen.page
            page.get_by_role("link", name="Glossary").first.click()
            page.wait_for_url(f"{url}/guide/glossary.html")
            box = page.locator("input:focus")
            for _ in range(100):  # the key is heard once the script runs
                page.keyboard.press("Control+k")
                page.wait_for_timeout(200)
                if box.count():
                    break
            page.keyboard.type("SmoothQuant")
            page.get_by_text(re.compile(r"^\d+ results$")).wait_for()
            assert seen.refused() == []
            assert seen.troubles == []
            assert {urlsplit(request).netloc for request in seen.requests} == {urlsplit(url).netloc}
    finally:
        app.state.app.close()

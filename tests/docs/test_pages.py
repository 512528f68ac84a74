"""The pages written by hand name what there is, and lead nowhere else."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from service.settings import Settings
from tests.docs.blocks import PAGES, ROOT
from tests.support.each import each

DOCS = ROOT / "docs"
_UNITS = {"bytes": ((1024**3, "GiB"), (1024**2, "MiB")), "seconds": ((1, "s"),)}


def anchors(page: Path) -> set[str]:
    """What links into a page may name: its headings, as GitHub spells them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@each("page", PAGES)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"


def entries(navigation: object) -> Iterator[str]:
    """The pages of a part of the guide's navigation."""
    if isinstance(navigation, str):
        yield navigation
    elif isinstance(navigation, dict | list):
        for part in navigation.values() if isinstance(navigation, dict) else navigation:
            yield from entries(part)


def test_every_page_has_one_place_in_the_guide() -> None:
    guide = tomllib.loads((ROOT / "zensical.toml").read_text())
    there = sorted(page.relative_to(DOCS).as_posix() for page in PAGES if page.is_relative_to(DOCS))
    assert sorted(entries(guide["project"]["nav"])) == there


def written(name: str, value: object) -> str:
    """A default as the page writes it."""
    for unit, word in _UNITS.get(name.rpartition("_")[2], ()):
        if isinstance(value, int | float) and value % unit == 0:
            return f"{value / unit:g} {word}" if unit > 1 else f"{value:.0f} {word}"
    if isinstance(value, BaseModel):
        return f"`{value.model_dump_json(exclude_defaults=True)}`"
    return f"`{value}`"


def test_the_table_of_settings_is_whole() -> None:
    rows = dict(re.findall(r"^\| `QUANTMILL_(\w+)` \| (.*?) \|", (DOCS / "deploy.md").read_text(), re.MULTILINE))
    assert {name.lower() for name in rows} == set(Settings.model_fields)
    for name, field in Settings.model_fields.items():
        if field.default not in ("", Path(), None):
            assert rows[name.upper()] == written(name, field.default)


def benchmark_rows() -> list[str]:
    """The rows of all tables; one without a model's name stands below the row that has it, and takes its cells over."""
    rows, named = [], ""
    for line in (DOCS / "benchmarks.md").read_text().splitlines():
        if line.startswith("| | "):
            rows.append(named + line)
        elif line.startswith("| "):
            named = line
            rows.append(line)
    return rows


def test_the_results_of_the_readme_are_those_of_the_benchmarks() -> None:
    lines = (ROOT / "README.md").read_text().splitlines()
    results = [line for line in lines if re.search(r"\| \d\d\.\d\d \|", line)]
    assert results
    for result in results:
        model, _, *cells = [cell.strip() for cell in result.strip("| ").split("|")]
        figures = set(re.findall(r"\d+(?:\.\d+)?", " ".join(cells)))
        rows = [row for row in benchmark_rows() if model.removesuffix(" transformer") in row]
        assert any(figures <= set(re.findall(r"\d+(?:\.\d+)?", row)) for row in rows), figures

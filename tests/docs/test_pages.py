"""The pages written by hand name what there is, and lead nowhere else."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from service.app import create_app
from service.contracts.runner import MetricLine
from service.jobs.metric_events import latest_metrics
from service.jobs.schemas import EventOut
from service.settings import Settings
from tests.docs.blocks import PAGES, ROOT, fenced

DOCS = ROOT / "docs"
_UNITS = {"bytes": ((1024**3, "GiB"), (1024**2, "MiB")), "seconds": ((1, "s"),)}


def anchors(page: Path) -> set[str]:
    """What links into a page may name: its headings, as GitHub spells them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"


def test_every_page_is_reached_from_the_readme() -> None:
    readme = (ROOT / "README.md").read_text()
    for page in PAGES:
        assert page.parent == ROOT or f"(docs/{page.name})" in readme, page.name


def test_the_readme_is_a_front_door() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 130


def test_the_event_of_the_page_is_one() -> None:
    (text,) = [block for block in fenced(DOCS / "http.md", "json") if '"metric"' in block]
    event = EventOut.model_validate_json(text)
    line = MetricLine(stage="qat", step=3, values={"train_loss": 0.41, "validation_loss": 0.44, "metric": 91.2})
    assert event.type == "metric"
    assert event.data == {"stage": line.stage, "step": line.step, **line.values}
    assert "latest_metrics" in (DOCS / "http.md").read_text()
    assert latest_metrics([event]) == {"qat": {3: line.values}}


def test_the_table_of_endpoints_is_whole(tmp_path: Path) -> None:
    paths = create_app(Settings(data_dir=tmp_path)).openapi()["paths"]
    offered = {f"{method.upper()} {path}" for path, methods in paths.items() for method in methods}
    told = re.findall(r"^\| `([A-Z]+ /[^`]*)` \|", (DOCS / "http.md").read_text(), re.MULTILINE)
    assert set(told) == offered
    assert len(told) == len(offered)


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


RESULTS = [line for line in (ROOT / "README.md").read_text().splitlines() if re.search(r"\| \d\d\.\d\d \|", line)]


@pytest.mark.parametrize("result", RESULTS)
def test_a_result_of_the_readme_is_one_of_the_benchmarks(result: str) -> None:
    model, _, *cells = [cell.strip() for cell in result.strip("| ").split("|")]
    figures = set(re.findall(r"\d+(?:\.\d+)?", " ".join(cells)))
    rows = [row for row in benchmark_rows() if model.removesuffix(" transformer") in row]
    assert any(figures <= set(re.findall(r"\d+(?:\.\d+)?", row)) for row in rows), figures


def test_the_readme_has_results() -> None:
    assert 6 <= len(RESULTS) <= 8


def test_the_rooms_of_the_engine_stand_in_the_order_that_their_imports_keep() -> None:
    page = (DOCS / "architecture.md").read_text().split("The rooms of the engine")[1].split("\n\n")[1]
    told = [row.split("`")[1].removesuffix("/").removesuffix(".py") for row in page.splitlines()[2:]]
    there = {path.stem for path in (ROOT / "worker" / "quantizer").iterdir() if not path.name.startswith("__")}
    assert set(told) == there
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    floors = next(found["layers"] for found in contracts if found.get("containers") == ["worker.quantizer"])
    height = {room.strip(): k for k, floor in enumerate(floors) for room in re.split(r"[|:]", floor)}
    assert [height[room] for room in told] == sorted(height.values())


def test_the_home_of_a_concept_is_there() -> None:
    table = (DOCS / "architecture.md").read_text().split("Where a concept has its home:")[1].split("\n\n")[1]
    files = re.findall(r"`([\w/]+\.py)`", table)
    assert len(files) > 15
    for file in files:
        places = (ROOT / file, ROOT / "worker/quantizer" / file, ROOT / "worker/quantizer/numerics" / file)
        assert any(path.is_file() for path in places), file

"""No module needs one that needs it back, whenever it imports it: at the top, for types alone, or within a function."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.source import ROOT, nodes

PACKAGES = ("quantmill", "service", "worker", "benchmarks")


def modules(root: Path) -> dict[str, Path]:
    """The source file of each module, by dotted name; a package is its ``__init__``."""
    found = {}
    for path in sorted(path for package in PACKAGES for path in (root / package).rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def imported(name: str, path: Path) -> Iterator[tuple[str, str]]:
    """(module, name within it or "") of every import in the file, wherever it stands."""
    package = name.split(".") if path.name == "__init__.py" else name.split(".")[:-1]
    for node in nodes(path):
        if isinstance(node, ast.Import):
            yield from ((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield from ((source, alias.name) for alias in node.names)


def import_graph(root: Path) -> dict[str, set[str]]:
    """The modules of ours that each module of ours imports."""
    files = modules(root)
    graph = {}
    for name, path in files.items():
        targets = (
            f"{source}.{part}" if f"{source}.{part}" in files else source for source, part in imported(name, path)
        )
        graph[name] = {target for target in targets if target in files and target != name}
    return graph


def cycles(graph: dict[str, set[str]]) -> list[list[str]]:
    """The sets of modules of which each reaches all others, in alphabetical order."""
    reached = {name: reachable(graph, name) for name in graph}
    found = {tuple(sorted(other for other in reached[name] if name in reached[other])) for name in graph}
    return sorted(list(group) for group in found if group)


def reachable(graph: dict[str, set[str]], start: str) -> set[str]:
    found: set[str] = set()
    waiting = [start]
    while waiting:
        new = graph[waiting.pop()] - found
        found |= new
        waiting += new
    return found


@pytest.mark.slow
def test_modules_do_not_import_each_other_in_a_cycle() -> None:
    assert cycles(import_graph(ROOT)) == []


@pytest.mark.parametrize(
    "importing",
    [
        "from service.b import thing",
        "import service.b",
        "from service import b",
        "from . import b",
        "from .b import thing",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from service.b import thing",
        "def late():\n    from service.b import thing",
    ],
)
def test_every_way_to_import_closes_a_cycle(tmp_path: Path, importing: str) -> None:
    (tmp_path / "service").mkdir()
    for name, text in {"__init__": "", "a": importing, "b": "import service.c", "c": "from service import a"}.items():
        (tmp_path / "service" / f"{name}.py").write_text(text)
    assert cycles(import_graph(tmp_path)) == [["service.a", "service.b", "service.c"]]

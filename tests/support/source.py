"""The source of this project, found and parsed once for all rules that are read off it."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def files(*packages: str) -> dict[str, Path]:
    """Every Python file of the packages, by its path below the root."""
    found = sorted(path for package in packages for path in (ROOT / package).rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): path for path in found}


@cache
def parsed(path: Path) -> ast.Module:
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


@cache
def nodes(path: Path) -> tuple[ast.AST, ...]:
    """Every node of a file's syntax tree."""
    return tuple(ast.walk(parsed(path)))


def trees(*packages: str) -> dict[str, tuple[ast.AST, ...]]:
    """The nodes of every file of the packages, by its path below the root."""
    return {name: nodes(path) for name, path in files(*packages).items()}

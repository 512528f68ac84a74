"""Words of Markdown."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    """A table; bars within cells are escaped."""
    lines = [head, ("---",) * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines) + "\n"


def code(text: str) -> str:
    """As code."""
    return f"`{text}`"


def json_code(value: Any) -> str:
    """A value as JSON, as code."""
    return code(json.dumps(value))


def prose(docstring: str) -> str:
    """A docstring's text: its double backticks are one in Markdown."""
    return docstring.replace("``", "`")

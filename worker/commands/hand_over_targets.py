"""Where results of a job go, read from a file or from standard input: URLs are no arguments for all to see."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

_STDIN = "-"
Targets = Annotated[
    str | None,
    typer.Option(
        metavar="FILE.json", help="A list of places that results are sent to, as HTTP takes it; - is standard input."
    ),
]


def given_targets(place: str | None) -> list[dict[str, Any]]:
    """The targets of a file; what is wrong with it is told without what stands in it.

    Raises:
        typer.BadParameter: it cannot be read, or holds no list of objects.
    """
    if place is None:
        return []
    try:
        text = sys.stdin.read() if place == _STDIN else Path(place).read_text()
        found = json.loads(text)
    except OSError as error:
        raise typer.BadParameter(f"cannot be read: {error.strerror}", param_hint="--targets") from None
    except ValueError:
        raise typer.BadParameter("this is no JSON.", param_hint="--targets") from None
    if not isinstance(found, list) or not all(isinstance(item, dict) for item in found):
        raise typer.BadParameter("a list of targets: [{...}]", param_hint="--targets")
    return found

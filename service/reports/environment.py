"""How templates are filled in, of reports and of the pages that show them; and JSON for people, cut short."""

from __future__ import annotations

import json
from typing import Any

from jinja2 import BaseLoader, Environment, StrictUndefined
from markupsafe import Markup

from service.contracts import changes
from service.reports import figures
from service.reports.figures import name, prose


def environment_of(loader: BaseLoader) -> Environment:
    """An environment of templates; whatever an expression gives is escaped, and first made fit to be shown."""
    made = Environment(
        loader=loader,
        autoescape=True,
        undefined=StrictUndefined,
        finalize=presentable,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {
        "name": name,
        "figure": lambda value, unit="": changes.typeset(figures.figure(value, unit)),
        "change": lambda value, unit: changes.typeset(figures.change(value, unit)),
        "size": figures.size,
        "seconds": figures.seconds,
        "percent": figures.percent,
        "milliseconds": figures.milliseconds,
        "typeset": changes.typeset,
    }
    return made


def presentable(value: Any) -> Any:
    """What every expression of a template goes through before it is escaped: no text gets around it."""
    if value is None:
        return figures.NOTHING
    return prose(value) if isinstance(value, str) and not isinstance(value, Markup) else value


_TEXT = 300
_ENTRIES = 40
_CHARACTERS = 60_000


def abridged_json(value: Any) -> tuple[str, bool]:
    """The value as indented JSON, and whether anything was left out of it.

    Args:
        value: ready for JSON; an entry of a config may be a graph of a megabyte.
    """
    short = _short(value)
    text = json.dumps(short, indent=2, ensure_ascii=True)
    if len(text) > _CHARACTERS:
        return f"{text[:_CHARACTERS]}\n…", True
    return text, short != value


def _short(value: Any) -> Any:
    if isinstance(value, str):
        return value if len(value) <= _TEXT else f"{value[:_TEXT]}… ({len(value):,} characters)"
    if isinstance(value, dict):
        kept = {_short(key): _short(entry) for key, entry in list(value.items())[:_ENTRIES]}
        more = len(value) - len(kept)
        return {**kept, "…": f"{more:,} more"} if more > 0 else kept
    if isinstance(value, list | tuple):
        some = [_short(entry) for entry in value[:_ENTRIES]]
        return [*some, f"… {len(value) - _ENTRIES:,} more"] if len(value) > _ENTRIES else some
    return value

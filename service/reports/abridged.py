"""JSON for people: long texts and lists of a config are cut short, and said to be."""

from __future__ import annotations

import json
from typing import Any

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

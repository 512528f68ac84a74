"""What an action has changed: fields with their old and new values, as text that is kept in the audit log."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pydantic import BaseModel, Field

# Templates may be megabytes in size; the audit log is to tell what was changed, not to keep it.
_MOST_CHANGES, _MOST_CHARACTERS = 20, 200


class FieldChange(BaseModel):
    """One field that an action has changed."""

    field: str
    before: str | None = Field(description="Old value as text, at most 200 characters; null: none, or not recorded.")
    after: str | None = Field(description="New value, likewise; both null: the value may be secret.")


def changes_between(
    before: Mapping[str, Any], after: Mapping[str, Any], *, hidden: frozenset[str] = frozenset()
) -> list[FieldChange]:
    """The fields that differ, those of records by their path, such as ``template.model_id``.

    Args:
        before: old values by field.
        after: new values; a field that is not in it has none any more.
        hidden: fields whose values may be secret: only that they differ is told.
    """
    old, new = dict(_flat(before)), dict(_flat(after))
    names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
    told = [
        FieldChange(field=_cut(name), before=None, after=None)
        if name in hidden
        else FieldChange(field=_cut(name), before=_text(old.get(name)), after=_text(new.get(name)))
        for name in names[:_MOST_CHANGES]
    ]
    if len(names) > _MOST_CHANGES:
        told.append(FieldChange(field=f"{len(names) - _MOST_CHANGES} more fields", before=None, after=None))
    return told


def kept(changes: Sequence[FieldChange]) -> str | None:
    """The text that is stored; None: nothing was changed."""
    return json.dumps([one.model_dump() for one in changes]) if changes else None


def read(text: str | None) -> list[FieldChange]:
    """What ``kept`` has made."""
    return [] if text is None else [FieldChange.model_validate(one) for one in json.loads(text)]


def _flat(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping) and value:
            yield from _flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value


def _text(value: Any) -> str | None:
    if value is None:
        return None
    return _cut(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_CHARACTERS else f"{text[: _MOST_CHARACTERS - 1]}…"

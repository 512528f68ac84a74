"""Base of every contract record: frozen, and closed to unknown keys."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict

# Key in a field's json_schema_extra: values of the knob that are worth a try; it stands in the JSON schema as well.
SEARCH_SPACE = "search"


class Contract(BaseModel):
    """A frozen record that refuses unknown keys."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True)


def declared_values(record: type[Contract], key: str) -> dict[str, tuple[Any, ...]]:
    """The values that stand under ``key`` in a field's json_schema_extra, by field, of the fields that have some."""
    found = {}
    for name, field in record.model_fields.items():
        extra = field.json_schema_extra
        values = extra.get(key) if isinstance(extra, dict) else None
        if isinstance(values, list):
            found[name] = tuple(values)
    return found


def search_space(record: type[Contract]) -> dict[str, tuple[Any, ...]]:
    """The values that are worth a try, by field, of the fields that declare some."""
    return declared_values(record, SEARCH_SPACE)

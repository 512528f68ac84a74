"""What the objects of a preset are made of: its document, with members of enumerations in place of their words."""

from __future__ import annotations

import copy
from typing import Any

from quantmill.quark import words
from quantmill.quark.preset_documents import DOCUMENTS, translatable
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import missing_preset


def preset_fields(name: str, *, suffix: str = "") -> dict[str, Any]:
    """The fields of the preset ``name`` of the API that marks its documents with ``suffix``; new objects each time.

    Raises:
        InvalidConfigError: there is none.
    """
    if name + suffix not in DOCUMENTS:
        raise InvalidConfigError(missing_preset(name), hint="docs/quark.md lists the presets.")
    return {key: _object(value) for key, value in copy.deepcopy(translatable(name + suffix)).items()}


def _object(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _object(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_object(item) for item in value]
    kind, _, member = value.partition(".") if isinstance(value, str) else ("", "", "")
    return getattr(words, kind)[member] if member and hasattr(words, kind) else value

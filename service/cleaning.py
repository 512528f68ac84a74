"""What no database can keep of a text, at the one door that all statements pass.

PostgreSQL refuses the character of number 0, also in JSON, and neither database takes half of a surrogate pair. Names
in models, details of errors and lines of logs come with either; a replacement character stands in its place.
"""

from __future__ import annotations

import json
import re
from typing import Any

from sqlalchemy import Engine, event

_UNFIT = re.compile("[\0\ud800-\udfff]")
_REPLACEMENT = "\ufffd"


def json_text(value: Any) -> str:
    """The document as JSON that either database reads back."""
    text = json.dumps(value)
    # as they are escaped; whole pairs are, too
    return json.dumps(_cleaned(value)) if "\\u0000" in text or "\\ud" in text else text


def clean_parameters(engine: Engine) -> None:
    """Have the texts of every statement cleaned before they are sent."""

    @event.listens_for(engine, "before_cursor_execute", retval=True)
    def _clean(_: Any, __: Any, statement: str, parameters: Any, ___: Any, ____: bool) -> tuple[str, Any]:
        return statement, _cleaned(parameters)


def _cleaned(value: Any) -> Any:
    if isinstance(value, str):
        # looks at a megabyte in no time
        return value if value.isascii() and "\0" not in value else _UNFIT.sub(_REPLACEMENT, value)
    if isinstance(value, dict):
        return {_cleaned(key): _cleaned(one) for key, one in value.items()}
    if type(value) in (list, tuple):
        return type(value)([_cleaned(one) for one in value])
    return value

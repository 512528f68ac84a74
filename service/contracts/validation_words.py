"""What pydantic says of a value, in the words of this project: "must be an integer, not 'x'", "is missing".

Every message is a predicate: a place, or the name of a field, stands before it. Checks of our own (``value_error`` and
the codes of ``PydanticCustomError``) are in these words already.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

_OBJECT, _LIST, _STRING = "must be an object", "must be a list", "must be a string"
_INTEGER, _NUMBER, _BOOLEAN = "must be an integer", "must be a number", "must be true or false"
_DATE, _TIME = "must be a date, such as 2026-01-31", "must be a time, such as 2026-01-31T12:00:00Z"
_DURATION = "must be a duration, such as 90 or PT1M30S"
_URL = "must be a URL, such as https://example.com/path"
_MULTIPLE_CHOICE = "must be {expected}"

# By type of error. ``{name}`` is what pydantic tells of the limit.
WORDS: dict[str, str] = {
    "missing": "is missing",
    "extra_forbidden": "is not a known key",
    "none_required": "must be null",
    "literal_error": _MULTIPLE_CHOICE,
    "enum": _MULTIPLE_CHOICE,
    "int_type": _INTEGER,
    "int_parsing": _INTEGER,
    "int_parsing_size": "must be an integer of fewer digits",
    "int_from_float": _INTEGER,
    "float_type": _NUMBER,
    "float_parsing": _NUMBER,
    "finite_number": "must be a finite number",
    "decimal_type": _NUMBER,
    "decimal_parsing": _NUMBER,
    "bool_type": _BOOLEAN,
    "bool_parsing": _BOOLEAN,
    "string_type": _STRING,
    "string_sub_type": _STRING,
    "string_unicode": "must be valid Unicode text",
    "bytes_type": _STRING,
    "list_type": _LIST,
    "tuple_type": _LIST,
    "set_type": _LIST,
    "frozen_set_type": _LIST,
    "iterable_type": _LIST,
    "dict_type": _OBJECT,
    "mapping_type": _OBJECT,
    "model_type": _OBJECT,
    "model_attributes_type": _OBJECT,
    "dataclass_type": _OBJECT,
    "date_type": _DATE,
    "date_parsing": _DATE,
    "date_from_datetime_parsing": _DATE,
    "date_from_datetime_inexact": _DATE,
    "datetime_type": _TIME,
    "datetime_parsing": _TIME,
    "datetime_from_date_parsing": _TIME,
    "datetime_object_invalid": _TIME,
    "timezone_aware": "must have a time zone, such as 2026-01-31T12:00:00Z",
    "time_delta_type": _DURATION,
    "time_delta_parsing": _DURATION,
    "path_type": "must be a path",
    "is_instance_of": "must be a {class}",
    "callable_type": "must be callable",
    "url_type": _URL,
    "url_parsing": _URL,
    "json_type": _STRING,
    "json_invalid": "is not JSON: {error}",
}
# Limits: the value itself need not be repeated, and may be long or secret.
LIMITS: dict[str, str] = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "multiple_of": "must be a multiple of {multiple_of}",
    "string_too_short": "must have at least {min_length} characters",
    "string_too_long": "must have at most {max_length} characters",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "bytes_too_short": "must have at least {min_length} bytes",
    "bytes_too_long": "must have at most {max_length} bytes",
    "too_short": "must have at least {min_length} items, not {actual_length}",
    "too_long": "must have at most {max_length} items, not {actual_length}",
    "url_scheme": "must start with {expected_schemes}",
    "url_too_long": "must have at most {max_length} characters",
}
# What a value is not repeated behind: there is none, or it may carry a secret.
_BARE = frozenset({"missing", "extra_forbidden", "json_invalid", "url_parsing", "url_type", "string_unicode"})
_NUMERIC_LIMITS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "multiple_of"})
_LONGEST_SHOWN = 60


def message_of(item: Mapping[str, Any]) -> str:
    """The message of one of pydantic's ``ErrorDetails``."""
    kind = str(item["type"])
    words = WORDS.get(kind) or LIMITS.get(kind)
    if words is None:
        return str(item["msg"]).removeprefix("Value error, ").removeprefix("Assertion failed, ")
    said = words.format_map({name: _plain(value) for name, value in item.get("ctx", {}).items()})
    if "input" not in item or kind in _BARE or (kind in LIMITS and kind not in _NUMERIC_LIMITS):
        return said
    return f"{said}, not {_shown(item['input'])}"


def _plain(limit: Any) -> Any:
    """A limit of a number without the ".0" that it has where the field is a float."""
    return int(limit) if isinstance(limit, float) and limit.is_integer() else limit


def _shown(value: Any) -> str:
    """A value in a few characters, as JSON writes it but for quotation marks."""
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple | set | frozenset):
        return "a list"
    if isinstance(value, str):
        return repr(value if len(value) <= _LONGEST_SHOWN else f"{value[:_LONGEST_SHOWN]}...")
    if value is None or isinstance(value, bool | int | float):
        told = json.dumps(value)
        return told if len(told) <= _LONGEST_SHOWN else f"{told[:_LONGEST_SHOWN]}..."
    return f"a {type(value).__name__}"

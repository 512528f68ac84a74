"""Quark's objects as the JSON that ``service.quark`` reads. Nothing is translated here."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

from service.contracts.errors import InvalidConfigError

# By the name under which the document mentions it.
Functions = dict[str, Callable[..., Any]]


class Documented(ABC):
    """Something of Quark's that has a JSON form."""

    @abstractmethod
    def document(self, functions: Functions) -> Any:
        """The JSON form; Python functions within go into ``functions`` and stand in it by name."""

    def to_dict(self) -> Any:
        """The JSON form, as Quark's ``to_dict`` gives it; functions stand in it by name."""
        return self.document({})


def plain(value: Any, functions: Functions, *, at: str = "") -> Any:
    """A value of a config, ready for JSON: enumerations by class and member, functions by name.

    Raises:
        InvalidConfigError: it has no JSON form.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, Documented):
        return value.document(functions)
    if isinstance(value, Mapping):
        return {str(key): plain(item, functions, at=f"{at}/{key}") for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, functions, at=f"{at}/{k}") for k, item in enumerate(value)]
    if hasattr(value, "tolist"):  # numbers and arrays of numpy
        return plain(value.tolist(), functions, at=at)
    if callable(value) and not isinstance(value, type):
        return _named(value, functions)
    raise InvalidConfigError(
        f"{at or 'a value'} cannot be understood: {type(value).__name__}",
        hint="Give numbers, texts, lists, dicts, the enumerations of quantmill.quark, or a function.",
    )


def _named(function: Callable[..., Any], functions: Functions) -> str:
    """The name of a function in the document; another one of the same name gets a number."""
    known = next((name for name, found in functions.items() if found is function), None)
    if known is not None:
        return known
    word = re.sub(r"[^A-Za-z0-9_]+", "", getattr(function, "__name__", type(function).__name__)).lstrip("_")
    word = word[:56] or "function"
    taken, number = word, 1
    while taken in functions:
        number += 1
        taken = f"{word}_{number}"
    functions[taken] = function
    return taken

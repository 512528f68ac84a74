"""How much a config may hold: what multiplies is counted before anything is computed from it.

A document within these bounds is validated in a fraction of a second whatever it says, and larger ones are refused
after a look at no more of them than that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic_core import PydanticCustomError

from service.contracts.pointers import below

# Selectors in include, in exclude, and overrides; each.
MOST_SELECTORS = 500
# Names within one selector, and characters of a name.
MOST_NAMES, MOST_NAME_CHARS = 1000, 4096
# Expressions in a config: compiling one may take half a millisecond.
MOST_REGEXES = 100
# Ranges by tensor.
MOST_RANGES = 10_000
# Values in a document beside its ranges, and keys of one object.
MOST_VALUES, MOST_KEYS = 20_000, 500
_RANGES = "tensor_ranges"

# Key in the context of a PydanticCustomError: pointer, from the validated field on, to the part of it that is wrong.
BELOW = "below"


def require_bounded(document: Mapping[str, Any], *, pointer: str = "") -> None:
    """Refuse a config that is too large to be looked into, in time that does not grow with it.

    Args:
        document: the config.
        pointer: of it, from the validated field on.

    Raises:
        PydanticCustomError: ``too-large``; says of what there is too much, and where.
    """
    values = regexes = 0
    todo: list[tuple[str, Any]] = [(pointer, document)]
    while todo:
        at, found = todo.pop()
        if isinstance(found, Mapping):
            wide = at == below(pointer, _RANGES)
            if len(found) > (MOST_RANGES if wide else MOST_KEYS):
                most = MOST_RANGES if wide else MOST_KEYS
                raise _too_large(at, f"{len(found)} keys; at most {most} are taken here")
            if wide:
                continue
            regexes += "regex" in found
            if any(isinstance(key, str) and len(key) > MOST_NAME_CHARS for key in found):
                raise _too_large(at, f"a key of more than {MOST_NAME_CHARS} characters")
            inside = [(below(at, key), value) for key, value in found.items()]
        elif isinstance(found, list | tuple):
            inside = [(below(at, place), value) for place, value in enumerate(found[: MOST_VALUES + 1])]
        else:
            continue
        values += len(inside)
        if values > MOST_VALUES:
            told = f"the config holds more than {MOST_VALUES} values; one regex may name many nodes"
            raise _too_large(at, told)
        if regexes > MOST_REGEXES:
            raise _too_large(at, f"the config holds more than {MOST_REGEXES} regular expressions; join some by |")
        todo += inside


def _too_large(at: str, told: str) -> PydanticCustomError:
    return PydanticCustomError("too-large", "{told}", {"told": told, BELOW: at})

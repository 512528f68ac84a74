"""What a document is refused with or holds, and documents of any form."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from service.contracts.config import parse_config
from service.contracts.errors import InvalidConfigError

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=8,
)


def refused(config: Any, pointer: str = "/config") -> InvalidConfigError:
    """The error of a config that is refused."""
    with pytest.raises(InvalidConfigError) as caught:
        parse_config(config, pointer=pointer)
    assert caught.value.code == "invalid-config"
    assert caught.value.hint
    assert caught.value.errors
    return caught.value


def problems(config: Any, pointer: str = "/config") -> list[tuple[str, str]]:
    """Pointer and words of every problem."""
    return [(problem.pointer, problem.message) for problem in refused(config, pointer).errors]


def contains(whole: Any, part: Any) -> bool:
    """True if ``part`` stands in ``whole``; objects of ``whole`` may hold more keys."""
    if isinstance(part, dict):
        return all(key in whole and contains(whole[key], value) for key, value in part.items())
    if isinstance(part, list | tuple):
        return len(whole) == len(part) and all(map(contains, whole, part))
    return bool(whole == part)


def points_into(document: Any, pointer: str) -> bool:
    """True if every step but the last is there; the last may be a key that is missing."""
    here = document
    parts = [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]
    for number, part in enumerate(parts):
        if isinstance(here, list) and part.isdigit() and int(part) < len(here):
            here = here[int(part)]
        elif isinstance(here, dict) and part in here:
            here = here[part]
        else:
            return number == len(parts) - 1 and isinstance(here, dict)
    return True

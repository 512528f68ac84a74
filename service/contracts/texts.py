"""Texts that people give: names and the like."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import AfterValidator, Field

_BETWEEN = dict.fromkeys(map(ord, "\n\r\t"), " ")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plain_text(value: str) -> str:
    """Refuse control characters, which databases and terminals disagree about."""
    if _CONTROL.search(value):
        raise ValueError("must not hold control characters")
    return value


def text_of_lines(value: str) -> str:
    """Refuse control characters, but for what parts lines and columns."""
    plain_text(value.translate(_BETWEEN))
    return value


Text = Annotated[str, Field(min_length=1, max_length=200), AfterValidator(plain_text)]
Description = Annotated[str, Field(max_length=4000), AfterValidator(text_of_lines)]

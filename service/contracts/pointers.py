"""JSON pointers (RFC 6901)."""

from __future__ import annotations


def below(pointer: str, *parts: str | int) -> str:
    """The pointer of something within what stands at ``pointer``."""
    return pointer + "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)

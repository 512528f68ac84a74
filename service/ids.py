"""Public identifiers: a type prefix and a UUIDv7 in lowercase base32, so that their order is the order of creation."""

from __future__ import annotations

import re
import secrets
import time
from typing import Literal

Prefix = Literal[
    "job", "mdl", "dst", "upl", "art", "ins", "req", "key", "whk", "evt", "dlv", "sch", "run", "bat", "hov", "aud"
]

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
_LENGTH = 26
_PATTERN = re.compile(rf"(job|mdl|dst|upl|art|ins|req|key|whk|evt|dlv|sch|run|bat|hov|aud)_[{_ALPHABET}]{{{_LENGTH}}}")


def new_id(prefix: Prefix) -> str:
    """A fresh id such as ``job_01jd3v8g5z7k2m4n6p8q0r1s2t``."""
    return f"{prefix}_{_base32(_uuid7())}"


def is_id(value: str, prefix: Prefix) -> bool:
    """True if ``value`` is spelled as an id of this kind; whether it exists is another question."""
    return _PATTERN.fullmatch(value) is not None and value.startswith(prefix + "_")


def _uuid7() -> int:
    """UUIDv7 (RFC 9562): 48 bits of milliseconds, version, 12 bits of their fraction (method 3), variant, 62 random."""
    milliseconds, rest_nanoseconds = divmod(time.time_ns(), 1_000_000)
    fraction = (rest_nanoseconds << 12) // 1_000_000
    return (milliseconds & (2**48 - 1)) << 80 | 7 << 76 | fraction << 64 | 2 << 62 | secrets.randbits(62)


def _base32(number: int) -> str:
    return "".join(_ALPHABET[number >> 5 * place & 31] for place in reversed(range(_LENGTH)))

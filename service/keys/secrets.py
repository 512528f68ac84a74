"""Format of keys, hashing of their secrets, and detection of weak secrets.

A key is ``qm_ID_SECRET``: the 26 characters of its row's id, by which it is found, and 256 random bits. Of these the
database keeps HMAC-SHA256 under a pepper that it does not know: whoever has its rows alone can check no guess. So many
random bits need no slow hash (OWASP Password Storage, section on peppering).
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from dataclasses import dataclass, field

from service.ids import is_id, new_id
from service.keys.local import SECRET_BYTES
from service.principal import PEPPER_ID_LENGTH

PREFIX = "qm_"
SHORTEST_SECRET = 16
_FEWEST_CHARACTERS = 8
_PLACEHOLDERS = re.compile(
    r"change[-_ ]?me|choose[-_ ]?(one|me)?|your[-_ ]|example|password|passwort|placeholder|replace[-_ ]|insert[-_ ]|"
    r"todo|default|secret[-_ ]?key|api[-_ ]?key|letmein|qwerty|12345|x{4}|\.\.\.|<.*>|\$\{",
    re.IGNORECASE,
)
_SENDABLE = re.compile(r"[\x21-\x7e]+")


@dataclass(frozen=True)
class NewKey:
    """A key that was made just now: the only time that its text is there."""

    id: str
    text: str = field(repr=False)
    secret: str = field(repr=False)


def make_key() -> NewKey:
    """A key of 256 random bits."""
    key_id, secret = new_id("key"), secrets.token_urlsafe(SECRET_BYTES)
    return NewKey(key_id, f"{PREFIX}{key_id.removeprefix('key_')}_{secret}", secret)


def parts_of(text: str) -> tuple[str, str] | None:
    """The id and the secret of a key; None for what is not spelled as one."""
    body, _, secret = text.removeprefix(PREFIX).partition("_")
    key_id = f"key_{body}"
    return (key_id, secret) if text.startswith(PREFIX) and is_id(key_id, "key") and secret else None


def hash_of(secret: str, pepper: str) -> str:
    """What is kept of a secret: 64 hexadecimal digits."""
    return hmac.digest(pepper.encode(), secret.encode(), "sha256").hex()


def pepper_id(pepper: str) -> str:
    """By which it is told which pepper a row was made with; nothing can be concluded from it."""
    return hashlib.sha256(b"quantmill pepper id\0" + pepper.encode()).hexdigest()[:PEPPER_ID_LENGTH]


def weakness(secret: str) -> str | None:
    """Why ``secret`` must not guard a service; None if it may."""
    if not secret.strip():
        return "it is blank"
    if _SENDABLE.fullmatch(secret) is None:
        return "it contains spaces or characters that are not allowed in a header"
    if len(secret) < SHORTEST_SECRET:
        return f"it has {len(secret)} characters, fewer than {SHORTEST_SECRET}"
    if _PLACEHOLDERS.search(secret):
        return "it looks like a placeholder"
    if len(set(secret)) < _FEWEST_CHARACTERS:
        return f"it has fewer than {_FEWEST_CHARACTERS} different characters"
    return None

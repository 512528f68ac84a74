"""How keys are spelled, what is kept of their secrets, and which secrets are none.

A key is ``qm_ID_SECRET``: the 26 characters of its row's id, by which it is found, and 256 random bits. Of these the
database keeps HMAC-SHA256 under a pepper that it does not know: whoever has its rows alone can check no guess. So many
random bits need no slow hash (OWASP Password Storage, section on peppering).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import re
import secrets
from dataclasses import dataclass

from service.principal import PEPPER_ID_LENGTH
from service.resources import is_id, new_id

PREFIX = "qm_"
SECRET_BYTES = 32
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
    text: str
    secret: str


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
        return "it holds blanks or characters that no header carries"
    if len(secret) < SHORTEST_SECRET:
        return f"it has {len(secret)} characters, fewer than {SHORTEST_SECRET}"
    if _PLACEHOLDERS.search(secret):
        return "it reads like a placeholder"
    if len(set(secret)) < _FEWEST_CHARACTERS:
        return f"it has fewer than {_FEWEST_CHARACTERS} different characters"
    return None


# Signed tokens in place of a key: for event streams, which send no headers, the pages of one browser, shared reports.
#
# A token is good for one place and a time, and tells whose it is. It is signed, not stored: HMAC-SHA256 over holder,
# place and end, under a key derived from the installation's secret and the purpose, so that none is good for another.

STREAM_SECONDS = 300
SESSION_SECONDS = 12 * 3600
DAY_SECONDS = 24 * 3600
MOST_CHARS = 1024
_MAC_BYTES = 32


@dataclass(frozen=True)
class TokenHolder:
    """Whom a token stands for; see Principal."""

    tenant_id: str
    actor: str


class Tokens:
    """Makes and reads tokens; processes with the same secret read each other's.

    Args:
        secret: of the installation.
        purpose: what they are for.
    """

    def __init__(self, secret: str, purpose: str) -> None:
        self._key = hashlib.sha256(f"{purpose}:{secret}".encode()).digest()

    def make(self, holder: TokenHolder, path: str, ends_at: float) -> str:
        """A token for ``path``, good until ``ends_at`` (UTC, seconds since 1970)."""
        payload = json.dumps([holder.tenant_id, holder.actor, path, ends_at]).encode()
        return base64.urlsafe_b64encode(self._mac(payload) + payload).decode().rstrip("=")

    def read(self, token: str, path: str, now: float) -> TokenHolder | None:
        """Whom the token stands for; None: it is none of ours, of another path, or has ended."""
        read = self._read(token)
        if read is None:
            return None
        holder, of_path, ends_at = read
        return holder if of_path == path and now < ends_at else None

    def claimed(self, token: str) -> TokenHolder | None:
        """Whom a token of ours was made for, whether or not it is still good; None: it is none of ours."""
        read = self._read(token)
        return None if read is None else read[0]

    def place(self, token: str) -> str | None:
        """What a token of ours was made for, whether or not it is still good; None: it is none of ours."""
        read = self._read(token)
        return None if read is None else read[1]

    def _read(self, token: str) -> tuple[TokenHolder, str, float] | None:
        try:
            raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        except (binascii.Error, ValueError):
            return None
        mac, payload = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(payload)):
            return None
        tenant_id, actor, of_path, ends_at = json.loads(payload)
        return TokenHolder(tenant_id, actor), of_path, ends_at

    def guard(self, token: str) -> str:
        """What only the pages that were made for a token know: it comes back with what their forms send."""
        return hmac.digest(self._key, b"guard:" + token.encode(), "sha256").hex()

    def _mac(self, payload: bytes) -> bytes:
        return hmac.digest(self._key, payload, "sha256")

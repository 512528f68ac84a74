"""The principal of a key: looked up by id, cached briefly."""

from __future__ import annotations

import hashlib
import hmac
import logging
import math
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import cast

from service.db import Database
from service.keys import repository
from service.keys.files import LOCAL_KEY_FILE, own_secret
from service.keys.guesses import Guesses, refusal
from service.keys.schemas import PepperMissingError
from service.keys.secrets import hash_of, parts_of, pepper_id
from service.keys.service import pepper_of
from service.keys.tokens import DAY_SECONDS, SESSION_SECONDS, STREAM_SECONDS, TokenHolder, Tokens
from service.principal import DEFAULT_TENANT, INSTALLATION_KEY, LOCAL_KEY, NO_KEY, Scope
from service.process import is_loopback
from service.quotas.addresses import place_of
from service.quotas.buckets import SharedTokens
from service.settings import Settings
from service.tables import ApiKey

# A key that is revoked is good for so long yet, in a process that has just seen it.
REMEMBERED_SECONDS = 2.0
REMEMBERED_KEYS = 10_000
# How exactly it is known when a key was last used.
USE_NOTED_SECONDS = 60.0
# How old the list of keys may be that it is looked at where an address has no guesses left.
IDS_SECONDS = 5.0
# What a secret is compared with where no key has the id: both refusals take the same time.
_NO_HASH = "0" * 64
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Holder:
    """Whom a key stands for; see Principal."""

    tenant_id: str
    actor: str
    scope: Scope


_OPEN = Holder(DEFAULT_TENANT, NO_KEY, "operator")


class Keyring:
    """The keys of one API process.

    Args:
        settings: give the installation's own keys and the pepper.
        database: has the tenants' keys.
        tokens: where wrong keys of all processes are counted; None: this process is the only one.
    """

    def __init__(self, settings: Settings, database: Database, tokens: SharedTokens | None = None) -> None:
        self._database = database
        self._open = settings.keyless
        self._fixed = _fixed_keys(settings)
        try:
            self._pepper: str | None = pepper_of(settings)
        except PepperMissingError:
            self._pepper = None  # an installation of one key needs none; see service.keys.start
        secret = self._pepper or settings.signing_secret
        self._streams, self._sessions = Tokens(secret, "stream"), Tokens(secret, "session")
        self._shares = Tokens(secret, "share")
        self._lock = threading.Lock()
        self._seen: OrderedDict[bytes, tuple[float, Holder]] = OrderedDict()
        self._noted: dict[str, float] = {}
        self._guesses = Guesses(tokens)
        self._ids: tuple[float, frozenset[str]] = (-math.inf, frozenset())

    def remembered(self, text: str | None) -> Holder | None:
        """Whom the key stands for, where that takes no look into the database; None: it does, or nobody."""
        if self._open and (text is None or parts_of(text) is None):
            return _OPEN
        if text is None:
            return None
        for fixed, holder in self._fixed:
            if hmac.compare_digest(text.encode(), fixed.encode()):
                return holder
        with self._lock:
            at, holder = self._seen.get(_digest(text), (0.0, _OPEN))
        return holder if at and time.monotonic() - at < REMEMBERED_SECONDS else None

    def look_up(self, text: str | None, address: str) -> Holder | None:
        """Whom the key stands for, by the database; None: nobody.

        Raises:
            TooManyWrongKeysError: too many wrong ones have come from the address, and this may be one more.
        """
        if text is None or self._guesses.known(_digest(text)):
            return None
        place = self._place(text, place_of(address))
        holder = self._looked_up(text)
        if holder is None:
            self._guesses.was_wrong(_digest(text))
            return None
        if place is not None:
            self._guesses.was_right(place)
        self._remember(text, holder)
        return holder

    def _place(self, text: str, address: str) -> str | None:
        """Where this is counted as a guess: at the address, or, where that has none left, for the key of this id; None:
        nowhere, the key was good before.
        """
        if _digest(text) in self._seen:
            return None
        wait_seconds = self._guesses.take(address)
        if not wait_seconds:
            return address
        key_id = (parts_of(text) or ("", ""))[0]
        place = f"{address} {key_id}"
        if key_id in self._live_ids():
            wait_seconds = self._guesses.take(place)
        if wait_seconds:
            raise refusal(wait_seconds)
        return place

    def _live_ids(self) -> frozenset[str]:
        """Ids of all keys, as they were a moment ago: guesses cost no look each."""
        at, ids = self._ids
        if time.monotonic() - at > IDS_SECONDS:
            with self._database.read() as session:
                ids = repository.live_ids(session)
            self._ids = time.monotonic(), ids
        return ids

    def _looked_up(self, text: str) -> Holder | None:
        parts = parts_of(text)
        if parts is None or self._pepper is None:
            return None
        key_id, secret = parts
        row = self._live(key_id)
        kept = _NO_HASH if row is None else row.secret_hash
        good = hmac.compare_digest(hash_of(secret, self._pepper), kept)
        if row is None or not good:
            if row is not None and row.pepper_id != pepper_id(self._pepper):
                log.warning("keys.other_pepper key_id=%s: it was made with another QUANTMILL_KEY_PEPPER", key_id)
            return None
        return Holder(row.tenant_id, row.id, cast(Scope, row.scope))

    def stream_token(self, tenant_id: str, actor: str, path: str) -> tuple[str, float]:
        """A token that reads the event stream at ``path`` as ``actor``, and when it ends (UTC, seconds since 1970)."""
        ends_at = float(int(time.time()) + STREAM_SECONDS)
        return self._streams.make(TokenHolder(tenant_id, actor), path, ends_at), ends_at

    def look_up_stream(self, token: str, path: str) -> Holder | None:
        """Whom a stream's token stands for, if its key is still good; None: nobody."""
        found = self._streams.read(token, path, time.time())
        if found is None:
            return None
        if found.actor.startswith("key_") and self._live(found.actor) is None:
            return None
        return Holder(found.tenant_id, found.actor, "read")

    def session_token(self, text: str, address: str) -> tuple[str, float] | None:
        """A token for a browser, for what the key may do, and when it ends; None: the key is none. Asks the database.

        It is good for as long as the key is.

        Raises:
            TooManyWrongKeysError: as ``look_up``.
        """
        holder = self.remembered(text) or self.look_up(text, address)
        if holder is None or holder.actor == NO_KEY:
            return None
        ends_at = float(int(time.time()) + SESSION_SECONDS)
        place = self._fingerprints().get(holder.actor, holder.actor)
        return self._sessions.make(TokenHolder(holder.tenant_id, holder.actor), place, ends_at), ends_at

    def look_up_session(self, token: str) -> Holder | None:
        """Whom a browser's token stands for, if its key is still good; None: nobody. Asks the database."""
        claimed = self._sessions.claimed(token)
        if claimed is None:
            return None
        fixed = self._fingerprints().get(claimed.actor)
        found = self._sessions.read(token, fixed or claimed.actor, time.time())
        if found is None:
            return None
        if fixed is not None:
            return next((holder for _, holder in self._fixed if holder.actor == found.actor), None)
        row = self._live(found.actor)
        return None if row is None else Holder(row.tenant_id, row.id, cast(Scope, row.scope))

    def share_token(self, tenant_id: str, actor: str, job_id: str, days: int) -> tuple[str, float]:
        """A token that reads the report of one job, and when it ends; it is good for as long as the actor's key is."""
        ends_at = float(int(time.time()) + days * DAY_SECONDS)
        return self._shares.make(TokenHolder(tenant_id, actor), self._shared(actor, job_id), ends_at), ends_at

    def look_up_share(self, token: str) -> tuple[str, str] | None:
        """The tenant and the job whose report a token reads; None: none, or none any more. Asks the database."""
        place = self._shares.place(token)
        if place is None:
            return None
        found = self._shares.read(token, place, time.time())
        job_id = place.partition(" ")[0]
        if found is None or place != self._shared(found.actor, job_id):
            return None
        if found.actor == NO_KEY:
            return (found.tenant_id, job_id) if self._open else None
        if found.actor not in self._fingerprints() and self._live(found.actor) is None:
            return None
        return found.tenant_id, job_id

    def _shared(self, actor: str, job_id: str) -> str:
        return f"{job_id} {self._fingerprints().get(actor, actor)}"

    def guard(self, session_token: str) -> str:
        """What the forms of a browser's pages have to send along; see ``Tokens.guard``."""
        return self._sessions.guard(session_token)

    def _fingerprints(self) -> dict[str, str]:
        """Of the keys that no row stands for: another key in the settings ends the sessions of the old one."""
        return {holder.actor: f"{holder.actor}:{_digest(text).hex()[:32]}" for text, holder in self._fixed}

    def due(self, actor: str) -> bool:
        """Whether it is time to note that the key is used; the caller then does."""
        if not actor.startswith("key_"):
            return False
        now = time.monotonic()
        with self._lock:
            if now - self._noted.get(actor, -USE_NOTED_SECONDS) < USE_NOTED_SECONDS:
                return False
            if len(self._noted) >= REMEMBERED_KEYS:
                self._noted.clear()
            self._noted[actor] = now
        return True

    def note_used(self, actor: str) -> None:
        """Write that the key was used just now."""
        with self._database.write() as session:
            repository.note_used(session, actor)

    def _live(self, key_id: str) -> ApiKey | None:
        """The key of this id, while it is good."""
        with self._database.read() as session:
            return repository.live(session, key_id)

    def _remember(self, text: str, holder: Holder) -> None:
        with self._lock:
            self._seen[_digest(text)] = (time.monotonic(), holder)
            self._seen.move_to_end(_digest(text))
            if len(self._seen) > REMEMBERED_KEYS:
                self._seen.popitem(last=False)


def _fixed_keys(settings: Settings) -> tuple[tuple[str, Holder], ...]:
    """The keys of which there is no row: the one of the settings, or that of the file on this host."""
    if settings.api_key is not None:
        return ((settings.api_key.get_secret_value(), Holder(DEFAULT_TENANT, INSTALLATION_KEY, "operator")),)
    if settings.open or not is_loopback(settings.host):
        return ()
    return ((own_secret(settings.data_dir / LOCAL_KEY_FILE), Holder(DEFAULT_TENANT, LOCAL_KEY, "operator")),)


def _digest(text: str) -> bytes:
    """Keys themselves are not kept in memory for longer than a request."""
    return hashlib.sha256(text.encode()).digest()

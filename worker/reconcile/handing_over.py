"""Sends files and facts of jobs to places of their clients; loaded once there is something to send.

At least once, and the same bytes each time: see ``sending``. The lease of a hand-over is short, and renewed between the
blocks of its file: where this process ends, another one goes on soon, while the URL is still good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from sqlalchemy.orm import Session

from service.attestations import repository as attestations
from service.attestations.errors import SigningKeyUnreadableError, SigningUnavailableError
from service.attestations.making import attest
from service.db import Database
from service.egress.allowed import parse_allowed
from service.egress.answers import Answer
from service.egress.errors import EgressError
from service.egress.retries import parse_schedule
from service.egress.sending import Bounds, Egress, Reply, Streamed
from service.failpoints import reach
from service.files.serving import open_file
from service.hand_overs import repository
from service.hand_overs.errors import ArtifactNotThereError, HandOverUnreadableError
from service.hand_overs.repository import Claimed
from service.hand_overs.schemas import ATTESTATION, MOST_URL_CHARACTERS
from service.hand_overs.secrets import Place, Vault
from service.hand_overs.settling import settle
from service.settings import Settings
from service.storage import FileStore, StoredFileCorruptError, StoredFileMissingError
from worker.lease import DATABASE_AWAY
from worker.reconcile.sending import Pool, PooledSender, answered, note_while_leased, words_of

log = logging.getLogger(__name__)

# Of one reconciler, some of them for one tenant: each may carry a whole model.
SLOTS, MOST_OF_TENANT = 16, 4
# A request has so much longer as its body takes at this rate; what is slower is tried again.
SLOWEST_BYTES_PER_SECOND = 256 * 1024
# What one PUT to S3 may carry.
MOST_SENT_BYTES = 5 * 1024**3
_REPLY_BYTES = 4096
_FAULTS = (
    EgressError, HandOverUnreadableError, ArtifactNotThereError, StoredFileMissingError, StoredFileCorruptError,
    SigningKeyUnreadableError, SigningUnavailableError,
)  # fmt: skip
_FINAL_STATUS = 422
_Noted = TypeVar("_Noted")


class _BrokenOffError(Exception):
    """An attempt is left to another process: this one ends, or holds it no more."""


class Carrier(PooledSender):
    """Hand-overs of one process, some at a time.

    Args:
        settings: bounds and pauses; those of webhooks.
        database: where the outbox is.
        store: where files are.
        vault: reads the URLs.
        egress: sends; its bounds are those of a request without a body. Default: within those of the settings.
        on_end: called, in any thread, whenever one has come to its end and there is room for another.
    """

    def __init__(
        self,
        settings: Settings,
        database: Database,
        store: FileStore,
        vault: Vault,
        *,
        egress: Egress | None = None,
        on_end: Callable[[], None] = lambda: None,
    ) -> None:
        self._settings = settings
        self._database = database
        self._store = store
        self._vault = vault
        bounds = Bounds(seconds=settings.webhook_seconds)
        self._egress = egress or Egress(parse_allowed(settings.egress_allowed), bounds)
        self._schedule = parse_schedule(settings.webhook_retry_seconds)
        # A step of the request, see ``Bounds``, and as long again as any worker is waited for.
        self._lease_seconds = self._egress.bounds.seconds + settings.lease_seconds
        self._pool = Pool("hand_over", SLOTS, self._claim, self._carry, on_end)

    def _claim(self, free: int) -> list[Claimed]:
        with self._database.write() as session:
            return repository.claim(
                session, free=free, most_of_tenant=MOST_OF_TENANT, lease_seconds=self._lease_seconds
            )

    def _carry(self, claimed: Claimed, began: float) -> None:
        if time.monotonic() - began > self._settings.lease_seconds:
            # this process was frozen: the lease may end within the request
            log.warning("hand_over.late hand_over_id=%s", claimed.id)
            return
        about = f"hand_over hand_over_id={claimed.id}"
        try:
            answer = answered(lambda: self._send(claimed, began), about, passing=(_BrokenOffError,))
        except _BrokenOffError as error:
            log.warning("hand_over.left hand_over_id=%s: %s", claimed.id, error)
            self._note(lambda session: repository.release(session, claimed), about)
            return
        reach("after_hand_over_sent")
        fate = self._note(lambda session: settle(session, claimed, answer, schedule=self._schedule), about)
        told = log.info if fate == "done" else log.warning
        told(
            "hand_over.%s hand_over_id=%s job_id=%s kind=%s host=%s attempt=%d status=%s error=%s",
            fate, claimed.id, claimed.job_id, claimed.kind, claimed.host, claimed.attempt, answer.status, answer.error,
        )  # fmt: skip

    def _note(self, note: Callable[[Session], _Noted], about: str) -> _Noted:
        began = time.monotonic()
        return note_while_leased(
            self._database, note, began=began, lease_seconds=self._settings.lease_seconds, about=about
        )

    def _send(self, claimed: Claimed, began: float) -> Answer:
        try:
            place = self._vault.open(claimed.id, claimed.sealed)
            reply = self._posted(claimed, place) if claimed.kind == "post" else self._put(claimed, place, began)
        except _FAULTS as error:
            return Answer(None, error.code, words_of(error), final=error.status == _FINAL_STATUS)
        return Answer(reply.status, None, reply.body.decode(errors="replace"), reply.headers)

    def _posted(self, claimed: Claimed, place: Place) -> Reply:
        own = {"Content-Type": "application/json", "User-Agent": "quantmill"}
        given = {name.casefold() for name in place.headers}
        headers = {name: value for name, value in own.items() if name.casefold() not in given} | place.headers
        body = (claimed.payload or "").encode()
        return self._within(len(body)).send("POST", place.url, headers=headers, body=body)

    def _put(self, claimed: Claimed, place: Place, began: float) -> Reply:
        with self._body(claimed, began) as body:
            return self._within(body.size_bytes).send("PUT", place.url, headers=place.headers, body=body)

    def _within(self, size_bytes: int) -> Egress:
        """Sends a body of so many bytes."""
        step_seconds = self._egress.bounds.seconds
        seconds = step_seconds + size_bytes / SLOWEST_BYTES_PER_SECOND
        bounds = Bounds(seconds, MOST_SENT_BYTES, _REPLY_BYTES, MOST_URL_CHARACTERS, step_seconds)
        return replace(self._egress, bounds=bounds)

    @contextmanager
    def _body(self, claimed: Claimed, began: float) -> Iterator[Streamed]:
        """The file, read as it is sent.

        Raises:
            ArtifactNotThereError: it is gone since.
            StoredFileMissingError, StoredFileCorruptError: its bytes are not there, or not its own.
            SigningUnavailableError, SigningKeyUnreadableError: of an attestation; the installation cannot sign.
        """
        if claimed.artifact == ATTESTATION:
            envelope = self._attestation(claimed).encode()
            yield Streamed(len(envelope), iter((envelope,)))
        elif claimed.sha256 is None or claimed.size_bytes is None:
            raise _gone(claimed)
        else:
            file = open_file(self._database, self._store, claimed.sha256, claimed.size_bytes)
            with file.stream:
                yield Streamed(claimed.size_bytes, self._held(claimed, file.blocks(), began))

    def _held(self, claimed: Claimed, blocks: Iterator[bytes], renewed: float) -> Iterator[bytes]:
        """The blocks, as long as the hand-over is this process's, which does not have to end.

        Raises:
            _BrokenOffError: it is not, or has to.
        """
        for block in blocks:
            if self._pool.interrupted:
                raise _BrokenOffError("this process ends")
            if time.monotonic() - renewed > self._settings.renew_seconds:
                began = time.monotonic()
                if not self._is_still_ours(claimed):
                    raise _BrokenOffError("the lease is over")
                renewed = began
            yield block

    def _is_still_ours(self, claimed: Claimed) -> bool:
        """Renew the lease. While the database is away nobody else claims anything, either: the attempt goes on."""
        try:
            with self._database.write() as session:
                return repository.renew(session, claimed, self._lease_seconds)
        except DATABASE_AWAY as error:
            log.warning("hand_over.database_away hand_over_id=%s: %s", claimed.id, error)
            return True

    def _attestation(self, claimed: Claimed) -> str:
        with self._database.read() as session:
            row = attestations.attestation_of(session, claimed.tenant_id, claimed.job_id)
        if row is None:
            row = attest(self._database, self._settings, claimed.tenant_id, claimed.job_id)
        if row is None:
            raise _gone(claimed)
        return row.envelope


def _gone(claimed: Claimed) -> ArtifactNotThereError:
    return ArtifactNotThereError(
        f"The job {claimed.job_id} has no {claimed.artifact} any more.", hint="Hand over another of its files."
    )

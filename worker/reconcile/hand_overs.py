"""Sends hand-overs: files and data of jobs to the URLs of clients.

At least once, and the same bytes each time: see ``sending``. The lease of a hand-over is short, and renewed between the
blocks of its file: where this process ends, another one goes on soon, while the URL is still good.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from sqlalchemy.orm import Session

from service.attestations import repository as attestations
from service.attestations.signing import attest
from service.egress.attempts import SendResult
from service.egress.sending import Bounds, Egress, Reply, Streamed
from service.files.serving import open_file
from service.hand_overs import repository
from service.hand_overs.asking import HandOverVault, SecretTarget
from service.hand_overs.outbox import settle
from service.hand_overs.repository import OUTBOX, ClaimedHandOver
from service.hand_overs.schemas import ATTESTATION, MOST_URL_CHARACTERS, ArtifactNotThereError
from service.tracing import carrier
from worker.lease import DATABASE_AWAY
from worker.reconcile.sending import REPLY_BYTES, OutboxSender

log = logging.getLogger(__name__)

# Of one reconciler, some of them for one tenant: each may carry a whole model.
SLOTS, MOST_OF_TENANT = 16, 4
# A request has so much longer as its body takes at this rate; what is slower is tried again.
SLOWEST_BYTES_PER_SECOND = 256 * 1024
# What one PUT to S3 may carry.
MOST_SENT_BYTES = 5 * 1024**3


class _BrokenOffError(BaseException):
    """An attempt is left to another process: this one ends, or holds it no more. No fault, so no ``Exception``."""


class HandOverSender(OutboxSender[ClaimedHandOver]):
    """Hand-overs of one process, some at a time. The bounds of its egress are those of a request without a body, and of
    a step of one with a body: see ``Bounds``.
    """

    name, id_name, vault = "hand_over", "hand_over_id", HandOverVault
    _vault: HandOverVault

    @property
    def _slots(self) -> int:
        return SLOTS

    def _claim(self, session: Session, free: int) -> Sequence[ClaimedHandOver]:
        return repository.claim(session, free=free, most_of_tenant=MOST_OF_TENANT, lease_seconds=self._lease_seconds)

    def _send(self, claimed: ClaimedHandOver, began: float) -> None:
        try:
            super()._send(claimed, began)
        except _BrokenOffError as error:
            log.warning("hand_over.left hand_over_id=%s: %s", claimed.id, error)
            self._note(claimed, lambda session: OUTBOX.release(session, claimed))

    def _request(self, claimed: ClaimedHandOver, began: float) -> Reply:
        place = self._vault.open(claimed.id, claimed.sealed)
        return self._post(claimed, place) if claimed.kind == "post" else self._put(claimed, place, began)

    def _settle(self, session: Session, claimed: ClaimedHandOver, result: SendResult) -> str:
        return settle(session, claimed, result, schedule=self._schedule)

    def _facts(self, claimed: ClaimedHandOver) -> str:
        return f"job_id={claimed.job_id} kind={claimed.kind} host={claimed.host}"

    def _post(self, claimed: ClaimedHandOver, place: SecretTarget) -> Reply:
        headers = _headers({"Content-Type": "application/json", "User-Agent": "quantmill"}, place)
        body = (claimed.payload or "").encode()
        return self._within(len(body)).send("POST", place.url, headers=headers, body=body)

    def _put(self, claimed: ClaimedHandOver, place: SecretTarget, began: float) -> Reply:
        with self._body(claimed, began) as body:
            return self._within(body.size_bytes).send("PUT", place.url, headers=_headers({}, place), body=body)

    def _within(self, size_bytes: int) -> Egress:
        """Sends a body of so many bytes."""
        step_seconds = self._egress.bounds.seconds
        seconds = step_seconds + size_bytes / SLOWEST_BYTES_PER_SECOND
        bounds = Bounds(seconds, MOST_SENT_BYTES, REPLY_BYTES, MOST_URL_CHARACTERS, step_seconds)
        return replace(self._egress, bounds=bounds)

    @contextmanager
    def _body(self, claimed: ClaimedHandOver, began: float) -> Iterator[Streamed]:
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

    def _held(self, claimed: ClaimedHandOver, blocks: Iterator[bytes], renewed: float) -> Iterator[bytes]:
        """The blocks, as long as the hand-over is this process's, which does not have to end.

        Raises:
            _BrokenOffError: it is not, or has to.
        """
        for block in blocks:
            if self._interrupted.is_set():
                raise _BrokenOffError("this process ends")
            if time.monotonic() - renewed > self._settings.renew_seconds:
                began = time.monotonic()
                if not self._is_still_ours(claimed):
                    raise _BrokenOffError("the lease is over")
                renewed = began
            yield block

    def _is_still_ours(self, claimed: ClaimedHandOver) -> bool:
        """Renew the lease. While the database is away nobody else claims anything, either: the attempt goes on."""
        try:
            with self._database.write() as session:
                return OUTBOX.renew(session, claimed, self._lease_seconds)
        except DATABASE_AWAY as error:
            log.warning("hand_over.database_away hand_over_id=%s: %s", claimed.id, error)
            return True

    def _attestation(self, claimed: ClaimedHandOver) -> str:
        with self._database.read() as session:
            row = attestations.attestation_of(session, claimed.tenant_id, claimed.job_id)
        if row is None:
            row = attest(self._database, self._settings, claimed.tenant_id, claimed.job_id)
        if row is None:
            raise _gone(claimed)
        return row.envelope


def _gone(claimed: ClaimedHandOver) -> ArtifactNotThereError:
    return ArtifactNotThereError(
        f"Job {claimed.job_id} no longer has a file of kind {claimed.artifact}.",
        hint="Hand over another file of the job.",
    )


def _headers(own: Mapping[str, str], place: SecretTarget) -> dict[str, str]:
    """Those of the target, with ours and those of the trace where it has none of the same name."""
    given = {name.casefold() for name in place.headers}
    ours = {**own, **(carrier() or {})}
    return {name: value for name, value in ours.items() if name.casefold() not in given} | place.headers

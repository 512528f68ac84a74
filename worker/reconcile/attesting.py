"""Signs what jobs have made soon after their success: the front desk has only to send it then."""

from __future__ import annotations

import logging

from service.attestations import repository
from service.attestations.errors import SigningKeyUnreadableError, SigningUnavailableError
from service.db import Database
from service.rounds import one_by_one
from service.settings import Settings

log = logging.getLogger(__name__)

# Of one round: the other loops wait for its end.
MOST_JOBS = 50


class Attester:
    """Signs in the name of the installation, where it has a key.

    Args:
        settings: have the pepper.
        database: where jobs are.
    """

    def __init__(self, settings: Settings, database: Database) -> None:
        self._settings = settings
        self._database = database
        self._told = ""

    def attest(self) -> int:
        """Sign what is not signed yet, those that wait longest first; returns how many. Says once why it cannot."""
        with self._database.read() as session:
            due = repository.unattested_jobs(session, MOST_JOBS)
        if not due:
            return 0
        # cryptography: reconcilers with nothing to sign do without
        from service.attestations.making import attest
        from service.attestations.signing import signing_key

        try:
            signing_key(self._database, self._settings)
        except (SigningUnavailableError, SigningKeyUnreadableError) as error:
            if self._told != error.detail:
                log.warning("attestations.not_signed: %s %s", error.detail, error.hint)
                self._told = error.detail
            return 0
        self._told = ""
        return one_by_one("attestation", due, lambda job: attest(self._database, self._settings, *job) is not None)

"""Sets right what was written while the database's clock was ahead."""

from __future__ import annotations

import logging

from service.db import Database
from service.jobs import transitions

log = logging.getLogger(__name__)


def bring_forward(database: Database, *, lease_seconds: float) -> int:
    """Let jobs start that would otherwise wait until a clock that was put back is there again, and leases end that
    would otherwise last until then; returns how many.

    Args:
        database: where jobs are.
        lease_seconds: for which a lease is good.
    """
    with database.read() as session:
        queued = transitions.queued_ahead(session)
        leased = transitions.leased_ahead(session, lease_seconds=lease_seconds)
    if not (queued or leased):
        return 0
    with database.write() as session:
        found = transitions.bring_forward(session)
    with database.write() as session:  # another one: who holds some jobs waits for no others
        shortened = transitions.shorten_leases(session, lease_seconds=lease_seconds)
    if found or shortened:
        log.warning("clock.put_back jobs_brought_forward=%d leases_shortened=%d", found, shortened)
    return found + shortened

"""Links that show one report to whoever has them, until they expire."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import NamedTuple

from service.audit.service import note
from service.deps import AppState
from service.jobs import service as jobs
from service.keys.errors import SharedLinkEndedError
from service.keys.tokens import MOST_CHARS
from service.principal import Principal
from service.reports.reading import whole_report
from service.tables import ReportRow

DAYS = (1, 7, 30)


class Shared(NamedTuple):
    """A link that was made: its token, and when it ends."""

    token: str
    ends_at: datetime


def share(app: AppState, by: Principal, job_id: str, days: int) -> Shared:
    """Make a link to the report of a job.

    Raises:
        JobNotFoundError, ReportNotReadyError, ReportNotFoundError: there is no report.
        ReportFormMissingError: it is of an evaluation, which has no page of its own.
        ReportNotRenderableError: it is of a form that is not known here.
    """
    whole_report(jobs.report(app, by.tenant_id, job_id))
    token, ends_at = app.keyring.share_token(by.tenant_id, by.actor, job_id, days)
    with app.database.write() as session:
        note(session, by, "report.share", job_id)
    return Shared(token, datetime.fromtimestamp(ends_at, UTC))


def shared(app: AppState, token: str) -> ReportRow:
    """The report that a link shows.

    Raises:
        SharedLinkEndedError: the link is none of ours, has expired, or its key has ended.
        JobNotFoundError: the job was deleted.
    """
    found = app.keyring.look_up_share(token) if len(token) <= MOST_CHARS else None
    if found is None:
        raise SharedLinkEndedError(
            "The link is not whole, has expired, or whoever made it may not read here any more.",
            hint="Ask whoever sent it for another one.",
        )
    return jobs.report(app, *found)

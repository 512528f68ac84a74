"""Reports as they are stored, read back, and links that show one to whoever has them, until they expire."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime

from pydantic import ValidationError

from service.audit.service import note
from service.contracts.base import read_stored
from service.contracts.errors import QuantmillError
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report import Report
from service.deps import AppState
from service.jobs import service as jobs
from service.keys.schemas import SharedLinkEndedError
from service.keys.tokens import MOST_CHARS
from service.principal import Principal
from service.tables import ReportRow


def is_evaluation(row: ReportRow) -> bool:
    """True for the report of an evaluation."""
    return isinstance(row.body, dict) and row.body.get("kind") == "evaluation"


def any_report(row: ReportRow) -> Report | EvaluationReport:
    """The report of a row, of either kind.

    Raises:
        ReportNotRenderableError: it is of a form that is not known here.
    """
    if not is_evaluation(row):
        return whole_report(row)
    try:
        return read_stored(EvaluationReport, row.body)
    except ValidationError:
        raise _unknown(row) from None


def whole_report(row: ReportRow) -> Report:
    """The report of a quantization, of whatever version.

    Raises:
        ReportFormMissingError: it is of an evaluation.
        ReportNotRenderableError: it is of a form that is not known here.
    """
    if is_evaluation(row):
        raise ReportFormMissingError(
            f"Job {row.job_id} is an evaluation: its report is available as JSON only.",
            hint=f"Download the JSON with GET /v1/jobs/{row.job_id}/report.",
        )
    try:
        return read_stored(Report, row.body)
    except ValidationError:
        raise _unknown(row) from None


def _unknown(row: ReportRow) -> ReportNotRenderableError:
    return ReportNotRenderableError(
        f"The report of {row.job_id} has a format that this service does not know.",
        hint=f"Download the JSON with GET /v1/jobs/{row.job_id}/report.",
    )


class ReportNotRenderableError(
    QuantmillError, code="report-not-renderable", title="The report cannot be rendered", status=500
):
    """The stored report is of a form that this service does not know, such as one of a later version."""


class ReportFormMissingError(
    ReportNotRenderableError, code="report-form-missing", title="The report has no such form", status=404
):
    """The report of an evaluation has no such form."""


# Links that show one report to whoever has them, until they expire.

DAYS = (1, 7, 30)


@dataclass(frozen=True)
class Shared:
    """A link that was made: its token, and when it ends."""

    token: str = field(repr=False)
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
            "The link is incomplete or has expired, or its creator no longer has access.",
            hint="Ask the sender for a new link.",
        )
    return jobs.report(app, *found)

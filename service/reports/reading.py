"""Reports as they are stored, read back; and the errors of those that cannot be shown."""

from __future__ import annotations

from pydantic import ValidationError

from service.contracts.errors import QuantmillError
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report import Report
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
        return EvaluationReport.model_validate(row.body)
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
            f"The job {row.job_id} is an evaluation: its report is there as JSON alone.",
            hint=f"Take the JSON: GET /v1/jobs/{row.job_id}/report",
        )
    try:
        return Report.model_validate(row.body)
    except ValidationError:
        raise _unknown(row) from None


def _unknown(row: ReportRow) -> ReportNotRenderableError:
    return ReportNotRenderableError(
        f"The report of {row.job_id} is not of a form that this service knows.",
        hint=f"Take the JSON: GET /v1/jobs/{row.job_id}/report",
    )


class ReportNotRenderableError(QuantmillError):
    """The stored report is of a form that this service does not know, such as one of a later version."""

    code = "report-not-renderable"
    title = "The report cannot be rendered"
    status = 500


class ReportFormMissingError(ReportNotRenderableError):
    """The report of an evaluation has no such form."""

    code = "report-form-missing"
    title = "The report has no such form"
    status = 404

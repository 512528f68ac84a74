"""Errors of rendering."""

from __future__ import annotations

from service.contracts.errors import QuantmillError


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

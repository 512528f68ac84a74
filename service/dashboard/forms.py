"""What a form has sent as text; moments, states and documents in the words of the pages."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol, TypeVar

from fastapi import Request
from markupsafe import Markup
from pydantic import BaseModel, ValidationError

from service.contracts.changes import NOT_REPRESENTATIVE, Change, latency_change
from service.contracts.errors import QuantmillError
from service.contracts.evaluation_report import ReportOutline
from service.contracts.surfaces import for_page
from service.contracts.validation import field_problems
from service.deps import AppState
from service.jobs.schemas import JobListed
from service.reports import verdict
from service.reports.figures import NOTHING, figure, metric_title, shown
from service.reports.verdict import Told

_Record = TypeVar("_Record", bound=BaseModel)


class FormFields:
    """The fields of a form.

    Args:
        fields: name and value, in their order.
    """

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        self._fields = fields

    def text(self, name: str) -> str | None:
        """The value of a field without blanks around it; None: it is empty or not there."""
        return next((value.strip() for key, value in self._fields if key == name and value.strip()), None)

    def all(self, name: str) -> list[str]:
        """All values of a field."""
        return [value.strip() for key, value in self._fields if key == name and value.strip()]

    def ticked(self, name: str) -> bool:
        """Whether a box is ticked."""
        return self.text(name) is not None


async def sent(request: Request) -> FormFields:
    """The form that the request carries, without its files."""
    form = await request.form()
    return FormFields([(key, value) for key, value in form.multi_items() if isinstance(value, str)])


async def checked(app: AppState, model: type[_Record], document: dict[str, Any]) -> _Record:
    """What a form asks for as the API takes it, validated beside the event loop.

    Raises:
        ValidationError: it is none.
    """
    return await app.checks.run(lambda: model.model_validate(document))


def field_errors(error: ValidationError, model: type[BaseModel]) -> dict[str, str]:
    """What is said at which field of a form whose fields are those of a record."""
    return {one.pointer.split("/")[1]: for_page(one.message) for one in field_problems(error, model)}


def told_at(error: QuantmillError, field: str = "") -> str:
    """An error as it is said at the field that it is about: what is wrong, and what to do.

    Args:
        error: of the service.
        field: pointer of the field, whose inner places are named, and which says itself what to do; blank: none.
    """
    within = [(one.pointer.removeprefix(field).removeprefix("/"), one.message) for one in error.errors if field]
    if within:
        return for_page("; ".join(f"{place}: {message}" if place else message for place, message in within))
    return for_page(error.detail if error.hint is None else f"{error.detail} {error.hint}")


_MINUTE, _HOUR, _DAY = 60.0, 3600.0, 86400.0


STATES: dict[str, Told] = {
    "queued": Told("◷", "Queued", "plain"),
    "running": Told("▶", "Running", "unsure"),
    "canceling": Told("◼", "Canceling", "unsure"),
    "succeeded": Told("✔", "Succeeded", "plain"),
    "failed": Told("✖", "Failed", "bad"),
    "canceled": Told("⊘", "Canceled", "plain"),
    "validating": Told("◷", "Validating", "unsure"),
    "ready": Told("✔", "Ready", "good"),
    "rejected": Told("✖", "Rejected", "bad"),
    "passed": Told("✔", "Passed", "good"),
    "waiting": Told("◷", "Waiting", "plain"),
    "skipped": Told("→", "Skipped", "plain"),
    "refused": Told("✖", "Refused", "bad"),
    "ok": Told("✔", "OK", "good"),
    "delivered": Told("✔", "Delivered", "good"),
    "good": Told("✔", "Active", "good"),
    "expired": Told("⊘", "Expired", "plain"),
    "revoked": Told("⊘", "Revoked", "plain"),
    "degraded": Told("▲", "Degraded", "unsure"),
}


class _Outlined(Protocol):
    """What an outcome takes of a report."""

    @property
    def collapsed(self) -> bool:
        """Most of what the float model can do is lost."""

    @property
    def critical_findings(self) -> int:
        """Findings for which the figures cannot be trusted."""


def judged(word: str, figures: _Outlined | None) -> Told:
    """What a job that has succeeded has come to, by the verdict of its report."""
    if figures is None:
        return verdict.outcome(word)
    return verdict.outcome(word, collapsed=figures.collapsed, critical=figures.critical_findings > 0)


def outcome(job: JobListed) -> Told:
    """What a job has come to: of one that has succeeded the verdict leads."""
    if job.state != "succeeded" or job.verdict is None:
        return STATES[job.state]
    return judged(job.verdict, job.figures)


class Moved(NamedTuple):
    """A metric of both models; ``before`` is blank where there is no float model."""

    title: str
    before: str
    after: str
    change: Change

    @property
    def both(self) -> str:
        """Such as "99.33 → 96.00 %"."""
        return f"{self.before} → {self.after}" if self.before else self.after


def changes_of(figures: ReportOutline) -> list[Moved]:
    """Each metric with its change."""
    return [
        Moved(
            metric_title(one.name),
            "" if one.float_ is None else figure(one.float_, one.unit),
            figure(one.quantized, one.unit),
            one.change,
        )
        for one in figures.metrics
    ]


def latency_of(figures: ReportOutline) -> Change:
    """The change of latency; none where the target was simulated on another CPU."""
    if figures.latency_not_representative:
        return Change(NOT_REPRESENTATIVE.capitalize(), "same")
    change = latency_change(figures.latency_ratio, significant=figures.latency_significant)
    return replace(change, cautious=True)


def ago(moment: datetime | None) -> str:
    """How long ago something was, or how far ahead it is."""
    if moment is None:
        return NOTHING
    seconds = (datetime.now(UTC) - moment).total_seconds()
    distance = span(abs(seconds))
    return f"{distance} ago" if seconds >= 0 else f"in {distance}"


def span(seconds: float) -> str:
    """A length of time, in the unit that suits it."""
    for unit, length in (("d", _DAY), ("h", _HOUR), ("min", _MINUTE)):
        if seconds >= length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def moment(at: datetime | None) -> str:
    """A moment, to the second, in UTC."""
    return NOTHING if at is None else f"{at.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"


def iso(at: datetime) -> str:
    """A moment as machines read it."""
    return at.astimezone(UTC).isoformat(timespec="seconds")


def pretty(document: Any) -> str:
    """A document as JSON that people read."""
    return json.dumps(document, indent=2, ensure_ascii=False)


def lines(text: str) -> Markup:
    """A text of several lines, whole: in every other one a line break is shown as its escape, and its end is cut."""
    return Markup("\n").join(shown(line) for line in text.split("\n"))

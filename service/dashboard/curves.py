"""The curves of a job while it runs: drawn once for all who look at it, until it tells another figure."""

from __future__ import annotations

from typing import NamedTuple

from markupsafe import Markup

from service.dashboard.pages import environment
from service.dashboard.recent import Recent
from service.deps import AppState
from service.jobs import records
from service.jobs.metric_events import latest_metrics
from service.jobs.views import event_out
from service.reports import charts

# Steps of a stage that are drawn, of more of them an even choice: a picture has no more points across.
_STEPS = 500
_KEPT = 64


class DrawnCurve(NamedTuple):
    """One figure of a stage by step, drawn, and the same as numbers."""

    stage: str
    name: str
    picture: Markup
    points: list[tuple[int, float]]


class Curves(NamedTuple):
    """All curves of a job, as the part of a page.

    Attributes:
        number: of them.
        part: the HTML.
    """

    number: int
    part: Markup


_drawn: Recent[Curves] = Recent(_KEPT)


def curves_of(app: AppState, tenant_id: str, job_id: str) -> Curves:
    """Every figure that the job's stages told step by step.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    newest = records.newest_figure(app, tenant_id, job_id)
    return _drawn.get((tenant_id, job_id, newest), lambda: _draw(app, tenant_id, job_id))


def _draw(app: AppState, tenant_id: str, job_id: str) -> Curves:
    found = latest_metrics(event_out(event) for event in records.figures(app, tenant_id, job_id, most=_STEPS))
    drawn = []
    for stage, steps in found.items():
        for name in dict.fromkeys(name for figures in steps.values() for name in figures):
            points = [(step, value) for step, given in steps.items() if (value := given.get(name)) is not None]
            picture = charts.curve(points, f"{stage}: {name}") if len(points) > 1 else None
            if picture is not None:
                drawn.append(DrawnCurve(stage, name, picture, points))
    part = environment().get_template("curves_drawn.html.jinja").render(curves=drawn)
    return Curves(len(drawn), Markup(part))  # noqa: S704 - the template has escaped it

"""What a search has told of its trials before it has ended."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from service.dashboard import planes
from service.deps import AppState
from service.jobs import records
from service.jobs.metric_events import latest_metrics
from service.jobs.schemas import JobOut
from service.jobs.views import event_out

AUTOPILOT = "autopilot"
_TRIALS = 5000
_DISTANCES = {
    "sqnr": planes.SQNR,
    "psnr": planes.Measure("PSNR", "dB", higher=True),
    "cosine": planes.Measure("Cosine", "", higher=True),
    "l2": planes.Measure("Relative distance", "", higher=False),
    "kl": planes.Measure("Divergence", "nats", higher=False),
}


class Trial(NamedTuple):
    """A trial so far.

    Attributes:
        number: in the order in which they were made.
        words: its recipe.
        sqnr_db: on samples held back.
        value: by the goal's measure, on all data; None: not measured yet.
        size_bytes: of its model, likewise.
        latency_ratio: over the float model, likewise.
    """

    number: int
    words: str
    sqnr_db: float | None
    value: float | None
    size_bytes: float | None
    latency_ratio: float | None


class SoFar(NamedTuple):
    """The trials, what they are judged by, and the front of those that were measured."""

    trials: list[Trial]
    measure: planes.Measure
    plane: planes.Plane | None


def told(app: AppState, tenant_id: str, job: JobOut) -> SoFar:
    """The trials of a job that has no report yet.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    found = latest_metrics(
        event_out(event) for event in records.figures(app, tenant_id, job.id, most=_TRIALS, stage=AUTOPILOT)
    )
    names = records.recipes(app, tenant_id, job.id)
    goal = _goal(job.config or {})
    measure, limit = goal_of(goal)
    name = f"goal_{goal.get('metric')}" if goal.get("kind") == "distance" else "drop"
    trials = [
        Trial(
            number,
            names.get(number, f"recipe {number}"),
            figures.get("sqnr_db"),
            figures.get(name),
            figures.get("size_bytes"),
            figures.get("latency_ratio"),
        )
        for number, figures in found.get(AUTOPILOT, {}).items()
    ]
    marks = [planes.Mark(one.words, None, one.value, one.size_bytes, one.latency_ratio) for one in trials]
    return SoFar(trials, measure, planes.plane(measure, marks, limit))


def goal_of(goal: Mapping[str, Any]) -> tuple[planes.Measure, float | None]:
    """What trials are judged by, and the worst value that the goal accepts."""
    if goal.get("kind") == "distance":
        return _DISTANCES.get(str(goal.get("metric")), planes.SQNR), goal.get("limit")
    return planes.drop_of(str(goal.get("metric", "top1")), ""), goal.get("max_drop")


def _goal(config: Mapping[str, Any]) -> Mapping[str, Any]:
    steps = config.get("algorithms", [])
    return next((step.get("goal", {}) for step in steps if step.get("method") == AUTOPILOT), {})

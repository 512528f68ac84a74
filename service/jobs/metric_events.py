"""Metric events of a job as curves: what a step told, by the last attempt that did it."""

from __future__ import annotations

from collections.abc import Iterable

from service.jobs.schemas import EventOut


def latest_metrics(events: Iterable[EventOut]) -> dict[str, dict[int, dict[str, float | None]]]:
    """The figures of every step, by stage and step, in the order of steps.

    An attempt that goes on after another may do steps again that the other had told of. Stage and step are the same
    then and the attempt is higher: what it told takes the place of the earlier figures.

    Args:
        events: of one job, of any types and in any order.
    """
    found: dict[tuple[str, int], EventOut] = {}
    for event in events:
        if event.type == "metric":
            key = event.data["stage"], event.data["step"]
            before = found.get(key)
            if before is None or (event.attempt, event.seq) > (before.attempt, before.seq):
                found[key] = event
    curves: dict[str, dict[int, dict[str, float | None]]] = {}
    for stage, step in sorted(found):
        data = found[stage, step].data
        figures = {name: value for name, value in data.items() if name not in ("stage", "step")}
        curves.setdefault(stage, {})[step] = figures
    return curves

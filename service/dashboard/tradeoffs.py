"""The trade-off chart: accuracy against bytes and latency of many models, with the front, which no other beats."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from xml.etree import ElementTree

from markupsafe import Markup

from service.comparison.schemas import ComparedJob
from service.contracts.changes import ratio_words
from service.contracts.evaluation_report import ReportOutline
from service.reports import charts, figures
from service.reports.figures import name

_WIDTH, _HEIGHT = 460.0, 300.0
_LEFT, _TOP, _RIGHT, _BOTTOM = 66.0, 14.0, 446.0, 246.0
# Beyond so many models their numbers would lie upon each other; only those of the front are written then.
_NUMBERED = 24


class Measure(NamedTuple):
    """What the models are judged by."""

    words: str  # with a capital
    unit: str  # of the values
    higher: bool  # True if more is better

    def written(self, value: float | None) -> str:
        """A value with its unit."""
        return figures.figure(value, self.unit)

    @property
    def axis(self) -> str:
        """What stands beside the axis."""
        return f"{self.words}, {self.unit}" if self.unit else self.words


SQNR = Measure("SQNR", "dB", higher=True)


@dataclass(frozen=True)
class Mark:
    """One model."""

    label: str  # for people
    path: str | None  # of its page; None: it has none
    value: float | None  # by the measure; None: not measured
    size_bytes: float | None  # of its file
    latency_ratio: float | None = None  # over that of the float model; None: not timed
    chosen: bool = False  # it is the one that was taken
    front: bool | None = None  # no other is better; None: to be found out
    letter: str = ""  # what it is called in the picture; "": its number


class ShownModel(NamedTuple):
    """A model with what it is called in the picture, and whether it belongs to the front."""

    point: str
    mark: Mark
    front: bool

    @property
    def latency(self) -> str:
        """Its latency beside that of the float model."""
        ratio = self.mark.latency_ratio
        return figures.NOTHING if ratio is None or ratio <= 0 else ratio_words(ratio)


@dataclass(frozen=True)
class TradeOff:
    """The models, drawn and as rows of the table beside the picture."""

    measure: Measure
    rows: list[ShownModel]
    pictures: list[tuple[str, Markup]]
    timed: bool
    limit: str | None

    @property
    def words(self) -> str:
        """What the front means here."""
        judged = f"{self.measure.words}, size and latency" if self.timed else f"{self.measure.words} and size"
        return f"A model is on the Pareto front if no other model is as good or better in {judged} at once."


def drop_of(metric: str, unit: str) -> Measure:
    """The drop of a metric against the float model; of one in percent it is in points."""
    return Measure(f"{figures.metric_title(metric)} drop", "points" if unit == "%" else unit, higher=False)


def of_jobs(
    jobs: Iterable[tuple[str, str, ReportOutline | ComparedJob]], letters: Sequence[str] = ()
) -> TradeOff | None:
    """The chart of jobs that have succeeded, by the first metric that all of them have a drop of, else by SQNR.

    Args:
        jobs: label, path and figures of each.
        letters: what they are called elsewhere on the page; empty: nothing.
    """
    told = list(jobs)
    drops = [{(one.name, one.unit): one.drop for one in job.metrics if one.drop is not None} for _, _, job in told]
    key = next((key for key in drops[0] if all(key in one for one in drops)), None) if drops else None
    marks = [
        Mark(
            label,
            path,
            job.sqnr_db if key is None else own[key],
            job.quantized_size_bytes,
            _measured_ratio(job),
            letter=letter,
        )
        for (label, path, job), own, letter in zip(told, drops, letters or [""] * len(told), strict=True)
    ]
    return trade_off(SQNR if key is None else drop_of(*key), marks)


def _measured_ratio(job: ReportOutline | ComparedJob) -> float | None:
    """The ratio of latencies; None where it was not measured, or predicts nothing of the target."""
    return None if job.latency_not_representative else job.latency_ratio


def trade_off(measure: Measure, marks: Sequence[Mark], limit: float | None = None) -> TradeOff | None:
    """The chart; None where fewer than two models can be placed on it.

    Args:
        measure: what their values are of.
        marks: all models; those without a value or a size stand in the table alone.
        limit: the worst value that is accepted, drawn as a line.
    """
    placed = [mark for mark in marks if _is_placed(mark)]
    timed = bool(placed) and all(mark.latency_ratio is not None for mark in placed)
    front = _front(measure, placed, timed)
    rows = [
        ShownModel(
            mark.letter or str(k), mark, mark.front if mark.front is not None else any(mark is one for one in front)
        )
        for k, mark in enumerate(marks, start=1)
    ]
    drawn = [row for row in rows if _is_placed(row.mark)]
    if len(drawn) < 2:
        return None
    sizes = [float(row.mark.size_bytes or 0.0) for row in drawn]
    pictures = [("Size", _picture(measure, drawn, "Size", sizes, figures.size, limit))]
    if timed:
        words, ratios = "Latency relative to float", [float(row.mark.latency_ratio or 0.0) for row in drawn]
        pictures.append(("Latency", _picture(measure, drawn, words, ratios, figures.times, limit)))
    return TradeOff(measure, rows, pictures, timed, None if limit is None else measure.written(limit))


def _is_placed(mark: Mark) -> bool:
    return mark.value is not None and math.isfinite(mark.value) and mark.size_bytes is not None


def _front(measure: Measure, marks: Sequence[Mark], timed: bool) -> list[Mark]:
    """Those that no other equals or beats in all figures while being better in one."""

    def costs(mark: Mark) -> tuple[float, float, float]:
        value = mark.value or 0.0
        return (-value if measure.higher else value), mark.size_bytes or 0.0, (mark.latency_ratio or 0.0) * timed

    told = [(mark, costs(mark)) for mark in marks]

    def is_beaten(mine: tuple[float, float, float]) -> bool:
        return any(other != mine and all(a <= b for a, b in zip(other, mine, strict=True)) for _, other in told)

    return [mark for mark, mine in told if not is_beaten(mine)]


def _picture(
    measure: Measure,
    rows: Sequence[ShownModel],
    across: str,
    costs: Sequence[float],
    written: Callable[[float], str],
    limit: float | None,
) -> Markup:
    """One scatter: the better, the higher; the cheaper, the further left."""
    values = [row.mark.value or 0.0 for row in rows]
    down, up = (_BOTTOM, _TOP) if measure.higher else (_TOP, _BOTTOM)
    x = charts.Scale.around(costs, _LEFT, _RIGHT)
    y = charts.Scale.around(values if limit is None else [*values, limit], down, up)
    label = (
        f"{len(rows)} models by {measure.words} and {across.lower()}; better is up and to the left. "
        f"{sum(row.front for row in rows)} on the Pareto front. The table below contains the values."
    )
    root = charts.picture(_WIDTH, _HEIGHT, label)
    if limit is not None:
        top, bottom = sorted((y.at(limit), _TOP))
        charts.box(root, (_LEFT, top), _RIGHT - _LEFT, bottom - top, "allowed")
    charts.line(root, (_LEFT, _BOTTOM), (_RIGHT, _BOTTOM), "axis")
    charts.line(root, (_LEFT, _TOP), (_LEFT, _BOTTOM), "axis")
    for value in sorted({min(values), max(values)}):
        charts.text(root, (_LEFT - 6, y.at(value) + 4), figures.figure(value), anchor="end")
    for cost in sorted({min(costs), max(costs)}):
        charts.text(root, (x.at(cost), _BOTTOM + 16), written(cost), anchor="middle")
    charts.text(root, ((_LEFT + _RIGHT) / 2, _HEIGHT - 18), f"{across} (lower is better)", anchor="middle")
    better = "higher is better" if measure.higher else "lower is better"
    charts.text(root, (4, _HEIGHT - 3), f"{measure.axis} ({better})")
    if limit is not None:
        charts.line(root, (_LEFT, y.at(limit)), (_RIGHT, y.at(limit)), "limit")
        charts.text(root, (_RIGHT, y.at(limit) - 4), f"goal {measure.written(limit)}", anchor="end")
    # the front as a line, which goes up and down where a third figure puts a model on it
    front = sorted((cost, value) for row, cost, value in zip(rows, costs, values, strict=True) if row.front)
    if len(front) > 1:
        charts.path(root, [(x.at(cost), y.at(value)) for cost, value in front], "frontier")
    for row, cost, value in zip(rows, costs, values, strict=True):
        _draw(root, row, (x.at(cost), y.at(value)), numbered=len(rows) <= _NUMBERED)
    return charts.drawn(root)


def _draw(root: charts.Element, row: ShownModel, at: tuple[float, float], *, numbered: bool) -> None:
    """A disk, on the front a diamond; around the chosen one a ring."""
    group = ElementTree.SubElement(root, "g")
    ElementTree.SubElement(group, "title").text = f"{row.point}: {name(row.mark.label)}"
    left, top = at
    if row.front:
        corners = ((left, top - 7), (left + 7, top), (left, top + 7), (left - 7, top))
        told = " ".join(f"{a:.1f},{b:.1f}" for a, b in corners)
        ElementTree.SubElement(group, "polygon", {"class": "model front", "points": told})
    else:
        charts.dot(group, at, 5.0, "model")
    if row.mark.chosen:
        charts.dot(group, at, 11.0, "ring")
    if numbered or row.front:
        near_edge = left > _RIGHT - 20
        place = (left - 10, top - 6) if near_edge else (left + 10, top - 6)
        charts.text(group, place, row.point, anchor="end" if near_edge else "start")

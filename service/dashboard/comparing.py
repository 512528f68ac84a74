"""Jobs side by side: what they gave, what chance may have given, where their configs and layers differ."""

from __future__ import annotations

import json
from typing import Annotated, Any, NamedTuple
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from service.comparison import service
from service.comparison.schemas import (
    MOST_JOBS,
    ComparedJob,
    ComparedMetric,
    ComparedPair,
    Comparison,
    PairedMetric,
)
from service.contracts.errors import InvalidRequestError
from service.dashboard import tradeoffs
from service.dashboard.pages import PageRoute, page
from service.deps import AppDep, PrincipalDep
from service.jobs import service as jobs
from service.jobs.repository import JobQuery
from service.jobs.views import job_listed
from service.reports import charts
from service.reports.figures import difference, figure, size, times

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_FLIPS = 50
_OFFERED = 50
# From there on the bar of a layer is full.
_FULL_BAR_DB = 50.0
_CHARACTERS = 200


class Cell(NamedTuple):
    """A figure of one job, and how it stands to that of the first."""

    value: str
    delta: str
    tone: str
    mark: str
    note: str


@router.get("/compare")
async def compare_jobs(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    job: Annotated[list[str] | None, Query(max_length=MOST_JOBS)] = None,
) -> Response:
    """The comparison of the chosen jobs; with fewer than two, a page to choose them on."""
    asked = list(dict.fromkeys(one for one in job or [] if one))
    if len(asked) < 2:
        query = JobQuery(state="succeeded")
        views, _ = await app.reads.run(
            lambda: jobs.list_page(app, principal.tenant_id, query, after=None, limit=_OFFERED)
        )
        offered = [job_listed(view) for view in views]
        return page(request, "compare_choose.html.jinja", jobs=offered, chosen=asked, choosing=True)
    if any(len(one) > 64 for one in asked):
        raise InvalidRequestError("A job's id has 64 characters at most.", query="job")
    found = await app.heavy.run(lambda: service.compare(app, principal.tenant_id, asked, most_flips=_FLIPS))
    return page(request, "compare.html.jinja", **_shown(found))


def _shown(found: Comparison) -> dict[str, Any]:
    words = {one.id: "ABCDEFGHIJKLMNOPQRST"[k] for k, one in enumerate(found.jobs)}
    return {
        "jobs": found.jobs,
        "letters": words,
        "rows": _rows(found),
        "config": [
            (one.pointer or "/", list(map(_short, one.values)), [value != one.values[0] for value in one.values])
            for one in found.config_differences
        ],
        "pairs": found.pairs,
        "pair_words": _pair_words,
        "layers": [
            (layer, [(value, charts.bar((value or 0.0) / _FULL_BAR_DB)) for value in layer.sqnr_db])
            for layer in found.layers
        ],
        "layers_more": found.layers_more,
        "tradeoff": tradeoffs.of_jobs(
            (f"{words[one.id]}: {one.name or one.preset or one.id}", f"/jobs/{one.id}", one) for one in found.jobs
        ),
        "csv": "/v1/compare.csv?" + urlencode([("job", one.id) for one in found.jobs]),
    }


def _rows(found: Comparison) -> list[tuple[str, list[Cell]]]:
    """The figures, metric by metric, then fidelity, bytes and latency."""
    first, others = found.jobs[0], found.jobs[1:]
    paired = {(pair.second, metric.name): metric for pair in found.pairs for metric in reversed(pair.metrics)}
    rows: list[tuple[str, list[Cell]]] = []
    for key in dict.fromkeys((metric.name, metric.unit) for one in found.jobs for metric in one.metrics):
        told = [next((m for m in one.metrics if (m.name, m.unit) == key), None) for one in found.jobs]
        cells = [_metric_cell(told[0], None, None)]
        for one, metric in zip(others, told[1:], strict=True):
            cells.append(_metric_cell(metric, told[0], paired.get((one.id, key[0]))))
        rows.append((key[0], cells))
    rows.append(_plain_row("SQNR", [one.sqnr_db for one in found.jobs], "dB", higher=True))
    rows.append(_plain_row("Decides as its float model", [one.top1_agreement for one in found.jobs], "%", higher=True))
    sizes = [float(one.quantized_size_bytes) for one in found.jobs]
    size_cells = [_against(size(value), value, sizes[0], size, higher=False) for value in sizes[1:]]
    rows.append(("Size", [Cell(size(sizes[0]), "", "", "", ""), *size_cells]))
    rows.append(("Latency over float", [_latency_cell(one, None if one is first else first) for one in found.jobs]))
    return [(name, cells) for name, cells in rows if any(cell.value != figure(None) for cell in cells)]


def _metric_cell(metric: ComparedMetric | None, first: ComparedMetric | None, paired: PairedMetric | None) -> Cell:
    if metric is None:
        return Cell(figure(None), "", "", "", "")
    value = figure(metric.quantized, metric.unit)
    drop = f"drop {figure(metric.drop, metric.unit)}" if metric.drop is not None else ""
    if first is None or first.quantized is None or metric.quantized is None:
        return Cell(value, "", "", "", drop)
    change = metric.quantized - first.quantized
    sign = "+" if change > 0 else "−" if change < 0 else "±"
    delta = f"{sign}{difference(change, metric.unit)}"
    if paired is None:
        return Cell(value, delta, "plain", "", f"{drop}; not paired".lstrip("; "))
    chance = f"p {paired.p_value:.3g}"
    if not paired.significant:
        return Cell(value, delta, "plain", "≈", f"within chance, {chance}")
    better = paired.drop < 0
    return Cell(value, delta, "good" if better else "bad", "▲" if better else "▼", f"significant, {chance}")


def _plain_row(words: str, values: list[float | None], unit: str, *, higher: bool) -> tuple[str, list[Cell]]:
    cells = [Cell(figure(values[0], unit), "", "", "", "")]
    for value in values[1:]:
        if value is None or values[0] is None:
            cells.append(Cell(figure(value, unit), "", "", "", ""))
        else:
            cells.append(_against(figure(value, unit), value, values[0], lambda gap: figure(gap, unit), higher=higher))
    return words, cells


def _against(written: str, value: float, first: float, gap: Any, *, higher: bool) -> Cell:
    """A figure that has no chance in it, against the first one's."""
    change = value - first
    if change == 0:
        return Cell(written, "the same", "plain", "", "")
    sign = "+" if change > 0 else "−"
    better = (change > 0) == higher
    return Cell(written, f"{sign}{gap(abs(change))}", "good" if better else "bad", "▲" if better else "▼", "")


def _latency_cell(one: ComparedJob, first: ComparedJob | None) -> Cell:
    """Timed apart from each other: intervals that part are told, nothing else is."""
    if one.latency_ratio is None:
        return Cell(figure(None), "", "", "", "")
    value, mine = times(one.latency_ratio), one.latency_ratio_interval
    note = "" if mine is None else f"{times(mine.low)} to {times(mine.high)}"
    if first is None or first.latency_ratio is None:
        return Cell(value, "", "", "", note)
    change = one.latency_ratio - first.latency_ratio
    delta = f"{'+' if change > 0 else '−'}{abs(change):.2f}"
    theirs = first.latency_ratio_interval
    if mine is None or theirs is None or (mine.low <= theirs.high and theirs.low <= mine.high):
        return Cell(value, delta, "plain", "≈", f"{note}; may be chance".lstrip("; "))
    return Cell(value, delta, "good" if change < 0 else "bad", "▲" if change < 0 else "▼", note)


def _pair_words(pair: ComparedPair) -> str:
    if pair.drop_percent is None or pair.p_value is None:
        return ""
    by = f"{difference(pair.drop_percent, '%')} of the samples"
    if not pair.significant:
        return f"No difference beyond chance: {by} apart, p {pair.p_value:.3g}."
    return f"{'Worse' if pair.drop_percent > 0 else 'Better'} by {by}, p {pair.p_value:.3g}."


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"

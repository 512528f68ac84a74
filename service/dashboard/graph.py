"""The graph of a job: drawn by the server, node by node or by module, with the figures of every node."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any
from urllib.parse import quote, urlencode

from fastapi import APIRouter, Query, Request, Response
from pydantic import AfterValidator, BaseModel, Field

from service.artifacts import service as artifacts
from service.contracts.graph_view import (
    GRAPH_KIND,
    MOST_BYTES,
    GraphNode,
    GraphTensor,
    GraphUnreadableError,
    GraphView,
    cut_name,
    read_graph,
)
from service.contracts.report import Advice, Cause, LayerFigures
from service.dashboard.graph_drawing import LEGENDS, By, Drawing, Links, draw, rows_by_node, told
from service.dashboard.graph_grids import LEGEND, grid_words
from service.dashboard.overview import Recent
from service.dashboard.pages import PageRoute, page
from service.deps import AppDep, AppState, PrincipalDep
from service.http import PLAIN_TEXT
from service.jobs import service as jobs
from service.jobs.schemas import JobOut
from service.jobs.views import job_out
from service.reports import charts
from service.reports.figures import name as short_name
from service.reports.layers import gain_words, storage_words
from service.reports.reading import is_evaluation, whole_report
from service.tables import Artifact, ReportRow

# Graphs with their reports, and drawings, that a process keeps; a graph of thousands of nodes has megabytes.
_GRAPHS, _DRAWINGS = 3, 24
EVALUATION = "An evaluation has no graph: it quantizes nothing."
MISSING = "This job has no stored graph: it is of an older release, or its graph is too large to draw."
UNREADABLE = "The graph of this job cannot be read: its format is unknown."


@dataclass(frozen=True)
class GraphSources:
    """Where a page comes from."""

    job: JobOut  # whose graph it is
    report: ReportRow  # the row of its report
    artifact: Artifact | None  # the graph; None: there is none


@dataclass(frozen=True)
class Known:
    """A graph with the figures of its nodes."""

    layers: tuple[LayerFigures, ...]  # all rows of the report
    rows: dict[str, LayerFigures]  # the report's row of each node
    view: GraphView | None  # the graph; None: there is none
    missing: str = ""  # why there is none
    causes: tuple[Cause, ...] = ()  # of the report
    advice: tuple[Advice, ...] = ()


graphs: Recent[Known] = Recent(_GRAPHS)
drawings: Recent[Drawing] = Recent(_DRAWINGS)


def sources(app: AppState, tenant_id: str, job_id: str) -> GraphSources:
    """What the database tells.

    Raises:
        JobNotFoundError: the tenant has no such job.
        ReportNotReadyError, ReportNotFoundError: it has not ended, or ended without a report.
    """
    row = jobs.report(app, tenant_id, job_id)
    view = jobs.get(app, tenant_id, job_id)
    found = next((one for one in view.artifacts if one.kind == GRAPH_KIND), None)
    return GraphSources(job_out(view), row, found)


def known(app: AppState, of: GraphSources) -> Known:
    """The graph and the figures, read once for a while; computes.

    Raises:
        ReportNotRenderableError: the report is of a form that is not known here.
        StoredFileMissingError, StoredFileCorruptError: the store lacks the graph.
    """
    return graphs.get((of.report.job_id, of.report.attempt), lambda: _read(app, of))


def _read(app: AppState, of: GraphSources) -> Known:
    if is_evaluation(of.report):
        return Known((), {}, None, EVALUATION)
    report = whole_report(of.report)
    layers = report.layers
    rows = rows_by_node(layers)
    if of.artifact is None:
        return Known(layers, rows, None, MISSING)
    if of.artifact.size_bytes > MOST_BYTES:
        return Known(layers, rows, None, UNREADABLE)
    with artifacts.open_content(app, of.artifact).stream as stream:
        data = stream.read()
    try:
        return Known(layers, rows, read_graph(data), causes=report.causes, advice=report.advice)
    except GraphUnreadableError:
        return Known(layers, rows, None, UNREADABLE)


router = APIRouter(route_class=PageRoute, include_in_schema=False)
_ROWS = 100
_MOST_OPENED = 6
_MOST_TENSORS = 60
# Longer names stand in links as the number of the node, so that addresses stay short.
_LINKED_CHARACTERS = 120
_NUMBER = re.compile(r"~(\d{1,9})")
_Group = Annotated[str, Field(max_length=20, pattern=r"^\d{1,6}-\d{1,6}$")]


class Wanted(BaseModel):
    """What the address asks for."""

    by: By = "sqnr"
    open: list[_Group] = Field(default=[], max_length=32)
    node: str = Field(default="", max_length=1000)
    tensor: int | None = Field(default=None, ge=0, le=10_000_000)
    qdq: bool = False
    find: Annotated[str, Field(max_length=200, pattern=PLAIN_TEXT), AfterValidator(str.strip)] = ""
    page: int = Field(default=1, ge=1, le=1000)

    @property
    def opened(self) -> tuple[tuple[int, int], ...]:
        """The groups that are open, each once, the last ones."""
        pairs = [tuple(int(part) for part in one.split("-")) for one in dict.fromkeys(self.open)]
        return tuple((first, stop) for first, stop in pairs)[-_MOST_OPENED:]

    def address(self, **changes: Any) -> str:
        """The query of the same page with changes."""
        given = {"by": self.by, "open": self.opened, "node": self.node, "find": self.find, "qdq": self.qdq} | changes
        pairs = [("by", given["by"])] if given["by"] != "sqnr" else []
        pairs += [("open", f"{first}-{stop}") for first, stop in given["open"]]
        pairs += [("qdq", "1")] if given["qdq"] else []
        pairs += [
            (key, str(given[key])) for key in ("node", "tensor", "find", "page") if given.get(key) not in (None, "")
        ]
        return "?" + urlencode(pairs, quote_via=quote)


@router.get("/jobs/{job_id}/graph")
async def get_graph(
    request: Request,
    job_id: str,
    app: AppDep,
    principal: PrincipalDep,
    wanted: Annotated[Wanted, Query()],
) -> Response:
    """The graph; what is drawn, chosen and found is part of the address."""
    found = await app.reads.run(lambda: sources(app, principal.tenant_id, job_id))
    shown = await app.heavy.run(lambda: _shown(known(app, found), found, wanted))
    return page(request, "graph.html.jinja", job=found.job, wanted=wanted, **shown)


def _shown(graph: Known, of: GraphSources, wanted: Wanted) -> dict[str, Any]:
    view = graph.view
    chosen = None
    if view is not None:
        chosen = _place(view, wanted.node) if wanted.node else _worst(view, graph.layers)
    drawing = None
    if view is not None and view.nodes:
        key = (of.report.job_id, of.report.attempt, wanted.by, wanted.opened, wanted.find, wanted.qdq, chosen)
        drawing = drawings.get(key, lambda: _drawn(graph, view, wanted, chosen))
    entries = _entries(graph, wanted)
    found = [one for one in entries if _matches(one, wanted.find)] if wanted.find else entries
    first = (wanted.page - 1) * _ROWS
    return {
        "missing": graph.missing,
        "drawing": drawing,
        "legend": LEGENDS[wanted.by],
        "colorings": [
            (word, words, wanted.address(by=word))
            for word, words in _COLORINGS
            if word != "error" or any(row.error_percent is not None for row in graph.layers)
        ],
        "opened": [] if view is None else [_closing(view, wanted, one) for one in wanted.opened],
        "panel": None
        if view is None or chosen is None
        else {**_panel(view, view.nodes[chosen], graph.rows, wanted.tensor), **_blamed(graph, view.nodes[chosen])},
        "toggle": wanted.address(qdq=not wanted.qdq),
        "edges": [] if drawing is None else [(kind, LEGEND[kind]) for kind in drawing.kinds],
        "unknown_node": wanted.node if wanted.node and chosen is None else "",
        "total": len(entries),
        "matching": len(found),
        "entries": found[first : first + _ROWS],
        "first": first,
        "before": wanted.address(page=wanted.page - 1) if wanted.page > 1 else None,
        "after": wanted.address(page=wanted.page + 1) if first + _ROWS < len(found) else None,
    }


_COLORINGS: tuple[tuple[By, str], ...] = (("sqnr", "SQNR"), ("error", "Error contribution"), ("precision", "Precision"))


def _drawn(graph: Known, view: GraphView, wanted: Wanted, chosen: int | None) -> Drawing:
    holders = _holders(view) if wanted.qdq else {}
    links = Links(
        tensor=lambda tensor: wanted.address(node=_key(view, holders.get(tensor, 0)), tensor=tensor) + "#node",
        node=lambda place: wanted.address(node=_key(view, place)) + "#node",
        group=lambda span: wanted.address(open=(*wanted.opened, (span.first, span.stop))[-_MOST_OPENED:]) + "#graph",
    )
    return draw(view, graph.rows, wanted.by, links, opened=wanted.opened, chosen=chosen, pairs=wanted.qdq)


def _holders(view: GraphView) -> dict[int, int]:
    """By tensor the node that makes it; of an input of the graph the first that reads it."""
    found: dict[int, int] = {}
    for place, node in enumerate(view.nodes):
        for tensor in node.outputs:
            found[tensor] = place
        for read in node.inputs:
            if read is not None:
                found.setdefault(read, place)
    return found


def _closing(view: GraphView, wanted: Wanted, group: tuple[int, int]) -> tuple[str, str]:
    """Words for an opened group, and the address that closes it with all that was opened within."""
    first, stop = group
    kept = tuple(one for one in wanted.opened if not (first <= one[0] and one[1] <= stop))
    parts = [node.modules for node in view.nodes[first:stop]]
    common = next((path for path in reversed(parts[0]) if all(path in other for other in parts)), "") if parts else ""
    return common or f"nodes {first + 1} to {stop}", wanted.address(open=kept) + "#graph"


def _key(view: GraphView, place: int) -> str:
    """What a link calls a node."""
    name = view.nodes[place].name
    return name if len(quote(name, errors="replace")) <= _LINKED_CHARACTERS else f"~{place}"


def _place(view: GraphView, key: str) -> int | None:
    """Which node a link means."""
    wanted = cut_name(key)
    named = next((place for place, node in enumerate(view.nodes) if node.name == wanted), None)
    number = _NUMBER.fullmatch(key)
    if named is None and number is not None and int(number[1]) < len(view.nodes):
        return int(number[1])
    return named


def _worst(view: GraphView, layers: Sequence[LayerFigures]) -> int | None:
    """The node with the largest error contribution; where nothing was lost, of the lowest SQNR. None: nothing is known.

    Args:
        view: the graph.
        layers: of the report.
    """
    known = [one for one in layers if one.reason is None and (one.error_percent or one.sqnr_db is not None)]
    for layer in sorted(known, key=lambda one: (-(one.error_percent or 0.0), one.sqnr_db or 0.0)):
        wanted = {layer.name, *layer.nodes}
        place = next((place for place, node in enumerate(view.nodes) if node.name in wanted), None)
        if place is not None:
            return place
    return None


def _entries(graph: Known, wanted: Wanted) -> list[dict[str, Any]]:
    """The whole table, in the order of the graph, or of the report where there is none."""
    if graph.view is None:
        return [_entry(row.name, row.op, "", row, wanted.by, None) for row in graph.layers]
    view = graph.view
    return [
        _entry(
            node.name,
            node.op,
            node.modules[-1] if node.modules else "",
            graph.rows.get(node.name),
            wanted.by,
            wanted.address(node=_key(view, place)) + "#node",
        )
        for place, node in enumerate(view.nodes)
    ]


def _entry(name: str, op: str, modules: str, row: LayerFigures | None, by: By, address: str | None) -> dict[str, Any]:
    """A line of the table: a node of the graph, or, where there is none, a row of the report."""
    kind, _ = told(row, by)
    storage = "–" if row is None or row.reason is not None else storage_words(row)
    reason = "" if row is None else row.reason or ""
    texts = {"name": name, "op": op, "modules": modules, "storage": storage, "reason": reason}
    return {**texts, "kind": kind, "sqnr_db": None if row is None else row.sqnr_db, "address": address}


def _matches(entry: dict[str, Any], find: str) -> bool:
    return any(find.casefold() in entry[key].casefold() for key in ("name", "op", "modules", "storage", "reason"))


def _panel(view: GraphView, node: GraphNode, rows: dict[str, LayerFigures], selected: int | None) -> dict[str, Any]:
    """All that is known of the chosen node, with the tensor that was selected on an edge."""
    row = rows.get(node.name)
    tensors = [("input", place) for place in node.inputs if place is not None]
    tensors += [("output", place) for place in node.outputs]
    histograms = [] if row is None else [("Weights", row.weight_histogram), ("Activations", row.activation_histogram)]
    return {
        **{name: getattr(node, name) for name in ("name", "op", "modules", "inside")},
        "tensors": [
            {**_role(word, view.tensors[place]), "selected": place == selected}
            for word, place in tensors[:_MOST_TENSORS]
        ],
        "grids": any(tensor.grid is not None for tensor in view.tensors),
        "more_tensors": max(0, len(tensors) - _MOST_TENSORS),
        "row": row,
        "storage": "–" if row is None or row.reason is not None else storage_words(row),
        "gains": "" if row is None else gain_words(row),
        "drawn": [
            (word, values, charts.histogram(values, f"{word} of {short_name(node.name)}: how often each value occurs"))
            for word, values in histograms
            if values is not None
        ],
    }


def _blamed(graph: Known, node: GraphNode) -> dict[str, Any]:
    """What the report blames on a node's layer, with the facts, and what it advises for it."""
    row = graph.rows.get(node.name)
    names = {node.name} if row is None else {cut_name(one) for one in (row.name, *row.nodes)}
    return {
        "causes": [
            (cause.message, place) for cause in graph.causes for place in cause.places if cut_name(place.node) in names
        ],
        "advice": [one for one in graph.advice if names.intersection(map(cut_name, one.nodes))],
    }


def _role(word: str, tensor: GraphTensor) -> dict[str, Any]:
    if tensor.shape is None:
        shape = "–"
    else:
        shape = " × ".join("?" if one is None else str(one) for one in tensor.shape) or "scalar"
    told = {"word": word, "name": tensor.name, "dtype": tensor.dtype or "–", "shape": shape}
    return {**told, "stored": tensor.constant, "grid": grid_words(tensor)}

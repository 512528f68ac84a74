"""What the page of a job's graph is made of: its artifact, its report, and what was drawn of them before."""

from __future__ import annotations

from dataclasses import dataclass

from service.artifacts import service as artifacts
from service.contracts.graph_view import GRAPH_KIND, MOST_BYTES, GraphUnreadableError, GraphView, read_graph
from service.contracts.report import LayerFigures
from service.dashboard.graph_drawing import Drawing, rows_by_node
from service.dashboard.recent import Recent
from service.deps import AppState
from service.jobs import service as jobs
from service.jobs.schemas import JobOut
from service.jobs.views import job_out
from service.reports.reading import is_evaluation, whole_report
from service.tables import Artifact, ReportRow

# Graphs with their reports, and drawings, that a process keeps; a graph of thousands of nodes has megabytes.
_GRAPHS, _DRAWINGS = 3, 24
EVALUATION = "An evaluation quantizes nothing, so that it has no graph."
MISSING = "This job keeps no graph: it ran before graphs were kept, or its graph is too large to be drawn."
UNREADABLE = "The graph of this job cannot be read: it is not of a form that this service knows."


@dataclass(frozen=True)
class Sources:
    """Where a page comes from.

    Attributes:
        job: whose graph it is.
        report: the row of its report.
        artifact: the graph; None: there is none.
    """

    job: JobOut
    report: ReportRow
    artifact: Artifact | None


@dataclass(frozen=True)
class Known:
    """A graph with the figures of its nodes.

    Attributes:
        layers: all rows of the report.
        rows: the report's row of each node.
        view: the graph; None: there is none.
        missing: why there is none.
    """

    layers: tuple[LayerFigures, ...]
    rows: dict[str, LayerFigures]
    view: GraphView | None
    missing: str = ""


graphs: Recent[Known] = Recent(_GRAPHS)
drawings: Recent[Drawing] = Recent(_DRAWINGS)


def sources(app: AppState, tenant_id: str, job_id: str) -> Sources:
    """What the database tells.

    Raises:
        JobNotFoundError: the tenant has no such job.
        ReportNotReadyError, ReportNotFoundError: it has not ended, or ended without a report.
    """
    row = jobs.report(app, tenant_id, job_id)
    view = jobs.get(app, tenant_id, job_id)
    found = next((one for one in view.artifacts if one.kind == GRAPH_KIND), None)
    return Sources(job_out(view), row, found)


def known(app: AppState, of: Sources) -> Known:
    """The graph and the figures, read once for a while; computes.

    Raises:
        ReportNotRenderableError: the report is of a form that is not known here.
        StoredFileMissingError, StoredFileCorruptError: the store lacks the graph.
    """
    return graphs.get((of.report.job_id, of.report.attempt), lambda: _read(app, of))


def _read(app: AppState, of: Sources) -> Known:
    if is_evaluation(of.report):
        return Known((), {}, None, EVALUATION)
    layers = whole_report(of.report).layers
    rows = rows_by_node(layers)
    if of.artifact is None:
        return Known(layers, rows, None, MISSING)
    if of.artifact.size_bytes > MOST_BYTES:
        return Known(layers, rows, None, UNREADABLE)
    with artifacts.open_content(app, of.artifact).stream as stream:
        data = stream.read()
    try:
        return Known(layers, rows, read_graph(data))
    except GraphUnreadableError:
        return Known(layers, rows, None, UNREADABLE)

"""Graphs of jobs that have succeeded, as the pages draw them."""

from __future__ import annotations

from service.contracts.graph_view import GraphNode, GraphTensor, GraphView, cut_name
from service.contracts.report import Report
from service.jobs.outcome import QuantizeOutcome
from tests.support.front import Front
from tests.support.reports import bell, full_report, layer


def chain(names: list[str], modules: list[tuple[str, ...]] | None = None) -> GraphView:
    """Nodes that each read what the one before makes."""
    tensors = [GraphTensor(name=f"t{k}", dtype="float32", shape=("N", 3, None)) for k in range(len(names) + 1)]
    nodes = [
        GraphNode(name=cut_name(name), op="Conv", modules=modules[k] if modules else (), inputs=(k,), outputs=(k + 1,))
        for k, name in enumerate(names)
    ]
    return GraphView(inputs=(0,), outputs=(len(names),), tensors=tuple(tensors), nodes=tuple(nodes))


def job(front: Front, report: Report, graph: GraphView | bytes | None) -> str:
    """A job that succeeded, with this graph."""
    job_id = front.new_job()
    artifacts = [front.kept("model", "q.onnx", job_id.encode())]
    if graph is not None:
        data = graph if isinstance(graph, bytes) else graph.to_bytes()
        artifacts.append(front.kept("graph", "graph.json", data, "application/json"))
    front.finish(job_id, QuantizeOutcome(report, tuple(artifacts)))
    return job_id


def large_job(front: Front, count: int) -> tuple[str, list[str]]:
    """A job of so many nodes with long names, ten to a module; and the names."""
    names = [f"/model/layer.{k // 100}/block.{k % 100 // 10}/node.{k}" + "x" * 150 for k in range(count)]
    modules = [(f"layer.{k // 100}", f"layer.{k // 100}.block.{k % 100 // 10}") for k in range(count)]
    histogram = bell(-1, 1, clip_low=-0.9, clip_high=0.9)
    rows = [layer(one, sqnr_db=k / 20, weight_dtype="int8", weight_histogram=histogram) for k, one in enumerate(names)]
    return job(front, full_report(layers=rows), chain(names, modules)), names

"""Models: the list, one model with its versions, aliases and jobs, and what a target would make of it."""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import urlencode

from fastapi import APIRouter, Request, Response

from service.contracts.compatibility import model_notes, staying_ops
from service.contracts.config import QuantizationConfig
from service.contracts.graph_view import Inspection
from service.contracts.model import ModelSummary
from service.contracts.targets import TARGET_DESCRIPTIONS
from service.dashboard import tradeoffs
from service.dashboard.forms import sent
from service.dashboard.new_job import DEQUANTIZE
from service.dashboard.pages import PageRoute, page, see
from service.dashboard.resources import resource_routes
from service.deps import AppDep, AppState, PrincipalDep
from service.inspections import service as inspections
from service.inspections.service import inspection_out
from service.jobs import service as jobs
from service.jobs.repository import JobQuery
from service.jobs.views import job_listed
from service.models.service import model_in_list, model_out
from service.names.kinds import MODELS
from service.names.service import get
from service.reports import charts
from service.tables import Model

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LAST, _ON_PLANE = 10, 200
_NODES = 1000
_TARGETS = [(name, f"{name}: {words}") for name, words in TARGET_DESCRIPTIONS.items()]


@router.post("/models/{ref}/inspect")
async def inspect_model(request: Request, ref: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Find out what a target would run on integers."""
    target = (await sent(request)).text("target")
    config = await app.checks.run(lambda: inspections.aimed_at(QuantizationConfig(), target))
    row = await app.writes.run(lambda: inspections.inspect(app, principal, ref, config))
    return see(request, f"/models/{row.model_id}/inspections/{row.id}")


@router.get("/models/{ref}/inspections/{inspection_id}")
async def get_inspection(
    request: Request, ref: str, inspection_id: str, app: AppDep, principal: PrincipalDep
) -> Response:
    """What a target would make of the model, or that this is being found out."""

    def look() -> tuple[Any, Any]:
        row = inspections.get(app, principal.tenant_id, inspection_id)
        return row, get(app, MODELS, principal.tenant_id, row.model_id)

    row, model = await app.reads.run(look)
    told = inspection_out(row)
    result = told.result
    return page(
        request,
        "inspection.html.jinja",
        inspection=told,
        model=model_in_list(model),
        target=told.config.get("target", ""),
        reasons=[] if result is None else _reasons(result),
        nodes=() if result is None else result.nodes[:_NODES],
        targets=_TARGETS,
    )


def _facts(app: AppState, tenant_id: str, ref: str) -> tuple[Model, dict[str, Any]]:
    """The row, and what the template takes beside what both kinds have.

    Raises:
        ModelNotFoundError: the tenant has no such model.
    """
    row = get(app, MODELS, tenant_id, ref)
    last, _ = jobs.list_page(app, tenant_id, JobQuery(model_id=row.id), after=None, limit=_LAST)
    done = JobQuery(model_id=row.id, state="succeeded")
    views, more = jobs.list_page(app, tenant_id, done, after=None, limit=_ON_PLANE)
    model = model_out(row)
    counts = {} if model.summary is None else model.summary.op_counts
    notes = model_notes(counts)
    floating = {"model_id": row.id, "config": json.dumps(DEQUANTIZE)}
    return row, {
        "resource": model,
        "model": model,
        "quantized": notes[0] if notes else "",
        "make_float": "?" + urlencode(floating) if notes and not staying_ops(counts) else "",
        "ops": [] if model.summary is None else _ops(model.summary),
        "targets": _TARGETS,
        "jobs": [job_listed(view) for view in last],
        "tradeoff": tradeoffs.of_jobs(
            (job.name, f"/jobs/{job.id}", job.figures) for job in map(job_listed, views) if job.figures is not None
        ),
        "tradeoff_more": _ON_PLANE if more is not None else 0,
    }


def _ops(summary: ModelSummary) -> list[tuple[str, int, Any]]:
    """Operators, the most frequent first, with their bars."""
    counts = sorted(summary.op_counts.items(), key=lambda item: (-item[1], item[0]))
    most = max(summary.op_counts.values(), default=1)
    return [(op, count, charts.bar(count / most)) for op, count in counts]


def _reasons(result: Inspection) -> list[dict[str, Any]]:
    """Why nodes, or their activations, stay in float: the most frequent reason first, what is by design last."""
    found: dict[tuple[str, bool], dict[str, Any]] = {}
    for node in result.nodes:
        words = node.activation_reason if node.quantized else node.reason
        if words is None:
            continue
        code = node.activation_reason_code if node.quantized else node.reason_code
        first = {"words": words, "code": code, "hint": node.hint, "by_design": node.by_design}
        reason = found.setdefault((words, node.by_design), {**first, "names": []})
        reason["names"].append(f"{node.name} ({node.op})" if node.name else node.op)
    return sorted(found.values(), key=lambda one: (one["by_design"], -len(one["names"])))


router.include_router(resource_routes(MODELS, model_in_list, _facts))

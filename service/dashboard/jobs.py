"""Jobs: the list with its filters, one job, and what can be done with it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response

from service.comparison.differences import differences
from service.contracts.config import QuantizationConfig
from service.contracts.errors import InvalidRequestError
from service.contracts.presets import PRESETS, find_preset
from service.contracts.runner import RESULT_STAGE
from service.dashboard.comparing import with_baseline
from service.dashboard.forms import STATES, latency_of, pretty, told_at
from service.dashboard.listing import FilterWords, ListFilters, one_of, one_page, pairs
from service.dashboard.pages import PageRoute, add_act, page, see
from service.dashboard.reproduce import commands
from service.dashboard.trials import curves_of
from service.datasets.schemas import DatasetNotFoundError
from service.deps import AppDep, AppState, PrincipalDep
from service.http import CursorParameter
from service.jobs import records, service
from service.jobs.errors import JobNotFoundError
from service.jobs.naming import recipe
from service.jobs.repository import JobQuery
from service.jobs.schemas import TERMINAL, JobOut
from service.jobs.views import job_listed, job_out
from service.names import service as names
from service.names.kinds import DATASETS
from service.reports import verdict
from service.reports.verdict import Told
from service.tables import JobEvent

_JOB_PAGE_STATES, _TAIL = 200, 120
# Fields of the config in which every job differs from its preset, whatever was asked for.
_NO_SETTINGS = frozenset({"/preset", "/schema_version"})


# Of stages: mark, words for those who do not see it, tone.
MARKS: dict[str, Told] = {
    "done": Told("✔", "Done", "good"),
    "now": Told("▶", "Running", "unsure"),
    "failed": Told("✖", "Failed", "bad"),
    "stopped": Told("◼", "Stopped", "plain"),
}
# What the stage that came last is in, by the state of the job.
_LAST = {"running": "now", "canceling": "now", "failed": "failed", "succeeded": "done"}


def shown(app: AppState, tenant_id: str, job_id: str, base_url: str) -> dict[str, Any]:
    """What the template takes.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    view = service.get(app, tenant_id, job_id)
    # What comes behind this number is told by the event stream, and shown once.
    job, last = job_out(view), view.job.last_seq
    told = records.told(app, tenant_id, job_id, upto=last, states=_JOB_PAGE_STATES, lines=_TAIL)
    return {
        "job": job,
        "stages": stages_of(job.state, told.stages),
        "early_result": _early_result(told.stages),
        "marks": MARKS,
        "stages_attempt": told.stages[0].attempt if told.stages else job.attempt,
        "ended": job.state in TERMINAL,
        "has_report": job.figures is not None,
        "source": _source(app, tenant_id, job),
        "critical": _critical(app, tenant_id, job),
        "last_seq": last,
        "timeline": [_change(event) for event in told.states],
        "curves": curves_of(app, tenant_id, job_id),
        "log": records.log_text(told.log),
        "data": _data(app, tenant_id, job),
        "differing": _differing(job),
        "config": pretty(job.config),
        "again": commands(job, base_url),
        "recipe": recipe(job.preset, job.algorithms),
        "latency": None if job.figures is None else latency_of(job.figures),
    }


def stages_of(state: str, told: Sequence[JobEvent]) -> list[tuple[str, str, str]]:
    """The stages of an attempt in the order in which it came to them: name, a key of ``MARKS``, what it told last.

    Args:
        state: of the job.
        told: the last progress of each stage.
    """
    newest = max((event.seq for event in told), default=0)
    found = []
    for event in told:
        if event.data["stage"] == RESULT_STAGE:
            continue  # its message is shown by itself
        how = _LAST.get(state, "stopped") if event.seq == newest else "done"
        found.append((str(event.data["stage"]), how, _reached(event.data, ended=how == "done")))
    return found


def _early_result(told: Sequence[JobEvent]) -> str:
    """What the last attempt has measured, where it only tries advice by now; "" before."""
    return next((str(event.data["message"]) for event in told if event.data["stage"] == RESULT_STAGE), "")


def _reached(data: Mapping[str, Any], *, ended: bool) -> str:
    """How far a stage is; of one that is done how much that was, where it has told of the last part."""
    done, total, unit = data.get("done") or 0, data.get("total"), data.get("unit") or ""
    if not total or (ended and done >= total):
        return f"{done} {unit}".rstrip() if done else ""
    return "" if ended else f"{done}/{total} {unit}".rstrip()


def _source(app: AppState, tenant_id: str, job: JobOut) -> str:
    """The query that compares the job with the one that it was made from; "" where either has no report."""
    source = job.cloned_from or job.retry_of
    if source is None or job.figures is None:
        return ""
    try:
        has_report = service.get(app, tenant_id, source).result is not None
    except JobNotFoundError:
        return ""  # it was deleted
    return with_baseline(source, [job.id]) if has_report else ""


def _critical(app: AppState, tenant_id: str, job: JobOut) -> str:
    """The first critical finding of the job's report; "" where there is none."""
    if job.figures is None or not job.figures.critical_findings:
        return ""
    findings = service.report(app, tenant_id, job.id).body["findings"]
    return next((verdict.sentence(str(one["message"])) for one in findings if one["severity"] == "critical"), "")


def _data(app: AppState, tenant_id: str, job: JobOut) -> list[tuple[str, str, str]]:
    """Of each of the job's datasets: what for, its id, its name and version; the id again if it is gone."""
    found = []
    for use, dataset_id in (("Calibration", job.calibration_dataset_id), ("Evaluation", job.evaluation_dataset_id)):
        if dataset_id is not None:
            try:
                row = names.get(app, DATASETS, tenant_id, dataset_id)
            except DatasetNotFoundError:
                found.append((use, dataset_id, dataset_id))
            else:
                found.append((use, dataset_id, f"{row.name}@{row.version}"))
    return found


def _change(event: JobEvent) -> tuple[datetime, str, int, str]:
    """When the job came into which state, in which attempt, and why."""
    data = event.data
    deed = str(data.get("name", "")).removeprefix("job.").replace("_", " ")
    told = [word for word in (deed, str(data.get("reason") or "")) if word and word != data.get("state")]
    if isinstance(data.get("error"), dict):
        told.append(str(data["error"].get("title", "")))
    return event.created_at, str(data.get("state", "")), event.attempt, ", ".join(told)


def _differing(job: JobOut) -> list[tuple[str, str, str]]:
    """The fields of the resolved config that its preset has otherwise, with its value and the job's."""
    preset = None if job.preset is None else find_preset(job.preset)
    if preset is None or job.config is None or job.kind != "quantize":
        return []
    plain = QuantizationConfig(preset=preset.name).model_dump(mode="json")
    return [
        (one.pointer, json.dumps(one.values[0]), json.dumps(one.values[1]))
        for one in differences([plain, job.config])
        if one.pointer not in _NO_SETTINGS
    ]


router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LIMIT = 50
_STATES = ("queued", "running", "canceling", "succeeded", "failed", "canceled")
_OUTCOMES = {
    **{one: verdict.outcome(one).word for one in ("pass", "fail", "undecided", "none")},
    "collapsed": verdict.outcome("none", collapsed=True).word,
    "critical": verdict.outcome("none", critical=True).word,
}


class _Filters(ListFilters):
    """What the list is filtered by."""

    search: FilterWords = ""
    state: FilterWords = ""
    verdict: FilterWords = ""
    preset: FilterWords = ""
    label: FilterWords = ""
    model_id: FilterWords = ""


@router.get("/jobs")
async def list_jobs(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    asked: Annotated[_Filters, Query()],
    cursor: CursorParameter = None,
) -> Response:
    """Jobs, newest first; every filter is part of the address."""
    errors, labels = {}, {}
    try:
        labels = pairs(asked.label, "label")
    except InvalidRequestError as error:
        errors["label"] = told_at(error)
    query = JobQuery(
        search=asked.search or None,
        state=one_of(asked.state, _STATES, "state"),
        outcome=one_of(asked.verdict, tuple(_OUTCOMES), "verdict"),
        preset=asked.preset or None,
        model_id=asked.model_id or None,
        labels=labels,
    )
    views, next_query = (
        ([], None)
        if errors
        else await one_page(
            request,
            app,
            f"jobs|{principal.tenant_id}|{query}",
            cursor,
            lambda after: service.list_page(app, principal.tenant_id, query, after=after, limit=_LIMIT),
        )
    )
    return page(
        request,
        "jobs.html.jinja",
        status=422 if errors else 200,
        errors=errors,
        jobs=[job_listed(view) for view in views],
        filters=asked,
        states=[(one, STATES[one].word) for one in _STATES],
        verdicts=list(_OUTCOMES.items()),
        presets=[(one, one) for one in sorted(PRESETS)],
        next_query=next_query,
        choosing=True,
    )


@router.get("/jobs/{job_id}")
async def get_job(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """One job: its progress, its configuration and its log."""
    told = await app.reads.run(lambda: shown(app, principal.tenant_id, job_id, str(request.base_url)))
    return page(request, "job.html.jinja", **told)


@router.get("/jobs/{job_id}/curves")
async def get_curves(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """The curves of a job that runs, as the part of its page that holds them."""
    drawn = await app.reads.run(lambda: curves_of(app, principal.tenant_id, job_id))
    return page(request, "curves.html.jinja", curves=drawn)


@router.post("/jobs/{job_id}/retry")
async def retry_job(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Submit the same again."""
    answer = await app.writes.run(lambda: service.retry(app, principal, job_id, key=None))
    return see(request, f"/jobs/{answer.body['id']}")


add_act(router, "/jobs/{job_id}/cancel", service.cancel)
# Forget a job that has ended.
add_act(router, "/jobs/{job_id}/delete", records.remove, "/jobs")

"""The page of jobs side by side, and the one that they are chosen on."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any
from urllib.parse import urlencode

from fastapi import APIRouter, Query, Request, Response

from service.comparison import service
from service.comparison.schemas import MOST_JOBS, Comparison
from service.contracts.changes import p_words
from service.contracts.errors import InvalidRequestError
from service.dashboard import compared, tradeoffs
from service.dashboard.pages import PageRoute, page
from service.deps import AppDep, AppState, PrincipalDep
from service.jobs import service as jobs
from service.jobs.repository import JobQuery
from service.jobs.views import job_listed
from service.names.kinds import DATASETS
from service.names.service import get as named
from service.reports import charts
from service.reports.figures import metric_title
from service.resources import ResourceNotFoundError

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_FLIPS = 50
_OFFERED = 50
# From there on the bar of a layer is full.
_FULL_BAR_DB = 50.0
_CHARACTERS = 200
_LETTERS = "ABCDEFGHIJKLMNOPQRST"


@router.get("/compare")
async def compare_jobs(
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    job: Annotated[list[str] | None, Query(max_length=MOST_JOBS)] = None,
    baseline: Annotated[str, Query(max_length=64)] = "",
) -> Response:
    """The comparison of the chosen jobs, the baseline first; with fewer than two, a page to choose them on.

    Unless one is chosen, the baseline is the job that another was made from, or else the oldest.
    """
    asked = list(dict.fromkeys(one for one in (baseline, *(job or [])) if one))
    if len(asked) < 2:
        query = JobQuery(state="succeeded")
        views, _ = await app.reads.run(
            lambda: jobs.list_page(app, principal.tenant_id, query, after=None, limit=_OFFERED)
        )
        offered = [one for one in map(job_listed, views) if one.figures is not None]
        return page(
            request,
            "compare_choose.html.jinja",
            jobs=offered,
            chosen=asked,
            baseline=baseline,
            choosing=True,
            with_baseline=True,
        )
    if len(asked) > MOST_JOBS or any(len(one) > 64 for one in asked):
        raise InvalidRequestError(
            f"A comparison has at most {MOST_JOBS} jobs, and an ID at most 64 characters.", query="job"
        )
    tenant_id = principal.tenant_id
    if not baseline:
        asked = await app.reads.run(lambda: _oldest_first(app, tenant_id, asked))
    found = await app.heavy.run(lambda: service.compare(app, tenant_id, asked, most_flips=_FLIPS))
    datasets = await app.reads.run(lambda: _datasets(app, tenant_id, found))
    return page(request, "compare.html.jinja", **_shown(found, datasets))


def _oldest_first(app: AppState, tenant_id: str, job_ids: list[str]) -> list[str]:
    """The jobs as they were made, before all the first that another of them was made from."""
    found = sorted((jobs.get(app, tenant_id, one).job for one in job_ids), key=lambda job: (job.created_at, job.id))
    sources = {job.cloned_from or job.retry_of for job in found}
    return [job.id for job in sorted(found, key=lambda job: job.id not in sources)]


def _datasets(app: AppState, tenant_id: str, found: Comparison) -> dict[str, str]:
    ids = [id_ for one in found.jobs for id_ in (one.calibration_dataset_id, one.evaluation_dataset_id)]
    return dataset_names(app, tenant_id, ids)


def dataset_names(app: AppState, tenant_id: str, ids: Iterable[str | None]) -> dict[str, str]:
    """What datasets are called, by id; those that were deleted are not in it."""
    told: dict[str, str] = {}
    for dataset_id in {one for one in ids if one is not None}:
        try:
            row = named(app, DATASETS, tenant_id, dataset_id)
        except ResourceNotFoundError:
            continue
        told[dataset_id] = f"{row.name}@{row.version}"
    return told


def _shown(found: Comparison, datasets: dict[str, str]) -> dict[str, Any]:
    letters = {one.id: _LETTERS[k] for k, one in enumerate(found.jobs)}
    titles = dict(zip(letters, compared.titles(found.jobs, datasets), strict=True))
    top, below = compared.config_rows(found, _short)
    return {
        "jobs": found.jobs,
        "letters": letters,
        "titles": titles,
        "targets": compared.targets(found),
        "recipe_of": compared.recipe_of,
        "make_baseline": {one: with_baseline(one, (other for other in letters if other != one)) for one in letters},
        "rows": compared.rows(found),
        "config": top,
        "algorithm_settings": below,
        "pairs": found.pairs,
        "pair_words": compared.pair_words,
        "p_words": p_words,
        "other_metrics": compared.other_metrics,
        "pair_change": compared.pair_change,
        "metric_title": metric_title,
        "layers": [
            (layer, [(value, charts.bar((value or 0.0) / _FULL_BAR_DB)) for value in layer.sqnr_db])
            for layer in found.layers
        ],
        "layers_more": found.layers_more,
        "tradeoff": tradeoffs.of_jobs(
            ((titles[one.id], f"/jobs/{one.id}", one) for one in found.jobs), list(letters.values())
        ),
        "csv": "/v1/compare.csv?" + urlencode([("job", one) for one in letters]),
    }


def with_baseline(baseline: str, others: Iterable[str]) -> str:
    """The query that compares jobs with this one."""
    return "?" + urlencode([("baseline", baseline), *(("job", one) for one in others)])


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _CHARACTERS else f"{text[: _CHARACTERS - 1]}…"

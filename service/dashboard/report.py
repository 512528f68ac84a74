"""The report of one job as a page, and links that show it to others."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote

from fastapi import APIRouter, Request, Response
from fastapi.responses import HTMLResponse

from service.comparison.differences import ClassChanges, changes
from service.comparison.evidence import MOST_BYTES, samples_among, samples_of
from service.comparison.samples import SamplesUnreadableError
from service.contracts.base import read_stored
from service.contracts.changes import Change, metric_change
from service.contracts.dataset import DatasetSummary
from service.contracts.evaluation_report import EvaluatedMetric, EvaluationReport
from service.contracts.report import Advice, Report, by_contribution
from service.contracts.sheets import SHEET_SIDE, sheet_corner, sheet_numbers, sheet_size
from service.dashboard.forms import sent
from service.dashboard.listing import Words
from service.dashboard.pages import PageRoute, page, root_of
from service.datasets.schemas import DatasetNotFoundError
from service.deps import AppDep, AppState, PrincipalDep, count_request
from service.http import etag_matches
from service.jobs import service
from service.jobs.views import JobView, job_listed
from service.middleware import EMBEDDABLE
from service.names import service as names
from service.names.kinds import DATASETS
from service.reports import verdict
from service.reports.formats import FORMATS, rendered, renderer_version
from service.reports.html import SECURITY_POLICY, parts
from service.reports.layers import gain_words, storage_words
from service.reports.page_pictures import speed_chart
from service.reports.reading import DAYS, any_report, share, shared, whole_report
from service.storage import StoredFileCorruptError, StoredFileMissingError
from service.tables import Dataset, ReportRow

# Longer fragments are for the clipboard: addresses of this length are taken by /new.
MOST_PATCH_CHARS = 6000
_ROWS, _MOST_ROWS, _MOST_CHANGED, _MOST_OPS, _OP_CHARS = 100, 2000, 50, 200, 200
_NODE_CHARS = 600


@dataclass(frozen=True)
class ChangedSamples:
    """Samples whose answer changed."""

    found: ClassChanges | None  # what the job's results by sample tell; None: nothing
    why: str = ""  # why there is nothing
    classes: tuple[str, ...] = ()  # names of classes by number, where the dataset has some
    # by number of the sample, where its picture stands on the sheet of the dataset
    pictures: dict[int, dict[str, Any]] | None = None

    def named(self, number: int | None) -> str:
        """A class in words."""
        if number is None:
            return "–"
        return f"{number} {self.classes[number]}" if 0 <= number < len(self.classes) else str(number)

    def picture(self, number: int) -> dict[str, Any] | None:
        """The picture of a sample, where it is on the sheet."""
        return (self.pictures or {}).get(number)


def layer_list(report: Report, *, named: str, op: str, kind: str, every: bool = False) -> dict[str, Any]:
    """The first layers that a filter lets through, or all of them up to a bound.

    The largest error contribution comes first, layers in float last.

    Args:
        report: whose layers.
        named: a part of the layer's name, or of a node's; empty, as in all parts of the filter: any.
        op: the operator.
        kind: quantized or float.
        every: whether all are wanted.
    """
    text = named.casefold()
    found = [
        layer
        for layer in report.layers
        if (not text or any(text in one.casefold() for one in (layer.name, *layer.nodes)))
        and (not op or layer.op == op)
        and (not kind or (layer.reason is None) == (kind == "quantized"))
    ]
    found = [*by_contribution(found), *(layer for layer in found if layer.reason is not None)]
    shown = found[: _MOST_ROWS if every else _ROWS]
    rows = [{"layer": one, "stored": storage_words(one), "gained": gain_words(one)} for one in shown]
    ops = sorted({layer.op for layer in report.layers if len(layer.op) <= _OP_CHARS and layer.op.isprintable()})
    counts = {"found": len(found), "total": len(report.layers), "most": _MOST_ROWS}
    return {"rows": rows, "ops": [(one, one) for one in ops[:_MOST_OPS]], **counts}


def try_address(root: str, job_id: str, advice: Advice) -> str | None:
    """Where a new job begins as this one was, with the advice put in; None: no address can hold it."""
    patch = quote(json.dumps(advice.config, separators=(",", ":")), safe="")
    return f"{root}/new?from={job_id}&patch={patch}" if len(patch) <= MOST_PATCH_CHARS else None


def node_address(root: str, job_id: str, layer: str) -> str | None:
    """Where the graph shows a layer; None: its name is too long for an address."""
    key = quote(layer, safe="", errors="replace")
    return f"{root}/jobs/{job_id}/graph?node={key}#node" if layer and len(key) <= _NODE_CHARS else None


def changed_samples(app: AppState, tenant_id: str, view: JobView, source: str) -> ChangedSamples:
    """The samples whose answer changed, as far as the job has kept them; reads the store.

    Args:
        app: of the process.
        tenant_id: whose job.
        view: the job.
        source: which data was measured on; see ``Fidelity``.
    """
    file = samples_among(view.artifacts)
    if file is None or file.size_bytes > MOST_BYTES:
        return ChangedSamples(None, "The job stores no results per sample: samples have no class, or are too many.")
    try:
        found = changes(samples_of(app, file), _MOST_CHANGED)
    except (SamplesUnreadableError, StoredFileMissingError, StoredFileCorruptError) as error:
        return ChangedSamples(None, error.detail)
    if found is None:
        return ChangedSamples(None, "The model output contains no class per sample.")
    ids = {"evaluation": view.job.evaluation_dataset_id, "calibration": view.job.calibration_dataset_id}
    dataset = _dataset(app, tenant_id, ids.get(source))
    summary = None if dataset is None or not dataset.summary else read_stored(DatasetSummary, dataset.summary)
    if dataset is None or summary is None or summary.samples != found.samples:
        return ChangedSamples(found)
    classes = () if summary.media is None else summary.media.classes or ()
    pictures = _pictures(dataset.id, summary.samples) if summary.thumbnails and dataset.thumbnails_sha256 else {}
    return ChangedSamples(found, "", classes, pictures)


def _dataset(app: AppState, tenant_id: str, dataset_id: str | None) -> Dataset | None:
    if dataset_id is None:
        return None
    try:
        return names.get(app, DATASETS, tenant_id, dataset_id)
    except DatasetNotFoundError:
        return None  # it was deleted since: the samples are told by their numbers


def _pictures(dataset_id: str, samples: int) -> dict[int, dict[str, Any]]:
    numbers = sheet_numbers(samples)
    width, height = sheet_size(len(numbers))
    found = {}
    for place, number in enumerate(numbers):
        left, top = sheet_corner(place)
        box = f"{left} {top} {SHEET_SIDE} {SHEET_SIDE}"
        address = f"/v1/datasets/{dataset_id}/thumbnails"
        found[number] = {"address": address, "view_box": box, "width": width, "height": height}
    return found


def _metric_change(metric: EvaluatedMetric) -> Change:
    return metric_change(metric.drop, metric.unit, better=metric.better, drop_interval=metric.drop_interval)


router = APIRouter(route_class=PageRoute, include_in_schema=False)
_KINDS = [("quantized", "Quantized"), ("float", "Float")]
_SPANS = [(str(days), "1 day" if days == 1 else f"{days} days") for days in DAYS]
_USUAL = "7"


@router.get("/jobs/{job_id}/report")
async def get_report(
    request: Request,
    job_id: str,
    app: AppDep,
    principal: PrincipalDep,
    layer: Words = "",
    op: Words = "",
    kind: Literal["", "quantized", "float"] = "",
    every: Literal["", "yes"] = "",
) -> Response:
    """What quantization did, and what would help; the filter of layers is part of the address."""
    tenant_id = principal.tenant_id

    def read() -> tuple[ReportRow, JobView]:
        return service.report(app, tenant_id, job_id), service.get(app, tenant_id, job_id)

    row, view = await app.reads.run(read)
    report = await app.heavy.run(lambda: any_report(row))
    if isinstance(report, EvaluationReport):
        evaluated = report
        return await app.heavy.run(
            lambda: page(
                request,
                "job_evaluation.html.jinja",
                job=job_listed(view),
                report=evaluated,
                conditions=verdict.conditions(evaluated),
                changed=_metric_change,
                interval_words=verdict.interval_words,
                speed=speed_chart(evaluated.latency),
            )
        )
    found = report

    def show() -> HTMLResponse:
        def try_it(advice: Advice) -> str | None:
            return try_address(root_of(request), job_id, advice) if principal.may("submit") else None

        def shown_at(layer: str) -> str | None:
            return node_address(root_of(request), job_id, layer)

        return page(
            request,
            "job_report.html.jinja",
            job=job_listed(view),
            report=found,
            kinds=_KINDS,
            spans=_SPANS,
            usual=_USUAL,
            parts=parts(found, try_it, "#layer-list", shown_at),
            node_address=shown_at,
            listed=layer_list(found, named=layer, op=op, kind=kind, every=bool(every)),
            filters={"layer": layer, "op": op, "kind": kind},
            changed=changed_samples(app, tenant_id, view, found.fidelity.source),
        )

    return await app.heavy.run(show)


@router.post("/jobs/{job_id}/share")
async def share_report(request: Request, job_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Make a link that shows the report, and nothing else, to whoever has it."""
    days = (await sent(request)).text("days") or ""
    known = days in dict(_SPANS)
    made = await app.writes.run(lambda: share(app, principal, job_id, int(days))) if known else None
    return page(
        request,
        "job_shared.html.jinja",
        status=200 if known else 422,
        job_id=job_id,
        spans=_SPANS,
        days=days if known else _USUAL,
        error="" if known else "Choose one of the options.",
        link="" if made is None else f"{str(request.base_url).rstrip('/')}/shared/{made.token}",
        ends_at=None if made is None else made.ends_at,
    )


@router.get("/shared/{token}")
async def get_shared(request: Request, token: str, app: AppDep) -> Response:
    """The report that a link shows, to anybody, also within pages of others."""
    row = await app.reads.run(lambda: shared(app, token))
    await count_request(request, app, row.tenant_id)
    headers = {
        "ETag": f'"{row.job_id}.{row.attempt}.shared.{renderer_version()}"',
        "Cache-Control": "private, no-cache",
        "Content-Security-Policy": f"sandbox; {SECURITY_POLICY}; {EMBEDDABLE}",
        "Cross-Origin-Resource-Policy": "cross-origin",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "X-Robots-Tag": "noindex",
    }
    if etag_matches(request.headers.get("If-None-Match"), headers["ETag"]):
        return Response(status_code=304, headers=headers)
    document = await app.heavy.run(lambda: rendered(whole_report(row), "html"))
    return Response(document, media_type=FORMATS["html"].media_type, headers=headers)

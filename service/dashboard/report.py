"""The report of one job as a page, and links that show it to others."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse

from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report import Advice, Report
from service.dashboard.forms import sent
from service.dashboard.pages import PageRoute, page, root_of
from service.dashboard.report_page import LayerFilter, changed_samples, layer_list, try_address
from service.deps import AppDep, PrincipalDep, count_request
from service.http import PLAIN_TEXT, etag_matches
from service.jobs import service
from service.jobs.views import JobView, job_listed
from service.middleware import EMBEDDABLE
from service.reports import verdict
from service.reports.formats import FORMATS, rendered, renderer_version
from service.reports.gains import change_words
from service.reports.html import SECURITY_POLICY, parts
from service.reports.page_pictures import speed_chart
from service.reports.reading import any_report, whole_report
from service.reports.sharing import DAYS, share, shared
from service.tables import ReportRow

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_KINDS = [("quantized", "quantized"), ("float", "left in float")]
_SPANS = [(str(days), "1 day" if days == 1 else f"{days} days") for days in DAYS]
_USUAL = "7"
Words = Annotated[str, Query(max_length=200, pattern=PLAIN_TEXT)]


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
    """What quantization did, and what would help; the filter of layers stands in the address."""
    tenant_id = principal.tenant_id

    def read() -> tuple[ReportRow, JobView]:
        return service.report(app, tenant_id, job_id), service.get(app, tenant_id, job_id)

    row, view = await app.reads.run(read)
    report = await app.heavy.run(lambda: any_report(row))
    if isinstance(report, EvaluationReport):
        evaluated = report
        return await app.heavy.run(lambda: _evaluation(request, view, evaluated))
    found = report

    def show() -> HTMLResponse:
        def try_it(advice: Advice) -> str | None:
            return try_address(root_of(request), job_id, advice) if principal.may("submit") else None

        return _quantization(
            request,
            view,
            found,
            parts=parts(found, try_it, "#layer-list"),
            listed=layer_list(found, LayerFilter(layer, op, kind), every=bool(every)),
            filters={"layer": layer, "op": op, "kind": kind},
            changed=changed_samples(app, tenant_id, view, found.fidelity.source),
        )

    return await app.heavy.run(show)


def _quantization(request: Request, view: JobView, report: Report, **shown: Any) -> HTMLResponse:
    return page(
        request,
        "job_report.html.jinja",
        job=job_listed(view),
        report=report,
        kinds=_KINDS,
        spans=_SPANS,
        usual=_USUAL,
        **shown,
    )


def _evaluation(request: Request, view: JobView, report: EvaluationReport) -> HTMLResponse:
    return page(
        request,
        "job_evaluation.html.jinja",
        job=job_listed(view),
        report=report,
        conditions=verdict.conditions(report),
        change_words=change_words,
        interval_words=verdict.interval_words,
        speed=speed_chart(report.latency),
    )


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
        error="" if known else "Choose one of these.",
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

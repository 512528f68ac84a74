"""HTTP face of rendered reports; the report itself, as JSON, is served by ``service.jobs``."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Response

from service.deps import AppDep, AppState, PrincipalDep
from service.http import Responses, etag_matches, problems
from service.jobs import service
from service.jobs.service import ReportNotFoundError, ReportNotReadyError
from service.reports.formats import FORMATS, FormatName, rendered, renderer_version
from service.reports.html import SECURITY_POLICY
from service.reports.reading import ReportFormMissingError, ReportNotRenderableError, whole_report

router = APIRouter(tags=["jobs"])


IfNoneMatch = Annotated[str | None, Header()]


def _responses(form: FormatName) -> Responses:
    media_type = FORMATS[form].media_type.partition(";")[0]
    ok: dict[str, Any] = {"description": "The document", "content": {media_type: {"schema": {"type": "string"}}}}
    refusals = problems(ReportNotReadyError, ReportNotFoundError, ReportFormMissingError, ReportNotRenderableError)
    return {200: ok, 304: {"description": "Not changed"}} | refusals


@router.get("/v1/jobs/{job_id}/report.html", response_class=Response, responses=_responses("html"))
async def get_report_html(
    job_id: str, app: AppDep, principal: PrincipalDep, if_none_match: IfNoneMatch = None
) -> Response:
    """Get the report as a single HTML page, without scripts or external resources."""
    return await _answer(app, principal.tenant_id, job_id, "html", if_none_match)


@router.get("/v1/jobs/{job_id}/report.md", response_class=Response, responses=_responses("markdown"))
async def get_report_markdown(
    job_id: str, app: AppDep, principal: PrincipalDep, if_none_match: IfNoneMatch = None
) -> Response:
    """Get the report as Markdown, for merge requests."""
    return await _answer(app, principal.tenant_id, job_id, "markdown", if_none_match)


@router.get("/v1/jobs/{job_id}/report.junit.xml", response_class=Response, responses=_responses("junit"))
async def get_report_junit(
    job_id: str, app: AppDep, principal: PrincipalDep, if_none_match: IfNoneMatch = None
) -> Response:
    """Get the gate and the critical findings as JUnit XML, for CI."""
    return await _answer(app, principal.tenant_id, job_id, "junit", if_none_match)


@router.get("/v1/jobs/{job_id}/report/layers.csv", response_class=Response, responses=_responses("layers_csv"))
async def get_report_layers(
    job_id: str, app: AppDep, principal: PrincipalDep, if_none_match: IfNoneMatch = None
) -> Response:
    """Get the figures of all layers as CSV, one row per layer."""
    return await _answer(app, principal.tenant_id, job_id, "layers_csv", if_none_match)


async def _answer(app: AppState, tenant_id: str, job_id: str, form: FormatName, if_none_match: str | None) -> Response:
    """The document, or 304 where the client has it.

    Raises:
        JobNotFoundError, ReportNotReadyError, ReportNotFoundError: as for the report itself.
        ReportNotRenderableError: it is of a form that is not known here.
    """
    row = await app.reads.run(lambda: service.report(app, tenant_id, job_id))
    shape = FORMATS[form]
    # A page is shown, cut off from this host by its policy; all else is stored.
    place = "inline" if form == "html" else "attachment"
    headers = {
        "ETag": f'"{row.job_id}.{row.attempt}.{form}.{renderer_version()}"',
        "Cache-Control": "private, no-cache",
        "Content-Disposition": f'{place}; filename="{row.job_id}{shape.suffix}"',
        "Content-Security-Policy": f"sandbox; {SECURITY_POLICY}; frame-ancestors 'none'",
        "X-Content-Type-Options": "nosniff",
        "Referrer-Policy": "no-referrer",
        "Cross-Origin-Resource-Policy": "same-origin",
    }
    if etag_matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    # a report of thousands of layers takes a second to draw
    document = await app.heavy.run(lambda: rendered(whole_report(row), form))
    return Response(document, media_type=shape.media_type, headers=headers)

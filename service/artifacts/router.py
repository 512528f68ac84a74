"""HTTP routes of artifacts."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import RedirectResponse

from service.artifacts import service
from service.artifacts.content import Content, content_range, file_response, not_modified
from service.artifacts.schemas import ArtifactLinks, ArtifactList, ArtifactOut, RangeNotSatisfiableError
from service.deps import AppDep, PrincipalDep, reading
from service.http import Responses, problems
from service.storage import StoredFileCorruptError, StoredFileMissingError
from service.tables import Artifact
from service.tables.base import record_of

router = APIRouter(tags=["artifacts"])

_FILE = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
_FILE_RESPONSES: Responses = {
    200: {"description": "The file", "content": _FILE},
    206: {"description": "The requested range", "content": _FILE},
    304: {"description": "Not modified"},
    307: {"description": "The file is at the signed URL in Location"},
}


@router.get("/v1/jobs/{job_id}/artifacts")
@reading
def list_artifacts(job_id: str, app: AppDep, principal: PrincipalDep) -> ArtifactList:
    """List the files that a job created; empty until it has succeeded."""
    found = service.list_of_job(app, principal.tenant_id, job_id)
    return ArtifactList(items=[_out(artifact) for artifact in found])


@router.get("/v1/artifacts/{artifact_id}")
@reading
def get_artifact(artifact_id: str, app: AppDep, principal: PrincipalDep) -> ArtifactOut:
    """Get an artifact's metadata."""
    return _out(service.get(app, principal.tenant_id, artifact_id))


@router.head("/v1/artifacts/{artifact_id}/content", responses=_FILE_RESPONSES, response_class=Response)
@reading
def head_content(artifact_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Get the size, type and digest of an artifact's file."""
    artifact = service.get(app, principal.tenant_id, artifact_id)
    headers = {**_content(artifact).headers(), "Content-Length": str(artifact.size_bytes)}
    return Response(headers=headers, media_type=artifact.media_type)


@router.get(
    "/v1/artifacts/{artifact_id}/content",
    responses=_FILE_RESPONSES | problems(RangeNotSatisfiableError, StoredFileMissingError, StoredFileCorruptError),
    response_class=Response,
)
@reading
def get_content(
    artifact_id: str,
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    redirect: Annotated[
        bool, Query(description="Respond with 307 and a signed URL of the bucket, if the service offers such URLs.")
    ] = False,
) -> Response:
    """Download an artifact's file. Supports Range, If-Range and If-None-Match. The ETag is the SHA-256 of the file."""
    artifact = service.get(app, principal.tenant_id, artifact_id)
    content = _content(artifact)
    if not_modified(content, request.headers):
        return Response(status_code=304, headers=content.headers())
    if redirect and (url := service.signed_url(app, artifact)) is not None:
        return RedirectResponse(url, 307, {"Cache-Control": "no-store"})
    part = content_range(content, request.headers)
    return file_response(service.open_content(app, artifact), content, part, app.writes)


def _content(artifact: Artifact) -> Content:
    return Content(artifact.filename, artifact.media_type, artifact.size_bytes, artifact.sha256)


def _out(artifact: Artifact) -> ArtifactOut:
    path = f"/v1/artifacts/{artifact.id}"
    return record_of(
        artifact,
        ArtifactOut,
        links=ArtifactLinks(self=path, content=f"{path}/content", job=f"/v1/jobs/{artifact.job_id}"),
    )

"""HTTP routes of uploads: resumable (POST, HEAD, PATCH) and in one request (PUT .../content)."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Request, Response

from service.bodies import ThreadedBodyRoute
from service.deps import AppDep, PrincipalDep, reading
from service.http import problems
from service.storage import StorageFullError
from service.tables import Upload
from service.tables.base import record_of
from service.uploads import service
from service.uploads.schemas import (
    DigestMismatchError,
    UploadBusyError,
    UploadCompleteError,
    UploadCreate,
    UploadEmptyError,
    UploadIncompleteError,
    UploadLinks,
    UploadOffsetMismatchError,
    UploadOut,
    UploadSizeUnknownError,
    UploadStalledError,
    UploadTooLargeError,
)

router = APIRouter(route_class=ThreadedBodyRoute, prefix="/v1/uploads", tags=["uploads"])

_BYTES_BODY = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_BYTES_REFUSALS = (
    DigestMismatchError,
    StorageFullError,
    UploadBusyError,
    UploadCompleteError,
    UploadStalledError,
    UploadTooLargeError,
)
ContentLength = Annotated[int | None, Header(ge=0, include_in_schema=False)]
ContentDigest = Annotated[
    str | None, Header(description="sha-256 of this request's body; verified if present (RFC 9530).")
]


@router.post("", status_code=201, responses=problems(UploadEmptyError, UploadTooLargeError, StorageFullError))
async def create_upload(body: UploadCreate, app: AppDep, principal: PrincipalDep, response: Response) -> UploadOut:
    """Create an upload, then send the file's bytes. If a file with the given sha256 and size is already stored, the
    upload is complete at once.
    """
    upload = await app.writes.run(lambda: service.create(app, principal, body))
    response.headers["Location"] = f"/v1/uploads/{upload.id}"
    offset = upload.size_bytes or 0
    response.headers["Upload-Offset"] = str(offset)
    return _out(upload, offset)


@router.get("/{upload_id}")
@reading
def get_upload(upload_id: str, app: AppDep, principal: PrincipalDep, response: Response) -> UploadOut:
    """Get an upload with its current offset."""
    upload, offset = service.get(app, principal.tenant_id, upload_id)
    response.headers.update(_offset_headers(upload, offset))
    return _out(upload, offset)


@router.head("/{upload_id}", status_code=200, response_class=Response)
@reading
def head_upload(upload_id: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Get the offset to continue from after a broken connection: Upload-Offset is the number of bytes stored on
    disk.
    """
    upload, offset = service.get(app, principal.tenant_id, upload_id)
    return Response(headers=_offset_headers(upload, offset))


@router.patch(
    "/{upload_id}",
    status_code=204,
    openapi_extra=_BYTES_BODY,
    responses=problems(*_BYTES_REFUSALS, UploadOffsetMismatchError, UploadSizeUnknownError),
)
async def append_to_upload(
    upload_id: str,
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    upload_offset: Annotated[int, Header(ge=0, description="Offset of the first byte of the body.")],
    content_length: ContentLength = None,
    content_digest: ContentDigest = None,
) -> Response:
    """Append bytes at an offset. The upload is complete when all declared bytes are received and the sha256 matches."""
    incoming = service.Incoming(
        request.stream(), upload_offset, content_length, service.parse_content_digest(content_digest)
    )
    upload, offset = await service.receive(app, principal, upload_id, incoming)
    return Response(status_code=204, headers=_offset_headers(upload, offset))


@router.put(
    "/{upload_id}/content",
    openapi_extra=_BYTES_BODY,
    responses=problems(*_BYTES_REFUSALS, UploadEmptyError, UploadIncompleteError),
)
async def put_content(
    upload_id: str,
    request: Request,
    app: AppDep,
    principal: PrincipalDep,
    response: Response,
    content_length: ContentLength = None,
    content_digest: ContentDigest = None,
) -> UploadOut:
    """Send the whole file in one request: ``curl -T model.onnx URL/v1/uploads/ID/content``."""
    incoming = service.Incoming(request.stream(), None, content_length, service.parse_content_digest(content_digest))
    upload, offset = await service.receive(app, principal, upload_id, incoming)
    response.headers.update(_offset_headers(upload, offset))
    return _out(upload, offset)


def _offset_headers(upload: Upload, offset: int) -> dict[str, str]:
    headers = {"Upload-Offset": str(offset), "Cache-Control": "no-store"}
    length = upload.size_bytes if upload.size_bytes is not None else upload.expected_size_bytes
    return headers if length is None else {**headers, "Upload-Length": str(length)}


def _out(upload: Upload, offset: int) -> UploadOut:
    path = f"/v1/uploads/{upload.id}"
    complete = upload.state == "complete"
    return record_of(
        upload,
        UploadOut,
        state="complete" if complete else "open",
        offset=offset,
        size_bytes=upload.size_bytes if complete else upload.expected_size_bytes,
        sha256=upload.sha256 if complete else upload.expected_sha256,
        links=UploadLinks(self=path, content=path + "/content"),
    )

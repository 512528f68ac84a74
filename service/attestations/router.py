"""HTTP routes of attestations and signing keys."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Header, Response

from service.attestations import service
from service.attestations.schemas import (
    AttestationNotFoundError,
    AttestationNotReadyError,
    EnvelopeOut,
    SigningKeyList,
    SigningKeyUnreadableError,
    SigningUnavailableError,
)
from service.attestations.signing import known_keys, signing_key_out
from service.deps import AppDep, GuestDep, PrincipalDep
from service.errors import DatabaseUnavailableError
from service.http import Responses, etag_matches, problems
from service.keys.schemas import KeyNeededError

router = APIRouter(tags=["attestations"])

_NOT_CHANGED: Responses = {304: {"description": "Not modified"}}


@router.get(
    "/v1/jobs/{job_id}/attestation",
    response_model=EnvelopeOut,
    responses=_NOT_CHANGED
    | problems(AttestationNotReadyError, AttestationNotFoundError, SigningUnavailableError, SigningKeyUnreadableError),
)
async def get_attestation(
    job_id: str, app: AppDep, principal: PrincipalDep, if_none_match: Annotated[str | None, Header()] = None
) -> Response:
    """Get the attestation of a succeeded job: its results, inputs and engine, signed by the installation. It never
    changes.
    """
    row = await app.reads.run(lambda: service.kept(app, principal.tenant_id, job_id))
    if row is None:
        row = await app.writes.run(lambda: service.made(app, principal.tenant_id, job_id))
    headers = {"ETag": f'"{row.job_id}.{row.attempt}.{row.key_id}"', "Cache-Control": "private, no-cache"}
    if etag_matches(if_none_match, headers["ETag"]):
        return Response(status_code=304, headers=headers)
    return Response(row.envelope, media_type="application/json", headers=headers)


@router.get("/v1/keys/signing", responses=problems(SigningUnavailableError, KeyNeededError, DatabaseUnavailableError))
async def list_signing_keys(app: AppDep, guest: GuestDep) -> SigningKeyList:
    """List the public keys that this installation has signed with, for verifying attestations.

    Requires no key. The first signing key is created by a request with a key; until then, requests without a key get an
    empty list.
    """
    rows = await app.reads.run(lambda: service.keys_kept(app))
    if not rows and guest is not None:
        rows = await app.writes.run(lambda: known_keys(app.database, app.settings))
    return SigningKeyList(items=[signing_key_out(row) for row in rows])

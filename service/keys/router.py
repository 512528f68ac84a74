"""HTTP routes of keys, for a tenant's admins and for operators."""

from __future__ import annotations

from typing import Annotated

from fastapi import APIRouter, Depends, Query, Response

from service.bodies import ThreadedBodyRoute
from service.deps import AppDep, PrincipalDep
from service.http import PageDep, only_parameters, problems
from service.idempotency.answers import IdempotencyHeader
from service.keys import actions as keys
from service.keys.schemas import KeyCreate, KeyMade, KeyOut, KeyRotate, PepperMissingError, Tenant, TooManyKeysError
from service.keys.scopes import seen_tenant
from service.pagination import Page

router = APIRouter(route_class=ThreadedBodyRoute, prefix="/v1/keys", tags=["keys"])

_A_DAY = KeyRotate()


@router.get("", dependencies=[Depends(only_parameters("tenant", "limit", "cursor"))])
async def list_keys(
    app: AppDep,
    principal: PrincipalDep,
    page: PageDep,
    tenant: Annotated[
        Tenant | None, Query(description="Only keys of this tenant; other tenants require an operator key.")
    ] = None,
) -> Page[KeyOut]:
    """List the keys of your tenant (operators: of all tenants), newest first, including revoked and expired ones."""
    seen = seen_tenant(principal, tenant)
    return await page.answer(
        f"keys|{seen}", lambda after, limit: keys.list_page(app, seen, after=after, limit=limit), shown=lambda key: key
    )


@router.post("", status_code=201, response_model=KeyMade, responses=problems(PepperMissingError, TooManyKeysError))
async def create_key(
    body: KeyCreate, app: AppDep, principal: PrincipalDep, idempotency_key: IdempotencyHeader = None
) -> Response:
    """Create a key, with at most your own permissions. The key's text is returned only in this response.

    A repeated request with the same `Idempotency-Key` returns the same response.
    """
    answer = await app.writes.run(lambda: keys.create(app, principal, body, idempotency_key))
    return answer.response()


@router.get("/{key_id}")
async def get_key(key_id: str, app: AppDep, principal: PrincipalDep) -> KeyOut:
    """Get a key: its scope, when it was last used, whether it is valid."""
    return await app.reads.run(lambda: keys.get(app, principal, key_id))


@router.post("/{key_id}/rotate", responses=problems(PepperMissingError, TooManyKeysError))
async def rotate_key(
    key_id: str, app: AppDep, principal: PrincipalDep, response: Response, body: KeyRotate = _A_DAY
) -> KeyMade:
    """Rotate a key: create a replacement, returned only in this response. By default, the old key expires after one
    day.
    """
    response.headers["Cache-Control"] = "no-store"
    grace_seconds = body.grace_seconds
    return await app.writes.run(lambda: keys.rotate(app, principal, key_id, grace_seconds=grace_seconds))


@router.post("/{key_id}/revoke")
async def revoke_key(key_id: str, app: AppDep, principal: PrincipalDep) -> KeyOut:
    """Revoke a key. All API processes reject it within two seconds."""
    return await app.writes.run(lambda: keys.revoke(app, principal, key_id))

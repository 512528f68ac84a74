"""HTTP routes of the audit log: the own tenant's for admins, all tenants' for operators."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query
from pydantic import BaseModel, Field, field_validator

from service.audit import changes as recorded
from service.audit import service as audit
from service.audit.changes import FieldChange
from service.audit.repository import AuditFilters
from service.deps import AppDep, AppState, PrincipalDep
from service.http import PLAIN_TEXT, Moment, only_parameters
from service.keys.schemas import Tenant
from service.keys.scopes import seen_tenant

router = APIRouter(tags=["audit"])

_SEQ_MAX = 2**62
_ACTION = "Only entries with this action, such as job.cancel; job.* matches all actions on jobs."


class AuditOut(BaseModel):
    """One entry of the audit log."""

    seq: int
    tenant_id: str
    actor: str = Field(description="Id of the key that was used, or its substitute, such as local-key.")
    action: str = Field(description="Action as noun and verb, such as job.cancel.")
    object: str = Field(description="Id of the object of the action.")
    request_id: str
    address: str = Field(description="Address of the client; behind an untrusted proxy, the address of the proxy.")
    at: datetime
    changes: list[FieldChange] = Field(description="Fields that the action changed; empty if none are recorded.")
    previous_hash: str
    hash: str

    @field_validator("changes", mode="before")
    @classmethod
    def _read(cls, given: Any) -> Any:
        """Rows have text, answers a list."""
        return recorded.read(given) if given is None or isinstance(given, str) else given


class AuditPage(BaseModel):
    """Entries of the audit log, newest first."""

    items: list[AuditOut]
    next_before: int | None = Field(default=None, description="Pass it as ?before= to get the next page.")


class AuditListParameters(BaseModel):
    """Which entries of the audit log are listed."""

    tenant: Tenant | None = Field(
        default=None, description="Only entries of this tenant; other tenants require an operator key."
    )
    actor: Annotated[str, Field(max_length=255, pattern=PLAIN_TEXT)] | None = Field(
        default=None, description="Only entries of this key."
    )
    action: Annotated[str, Field(max_length=255, pattern=PLAIN_TEXT)] | None = Field(default=None, description=_ACTION)
    since: Moment | None = Field(default=None, description="Only entries at or after this time.")
    until: Moment | None = Field(default=None, description="Only entries before this time.")
    before: Annotated[int, Field(ge=1, le=_SEQ_MAX)] | None = Field(
        default=None, description="Only entries with a number less than this."
    )
    limit: int = Field(default=100, ge=1, le=1000)


@router.get("/v1/audit", dependencies=[Depends(only_parameters(*AuditListParameters.model_fields))])
async def list_audit(app: AppDep, principal: PrincipalDep, asked: Annotated[AuditListParameters, Query()]) -> AuditPage:
    """List the audit log of your tenant, including operators' actions on it (operators: of all tenants)."""
    shown = seen_tenant(principal, asked.tenant)
    return await app.reads.run(lambda: _page(app, shown, asked))


def _page(app: AppState, tenant: str | None, asked: AuditListParameters) -> AuditPage:
    filters = AuditFilters(asked.actor, asked.action, since=asked.since, until=asked.until)
    rows, more = audit.list_page(app.database, tenant, before=asked.before, limit=asked.limit, filters=filters)
    items = [AuditOut.model_validate(row, from_attributes=True) for row in rows]
    return AuditPage(items=items, next_before=items[-1].seq if more else None)

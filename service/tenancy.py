"""The one condition that keeps tenants apart: every statement about a noun that somebody asks for has it."""

from __future__ import annotations

from sqlalchemy import BindParameter, ColumnElement

from service.tables import Artifact, Dataset, IdempotencyKey, InspectionRow, Job, Model, Quarantine, Upload

Owned = (
    type[Artifact]
    | type[Dataset]
    | type[IdempotencyKey]
    | type[InspectionRow]
    | type[Job]
    | type[Model]
    | type[Quarantine]
    | type[Upload]
)


def owned(table: Owned, tenant_id: str | BindParameter[str]) -> ColumnElement[bool]:
    """``table``'s row is the tenant's; what is another's is not there."""
    return table.tenant_id == tenant_id

"""The one condition that keeps tenants apart: every statement about what somebody asks for has it."""

from __future__ import annotations

from sqlalchemy import BindParameter, ColumnElement
from sqlalchemy.orm import InstrumentedAttribute

from service.tables import (
    Alias,
    AliasMove,
    Artifact,
    Attestation,
    Batch,
    BatchMember,
    Dataset,
    DeletedJob,
    HandOver,
    IdempotencyKey,
    InspectionRow,
    Job,
    JobEstimate,
    JobEvent,
    JobTiming,
    Model,
    ModelFile,
    NounName,
    Quarantine,
    ReportRow,
    Schedule,
    ScheduleRun,
    Upload,
    WebhookDelivery,
    WebhookEndpoint,
)

Owned = (
    type[Alias]
    | type[AliasMove]
    | type[Artifact]
    | type[Attestation]
    | type[Batch]
    | type[BatchMember]
    | type[Dataset]
    | type[DeletedJob]
    | type[HandOver]
    | type[IdempotencyKey]
    | type[InspectionRow]
    | type[Job]
    | type[JobEstimate]
    | type[JobEvent]
    | type[JobTiming]
    | type[Model]
    | type[ModelFile]
    | type[NounName]
    | type[Quarantine]
    | type[ReportRow]
    | type[Schedule]
    | type[ScheduleRun]
    | type[Upload]
    | type[WebhookDelivery]
    | type[WebhookEndpoint]
)


def owned(table: Owned, tenant_id: str | BindParameter[str] | InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """``table``'s row is the tenant's; what is another's is not there."""
    return table.tenant_id == tenant_id

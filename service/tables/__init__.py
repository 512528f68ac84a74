"""SQLAlchemy tables, one file per noun. Importing this package declares them all."""

from service.tables.api_keys import ApiKey
from service.tables.artifacts import Artifact
from service.tables.attestations import Attestation, SigningKeyRow
from service.tables.audit_events import AuditEvent, AuditHead, NewAuditEvent
from service.tables.base import Base
from service.tables.batches import Batch, BatchMember
from service.tables.datasets import Dataset
from service.tables.estimates import EstimateFit, JobEstimate, JobTiming
from service.tables.hand_overs import HandOver
from service.tables.idempotency import IdempotencyKey
from service.tables.inspections import InspectionRow
from service.tables.job_events import JobEvent
from service.tables.jobs import Job
from service.tables.models import Model, ModelFile
from service.tables.names import Alias, AliasMove, NounName
from service.tables.quarantines import Quarantine
from service.tables.reports import ReportRow
from service.tables.schedules import Schedule, ScheduleRun
from service.tables.stored_files import DamagedFile, ScrubPass
from service.tables.tenants import DeletedJob, TenantRow, TenantUsage
from service.tables.uploads import Upload
from service.tables.webhooks import WebhookDelivery, WebhookEndpoint
from service.tables.workers import LeaseRound, Worker

__all__ = [
    "Alias",
    "AliasMove",
    "ApiKey",
    "Artifact",
    "Attestation",
    "AuditEvent",
    "AuditHead",
    "Base",
    "Batch",
    "BatchMember",
    "DamagedFile",
    "Dataset",
    "DeletedJob",
    "EstimateFit",
    "HandOver",
    "IdempotencyKey",
    "InspectionRow",
    "Job",
    "JobEstimate",
    "JobEvent",
    "JobTiming",
    "LeaseRound",
    "Model",
    "ModelFile",
    "NewAuditEvent",
    "NounName",
    "Quarantine",
    "ReportRow",
    "Schedule",
    "ScheduleRun",
    "ScrubPass",
    "SigningKeyRow",
    "TenantRow",
    "TenantUsage",
    "Upload",
    "WebhookDelivery",
    "WebhookEndpoint",
    "Worker",
]

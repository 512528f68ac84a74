"""SQLAlchemy tables, one file per noun. Importing this package declares them all."""

from service.tables.base import Base
from service.tables.batches import Batch, BatchMember, JobSchedule, ScheduleRun
from service.tables.files import DamagedFile, Quarantine, ScrubPass, Upload, UploadPart
from service.tables.jobs import (
    Artifact,
    Attestation,
    EstimateFit,
    Job,
    JobEstimate,
    JobEvent,
    JobTiming,
    ReportRow,
    SigningKeyRow,
)
from service.tables.models import Alias, AliasMove, Dataset, InspectionRow, Model, ModelFile, NounName
from service.tables.tenants import (
    ApiKey,
    AuditEvent,
    AuditHead,
    DeletedJob,
    IdempotencyKey,
    LeaseRound,
    NewAuditEvent,
    TenantRow,
    TenantUsage,
    Worker,
)
from service.tables.webhooks import HandOver, WebhookDelivery, WebhookEndpoint

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
    "JobSchedule",
    "JobTiming",
    "LeaseRound",
    "Model",
    "ModelFile",
    "NewAuditEvent",
    "NounName",
    "Quarantine",
    "ReportRow",
    "ScheduleRun",
    "ScrubPass",
    "SigningKeyRow",
    "TenantRow",
    "TenantUsage",
    "Upload",
    "UploadPart",
    "WebhookDelivery",
    "WebhookEndpoint",
    "Worker",
]

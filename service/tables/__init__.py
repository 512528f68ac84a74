"""SQLAlchemy tables, one file per noun. Importing this package declares them all."""

from service.tables.artifacts import Artifact
from service.tables.base import Base
from service.tables.datasets import Dataset
from service.tables.idempotency import IdempotencyKey
from service.tables.inspections import InspectionRow
from service.tables.job_events import JobEvent
from service.tables.jobs import Job
from service.tables.models import Model, ModelFile
from service.tables.reports import ReportRow
from service.tables.uploads import Upload

__all__ = [
    "Artifact",
    "Base",
    "Dataset",
    "IdempotencyKey",
    "InspectionRow",
    "Job",
    "JobEvent",
    "Model",
    "ModelFile",
    "ReportRow",
    "Upload",
]

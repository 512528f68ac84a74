"""A client of the service: typed, synchronous, and stubborn where the network is not to be trusted."""

from __future__ import annotations

from service.client.artifacts import ArtifactCalls
from service.client.datasets import DatasetCalls
from service.client.inspections import InspectionCalls
from service.client.jobs import JobCalls
from service.client.models import ModelCalls
from service.client.quarantine import QuarantineCalls
from service.client.queues import QueueCalls
from service.client.uploads import Upload, UploadProgress
from service.transport import (
    ApiError,
    DownloadCorruptError,
    JobNotSucceededError,
    ServerUnreachableError,
    WaitTimeoutError,
)

__all__ = [
    "ApiError",
    "DownloadCorruptError",
    "JobNotSucceededError",
    "QuantmillClient",
    "ServerUnreachableError",
    "Upload",
    "UploadProgress",
    "WaitTimeoutError",
]


class QuantmillClient(ModelCalls, DatasetCalls, InspectionCalls, JobCalls, QueueCalls, ArtifactCalls, QuarantineCalls):
    """One service, by its address.

    Lost connections and passing trouble (503 and the like) are endured for ``patience_seconds``. A job is submitted
    under an idempotency key, so that it never runs twice; a retried upload or noun may leave an unused one behind.

    Args:
        base_url: such as ``http://127.0.0.1:8000``.
        key: the service's key, where it has one.
        timeout_seconds: for a single answer.
        patience_seconds: how long trouble may go on before it is reported.

    Raises (all methods):
        ApiError: the service refused; carries its problem.
        ServerUnreachableError: the service does not answer.
    """

"""Clients of the service: typed, blocking or awaited, and stubborn where the network is not to be trusted."""

from __future__ import annotations

from service.client.clients import AsyncClient, Client
from service.client.errors import (
    ApiError,
    ConfigRefusedError,
    ConflictError,
    DownloadCorruptError,
    ForbiddenError,
    JobFailedError,
    JobNotSucceededError,
    NotFoundError,
    QuotaExceededError,
    RateLimitedError,
    RejectedError,
    RequestRefusedError,
    ServerUnreachableError,
    ServiceFailedError,
    ServiceNotFoundError,
    TooLargeError,
    UnauthorizedError,
    WaitTimeoutError,
)
from service.client.uploads import FileUpload, UploadProgress

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "ConfigRefusedError",
    "ConflictError",
    "DownloadCorruptError",
    "FileUpload",
    "ForbiddenError",
    "JobFailedError",
    "JobNotSucceededError",
    "NotFoundError",
    "QuotaExceededError",
    "RateLimitedError",
    "RejectedError",
    "RequestRefusedError",
    "ServerUnreachableError",
    "ServiceFailedError",
    "ServiceNotFoundError",
    "TooLargeError",
    "UnauthorizedError",
    "UploadProgress",
    "WaitTimeoutError",
]

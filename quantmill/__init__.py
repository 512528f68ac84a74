"""Quantmill's doors for Python: what users import. Alone it loads neither torch, onnxruntime nor the server.

``Client`` and ``AsyncClient``: a service, and the errors that its calls raise; loaded when they are first named.
``quantmill.torch``: modules of PyTorch in, quantized ONNX out. ``quantmill.quark``: the names of AMD Quark for ONNX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from service.client import (
        ApiError,
        AsyncClient,
        Client,
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
    from service.contracts.errors import QuantmillError

__all__ = [
    "ApiError",
    "AsyncClient",
    "Client",
    "ConfigRefusedError",
    "ConflictError",
    "DownloadCorruptError",
    "ForbiddenError",
    "JobFailedError",
    "JobNotSucceededError",
    "NotFoundError",
    "QuantmillError",
    "QuotaExceededError",
    "RateLimitedError",
    "RejectedError",
    "RequestRefusedError",
    "ServerUnreachableError",
    "ServiceFailedError",
    "ServiceNotFoundError",
    "TooLargeError",
    "UnauthorizedError",
    "WaitTimeoutError",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    home = import_module("service.contracts.errors" if name == "QuantmillError" else "service.client")
    return getattr(home, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

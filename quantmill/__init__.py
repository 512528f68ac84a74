"""Quantmill's doors for Python: what users import. Alone it loads neither torch, onnxruntime nor the server.

``quantize``: an ONNX model in, a quantized one out, as the command ``quantmill quantize`` does.
``Client`` and ``AsyncClient``: a service, and the errors that its calls raise; loaded when they are first named,
as are the modules below.
``quantmill.torch``: modules of PyTorch in, quantized ONNX out. ``quantmill.quark``: the names of AMD Quark for ONNX.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from quantmill.files import quantize
    from quantmill.running import Quantized
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
    from service.contracts.command_errors import FileAccessError
    from service.contracts.errors import (
        CalibrationMissingError,
        CanceledError,
        DatasetError,
        EngineError,
        InvalidConfigError,
        InvalidRequestError,
        ModelError,
        QuantmillError,
    )

__all__ = [
    "ApiError",
    "AsyncClient",
    "CalibrationMissingError",
    "CanceledError",
    "Client",
    "ConfigRefusedError",
    "ConflictError",
    "DatasetError",
    "DownloadCorruptError",
    "EngineError",
    "FileAccessError",
    "ForbiddenError",
    "InvalidConfigError",
    "InvalidRequestError",
    "JobFailedError",
    "JobNotSucceededError",
    "ModelError",
    "NotFoundError",
    "Quantized",
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
    "quantize",
]
_MODULES = frozenset({"mlflow", "quark", "torch", "webhooks"})
_HOMES = {
    "quantize": "quantmill.files",
    "Quantized": "quantmill.running",
    "FileAccessError": "service.contracts.command_errors",
    **dict.fromkeys(
        (
            "CalibrationMissingError",
            "CanceledError",
            "DatasetError",
            "EngineError",
            "InvalidConfigError",
            "InvalidRequestError",
            "ModelError",
            "QuantmillError",
        ),
        "service.contracts.errors",
    ),
}


def __getattr__(name: str) -> Any:
    from importlib import import_module

    if name in _MODULES:
        return import_module(f"quantmill.{name}")
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES.get(name, "service.client")), name)


def __dir__() -> list[str]:
    return sorted({*__all__, *_MODULES, *(name for name in globals() if name.startswith("__"))})

"""What a call may raise. A refusal of the service keeps the code that it came with, whatever class it has here."""

from __future__ import annotations

from urllib.parse import urlsplit

import httpx
from pydantic import ValidationError

from service.contracts import errors
from service.contracts.errors import Problem, QuantmillError

_PASSING_STATUS = frozenset({502, 503, 504})
_PASSING_CODES = frozenset({"upload-busy", "upload-stalled", "idempotency-in-flight", "database-unavailable"})
_TOO_MANY = 429


class DownloadCorruptError(QuantmillError, code="download-corrupt", title="The download is damaged", status=502):
    """What arrived is not what the service keeps."""


class JobNotSucceededError(QuantmillError, code="job-not-succeeded", title="The job did not succeed", status=409):
    """The job ended without a result and without an error: it was canceled."""


class WaitTimeoutError(QuantmillError, code="wait-timeout", title="It takes longer than the time given", status=504):
    """The operation did not finish in time; it continues in the service."""


class ServerUnreachableError(
    QuantmillError, code="server-unreachable", title="The service cannot be reached", status=503
):
    """The service does not answer."""


class ServiceNotFoundError(
    QuantmillError, code="service-not-found", title="It is not known which service is meant", status=404
):
    """No address is given, and this user runs no service on this host, or several."""


class ApiError(QuantmillError, code="api-error", title="The service refused the request", status=502):
    """The service refused, or reports a failure; ``code``, ``status`` and all else are the service's own.

    Args:
        sent: the problem as it came.
        retry_after_seconds: when the same request may succeed, where the service said so.
    """

    def __init__(self, sent: Problem, retry_after_seconds: float | None = None) -> None:
        super().__init__(sent.detail, hint=sent.hint, errors=sent.errors)
        self.where = dict(sent.where)
        self.sent = sent
        self.code, self.title, self.status, self.request_id = sent.code, sent.title, sent.status, sent.request_id
        self.retry_after_seconds = retry_after_seconds

    @property
    def passing(self) -> bool:
        """True if the same request may succeed later."""
        if self.status == _TOO_MANY:
            return self.retry_after_seconds is not None
        return self.status in _PASSING_STATUS or self.code in _PASSING_CODES

    def problem(self, *, instance: str | None = None, request_id: str | None = None) -> Problem:
        """The service's own problem object, with what the client knows besides."""
        told = {"detail": self.detail, "hint": self.hint, "where": self.where, "errors": self.errors}
        return self.sent.model_copy(update=told)


class UnauthorizedError(ApiError):
    """The key is missing, wrong, revoked or expired."""


class ForbiddenError(ApiError):
    """The key, or the installation, does not allow it."""


class NotFoundError(ApiError):
    """There is no such thing, or it is another tenant's."""


class ConflictError(ApiError):
    """It does not fit the state that something is in."""


class RequestRefusedError(ApiError, errors.InvalidRequestError):
    """The request is not valid; ``errors`` names the fields."""


class ConfigRefusedError(RequestRefusedError, errors.InvalidConfigError):
    """The config is not valid; ``errors`` names the fields."""


class TooLargeError(ApiError):
    """A limit of size."""


class RateLimitedError(ApiError):
    """Too many requests at a time; ``retry_after_seconds`` tells when to ask again."""


class QuotaExceededError(RateLimitedError):
    """A limit of the tenant; ``retry_after_seconds`` where time alone helps."""


class ServiceFailedError(ApiError):
    """A fault of the service, or of what lies between."""


class RejectedError(ApiError):
    """What was uploaded was validated and cannot be used; the code tells why."""


class JobFailedError(ApiError):
    """The job failed; the code tells why."""


_BY_CODE: dict[str, type[ApiError]] = {
    "invalid-config": ConfigRefusedError,
    "quota-exceeded": QuotaExceededError,
    "rate-limited": RateLimitedError,
}
_BY_STATUS: dict[int, type[ApiError]] = {
    400: RequestRefusedError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: NotFoundError,
    412: ConflictError,
    413: TooLargeError,
    422: RequestRefusedError,
    428: ConflictError,
    429: RateLimitedError,
}


def refusal(sent: Problem, retry_after_seconds: float | None = None) -> ApiError:
    """The error of a problem, of the class by which callers catch it."""
    by_status = _BY_STATUS.get(sent.status, ServiceFailedError if sent.status >= 500 else ApiError)
    return _BY_CODE.get(sent.code, by_status)(sent, retry_after_seconds)


def raise_for_problem(response: httpx.Response) -> None:
    """Raise the problem that a whole response carries, if it does.

    Raises:
        ApiError: the status says error.
    """
    if response.status_code < 400:
        return
    try:
        problem = Problem.model_validate_json(response.content)
    except ValidationError:
        # not from the service itself: a proxy, or something else at this address; a HEAD has no body
        asked = f"{response.request.method} {shown(str(response.request.url))}"
        problem = Problem(
            type="about:blank",
            title=response.reason_phrase or "Error",
            status=response.status_code,
            detail=f"{asked} was answered with {response.status_code}.",
            code=f"http-{response.status_code}",
            hint="Check that this is the address of a Quantmill service.",
        )
    told = response.headers.get("Retry-After", "")
    raise refusal(problem, float(told) if told.isdecimal() else None)


def shown(url: str) -> str:
    """Without user, password and query: somebody may report what is shown."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


class MlflowMissingError(QuantmillError, code="mlflow-missing", title="MLflow is not installed", status=501):
    """MLflow's client is not installed."""


class MlflowFailedError(QuantmillError, code="mlflow-failed", title="The hand-over to MLflow failed", status=502):
    """MLflow refused, or cannot be reached. What it has until then is completed by the next call."""


class NotRegisteredError(QuantmillError, code="not-registered", title="The model is not registered", status=409):
    """A model that has not passed its gate is not registered."""

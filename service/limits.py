"""Request limits by route: one table, applied before the request is read.

A route that is not listed has the limits of ``ORDINARY``: a new endpoint is bounded from its first day on.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from service.contracts.command_errors import TransientError
from service.contracts.errors import QuantmillError

KIB = 1024
MIB = 1024**2
# Head of a request, as the HTTP parser collects it; what is longer is not even taken apart.
HEAD_BYTES = 64 * KIB


class BodyTooLargeError(QuantmillError, code="body-too-large", title="Request body too large", status=413):
    """The body is larger than this endpoint accepts."""


class UrlTooLongError(QuantmillError, code="url-too-long", title="URL too long", status=414):
    """The path or the query is longer, or has more parameters, than this endpoint accepts."""


class HeadersTooLargeError(QuantmillError, code="headers-too-large", title="Headers too large", status=431):
    """The request has larger headers, or more of them, than the service accepts."""


class TooManyConnectionsError(TransientError, code="too-many-connections", title="Too many connections"):
    """The maximum number of concurrent requests, in total or from one address, is reached."""

    retry_after_seconds = 2


class RequestOverdueError(TransientError, code="request-overdue", title="Request timed out"):
    """The request exceeded the time limit; it may still be carried out."""

    retry_after_seconds = 5


@dataclass(frozen=True)
class Limits:
    """Of one route."""

    # most bytes of the body; None: the endpoint streams it, and has limits of its own
    body_bytes: int | None = 64 * KIB
    query_bytes: int = 2 * KIB  # most bytes of the query, as it is sent
    query_parameters: int = 16  # most parameters in it
    path_bytes: int = 1 * KIB  # most bytes of the path, as it is sent
    header_bytes: int = 32 * KIB  # of names and values together
    headers: int = 100  # most of them
    # False for what may last: uploads, downloads and event streams, which are watched for silence instead
    timed: bool = True
    files: bool = False  # True for a form with files, which may have as many bytes as an upload


@dataclass(frozen=True)
class RouteLimits:
    """Limits of the routes whose method and path are these; ``path`` is a regular expression for all of it."""

    methods: frozenset[str]
    path: re.Pattern[str]
    limits: Limits


def _row(methods: str, path: str, limits: Limits) -> RouteLimits:
    return RouteLimits(frozenset(methods.split()), re.compile(path.replace("ID", "[^/]+")), limits)


ORDINARY = Limits()
# 200 characters of a name, each up to 12 bytes as it is sent, and an alias or two
_NAMED_PATH = 3 * KIB
TABLE: tuple[RouteLimits, ...] = (
    _row("PATCH", "/v1/uploads/ID", Limits(body_bytes=None, timed=False)),
    _row("PUT", "/v1/uploads/ID/content", Limits(body_bytes=None, timed=False)),
    # a config within its bounds has up to megabytes; QUANTMILL_MAX_BODY_BYTES may be less
    _row("PATCH", "/v1/schedules/ID", Limits(body_bytes=64 * MIB)),
    _row(
        "POST",
        "/v1/jobs|/v1/jobs:validate|/v1/jobs/ID/clone|/v1/evaluations|/v1/schedules",
        Limits(body_bytes=64 * MIB),
    ),
    _row("POST", "/v1/batches", Limits(body_bytes=8 * MIB)),
    _row("POST", "/v1/models/ID/inspect", Limits(body_bytes=64 * MIB, path_bytes=_NAMED_PATH)),
    # the form of a job: files; its config as text and as fields; in its address, a config or a part of one
    _row("POST", "/new/model|/new/dataset", Limits(timed=False, files=True)),
    _row("POST", "/new", Limits(body_bytes=8 * MIB)),
    _row("GET", "/new", Limits(query_bytes=24 * KIB)),
    # 8 presigned URLs, each with 16 headers
    _row("POST", "/v1/jobs/ID/hand-over", Limits(body_bytes=1 * MIB)),
    # 256 file names; a mean and a deviation per channel
    _row("POST", "/v1/models|/v1/datasets", Limits(body_bytes=1 * MIB)),
    # 32 labels, or tags, with their values
    _row("GET", "/v1/jobs|/v1/models|/v1/datasets", Limits(query_bytes=24 * KIB, query_parameters=48)),
    # 20 jobs, and what else is asked
    _row("GET", r"/v1/compare(\.csv)?", Limits(query_parameters=24)),
    # the name of a node, and groups that are opened
    _row("GET", "/jobs/ID/graph", Limits(query_bytes=16 * KIB, query_parameters=48)),
    _row("GET", "/v1/jobs/ID/events", Limits(timed=False)),
    # a position has a number for each job
    _row("GET", "/v1/batches/ID/events", Limits(query_bytes=8 * KIB, timed=False)),
    _row("GET HEAD", "/v1/artifacts/ID/content", Limits(timed=False)),
    _row("GET HEAD", "/v1/datasets/ID/thumbnails", Limits(timed=False, path_bytes=_NAMED_PATH)),
    # 64 tags with their values, and a description
    _row("PATCH", "/v1/(models|datasets)/ID", Limits(body_bytes=512 * KIB, path_bytes=_NAMED_PATH)),
    _row("GET PUT DELETE", "/v1/(models|datasets)/ID(/aliases.*)?", Limits(path_bytes=_NAMED_PATH)),
    # the pages of the same
    _row("POST", "/(models|datasets)/ID/edit", Limits(body_bytes=512 * KIB, path_bytes=_NAMED_PATH)),
    _row("GET POST", "/(models|datasets)/ID(/.*)?", Limits(path_bytes=_NAMED_PATH)),
    _row("GET", "/compare", Limits(query_parameters=24)),
)


# Routes that ask for no key, and have no tenant's limits: they are counted by address.
KEYLESS = re.compile(r"/(docs|guide|openapi\.json|shared|sign-in|sign-out|static|v1/problems|v1/version)(/.*)?")


def limits_of(method: str, path: str) -> Limits:
    """The limits of the route that a request means."""
    return next((row.limits for row in TABLE if method in row.methods and row.path.fullmatch(path)), ORDINARY)

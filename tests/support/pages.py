"""The pages of the service as data: what every test of looks goes through."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.routing import Match

from service.dashboard.router import router


class Known(NamedTuple):
    """A page by its name, which is also that of its picture, and its path, where names in braces stand for ids."""

    name: str
    path: str


PAGES = tuple(Known(*page) for page in (
    ("overview", "/"), ("jobs", "/jobs"), ("jobs-filtered", "/jobs?state=failed&search=nothing-is-called-so"),
    ("jobs-refused", "/jobs?state=nonsense"), ("job-succeeded", "/jobs/{succeeded}"),
    ("job-running", "/jobs/{running}"), ("job-failed", "/jobs/{failed}"), ("job-queued", "/jobs/{queued}"),
    ("job-hostile", "/jobs/{hostile}"), ("job-missing", "/jobs/job_nothing"), ("curves", "/jobs/{running}/curves"),
    ("new", "/new"), ("new-from", "/new?from={succeeded}"), ("report", "/jobs/{succeeded}/report"),
    ("report-hostile", "/jobs/{hostile}/report"), ("graph", "/jobs/{succeeded}/graph?qdq=1"),
    ("trials", "/jobs/{autopilot}/trials"), ("trials-so-far", "/jobs/{searching}/trials"),
    ("compare", "/compare?job={succeeded}&job={hostile}"), ("models", "/models"), ("model", "/models/{model}"),
    ("datasets", "/datasets"), ("dataset", "/datasets/{dataset}"), ("batches", "/batches"),
    ("batch", "/batches/{batch}"), ("schedules", "/schedules"), ("schedule", "/schedules/{schedule}"),
    ("edit-schedule", "/schedules/{schedule}/edit"),
    ("choose-schedule", "/schedules/new"),
    ("new-schedule", "/schedules/new?from={succeeded}"), ("workers", "/workers"), ("webhooks", "/webhooks"),
    ("webhook", "/webhooks/{webhook}"), ("new-webhook", "/webhooks/new"),
    ("edit-webhook", "/webhooks/{webhook}/edit"), ("keys", "/keys"), ("audit", "/audit"),
    ("tenants", "/tenants"), ("tenant", "/tenants/default"), ("style", "/style"), ("sign-in", "/sign-in"),
))  # fmt: skip


def is_served(path: str) -> bool:
    """Whether the service has a page there."""
    scope = {"type": "http", "method": "GET", "path": urlsplit(path).path, "headers": []}
    return any(route.matches(scope)[0] == Match.FULL for route in router.routes)


def served() -> list[Known]:
    """The pages that the service has."""
    return [page for page in PAGES if is_served(page.path)]

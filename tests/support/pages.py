"""The pages of the service as data: what every test of looks goes through."""

from __future__ import annotations

from typing import NamedTuple
from urllib.parse import urlsplit

from starlette.routing import Match

from service.dashboard.router import router


class Known(NamedTuple):
    """A page.

    Attributes:
        name: of it, for whoever reads what failed; also of a picture of it.
        path: with names in braces that stand for ids.
    """

    name: str
    path: str


PAGES = (
    Known("overview", "/"),
    Known("jobs", "/jobs"),
    Known("jobs-filtered", "/jobs?state=failed&search=nothing-is-called-so"),
    Known("jobs-refused", "/jobs?state=nonsense"),
    Known("job-succeeded", "/jobs/{succeeded}"),
    Known("job-running", "/jobs/{running}"),
    Known("job-failed", "/jobs/{failed}"),
    Known("job-queued", "/jobs/{queued}"),
    Known("job-hostile", "/jobs/{hostile}"),
    Known("job-missing", "/jobs/job_nothing"),
    Known("curves", "/jobs/{running}/curves"),
    Known("new", "/new"),
    Known("new-from", "/new?from={succeeded}"),
    Known("report", "/jobs/{succeeded}/report"),
    Known("report-hostile", "/jobs/{hostile}/report"),
    Known("graph", "/jobs/{succeeded}/graph"),
    Known("trials", "/jobs/{autopilot}/trials"),
    Known("trials-so-far", "/jobs/{searching}/trials"),
    Known("compare", "/compare?job={succeeded}&job={hostile}"),
    Known("models", "/models"),
    Known("model", "/models/{model}"),
    Known("datasets", "/datasets"),
    Known("dataset", "/datasets/{dataset}"),
    Known("batches", "/batches"),
    Known("batch", "/batches/{batch}"),
    Known("schedules", "/schedules"),
    Known("schedule", "/schedules/{schedule}"),
    Known("new-schedule", "/schedules/new?from={succeeded}"),
    Known("workers", "/workers"),
    Known("webhooks", "/webhooks"),
    Known("webhook", "/webhooks/{webhook}"),
    Known("new-webhook", "/webhooks/new"),
    Known("edit-webhook", "/webhooks/{webhook}/edit"),
    Known("admin", "/admin"),
    Known("quota", "/admin/quotas/default"),
    Known("style", "/style"),
    Known("sign-in", "/sign-in"),
)


def is_served(path: str) -> bool:
    """Whether the service has a page there."""
    scope = {"type": "http", "method": "GET", "path": urlsplit(path).path, "headers": []}
    return any(route.matches(scope)[0] == Match.FULL for route in router.routes)


def served() -> list[Known]:
    """The pages that the service has."""
    return [page for page in PAGES if is_served(page.path)]

"""The audit log: who did what, filtered by who, what and when; for operators whether its chain is unbroken."""

from __future__ import annotations

from datetime import UTC, date, datetime, time, timedelta
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from pydantic import BaseModel, Field

from service.audit import changes
from service.audit import service as audit
from service.audit.repository import AuditFilters
from service.contracts.errors import InvalidRequestError
from service.dashboard.listing import FilterWords
from service.dashboard.pages import PageRoute, changed_query, page, root_of
from service.deps import AppDep, AppState, PrincipalDep
from service.keys import actions as keys
from service.keys.scopes import is_own, seen_tenant
from service.principal import Principal
from service.tables import AuditEvent

router = APIRouter(route_class=PageRoute, include_in_schema=False)
_LIMIT = 50
# One of each part of a file: hundreds of a large one, which say no more than its upload.complete does.
_PART = "upload.append"
_SEQ_MAX = 2**62
_DATE = r"^(\d{4}-\d{2}-\d{2})?$"
# Pages of what is told of, by the beginning of its id.
_PAGES = {
    "job_": "/jobs", "mdl_": "/models", "dst_": "/datasets", "bat_": "/batches", "sch_": "/schedules",
    "whk_": "/webhooks", "key_": "/keys",
}  # fmt: skip


class AuditQuery(BaseModel):
    """The filters, as they are in the address; dates are days of UTC, both included."""

    tenant: str = Field(default="", pattern=r"^[A-Za-z0-9_-]{0,64}$")
    actor: FilterWords = ""
    action: FilterWords = ""
    since: str = Field(default="", pattern=_DATE)
    until: str = Field(default="", pattern=_DATE)
    parts: bool = False
    before: int | None = Field(default=None, ge=1, le=_SEQ_MAX)

    @property
    def any(self) -> bool:
        """Whether something is left out."""
        return bool(self.tenant or self.actor or self.action or self.since or self.until or self.parts)


@router.get("/audit")
async def get_audit(
    request: Request, app: AppDep, principal: PrincipalDep, asked: Annotated[AuditQuery, Query()]
) -> Response:
    """Entries, the newest first."""
    shown = await app.reads.run(lambda: _shown(request, app, principal, asked))
    return page(request, "audit.html.jinja", verdict=None, **shown)


@router.post("/audit/verify")
async def verify_audit(request: Request, app: AppDep, principal: PrincipalDep) -> Response:
    """Whether every entry is as it was written."""
    verdict = await app.reads.run(lambda: audit.verify_all(app.database))
    shown = await app.reads.run(lambda: _shown(request, app, principal, AuditQuery()))
    return page(request, "audit.html.jinja", verdict=verdict, **shown)


def _shown(request: Request, app: AppState, principal: Principal, asked: AuditQuery) -> dict[str, Any]:
    own = keys.list_keys(app, principal.tenant_id)
    by_name = {one.name: one.id for one in reversed(own)}
    filters = AuditFilters(
        actor=by_name.get(asked.actor, asked.actor) or None,
        action=asked.action or None,
        but=None if asked.parts or asked.action else _PART,
        since=_midnight(asked.since, "since"),
        until=_midnight(asked.until, "until", days=1),
    )
    tenant = seen_tenant(principal, asked.tenant or None)
    rows, more = audit.list_page(app.database, tenant, before=asked.before, limit=_LIMIT, filters=filters)
    key_names = {one.id: one.name for one in own}
    return {
        "entries": [(row, _page_of(row, principal), changes.read(row.changes)) for row in rows],
        "key_names": key_names,
        "names": key_names | audit.names(app.database, principal.tenant_id, [row.object for row in rows]),
        "asked": asked,
        "next_query": f"{root_of(request)}/audit{changed_query(request, before=rows[-1].seq)}" if more else None,
    }


def _midnight(day: str, query: str, *, days: int = 0) -> datetime | None:
    """The beginning of a day that was typed, or of a later one.

    Raises:
        InvalidRequestError: the calendar has no such day.
    """
    if not day:
        return None
    try:
        return datetime.combine(date.fromisoformat(day) + timedelta(days=days), time(), UTC)
    except (ValueError, OverflowError):
        raise InvalidRequestError(f"{day!r} is not a date.", hint="Give a date as 2026-01-31.", query=query) from None


def _page_of(row: AuditEvent, principal: Principal) -> str | None:
    """The page of what an entry is about, where the asker may see it and it was not just deleted."""
    if not is_own(principal, row.tenant_id) or row.action.endswith(".delete"):
        return None
    folder = _PAGES.get(row.object[:4])
    return folder if folder in (None, _PAGES["key_"]) else f"{folder}/{row.object}"

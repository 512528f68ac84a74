"""The audit: a page of it, and whether its chain holds."""

from __future__ import annotations

from service.audit import service
from service.audit.service import Verdict
from service.deps import AppState
from service.tables import AuditEvent


def list_page(app: AppState, tenant_id: str | None, *, before: int | None, limit: int) -> tuple[list[AuditEvent], bool]:
    """Rows, the newest first, and whether there are more.

    Args:
        app: has the database.
        tenant_id: of this tenant alone; None: of all.
        before: only rows with numbers below this.
        limit: most of them.
    """
    service.link_if_possible(app.database)
    with app.database.read() as session:
        rows = service.page(session, tenant_id=tenant_id, before=before, limit=limit + 1)
    return rows[:limit], len(rows) > limit


def verify(app: AppState) -> Verdict:
    """Go through all rows, of all tenants."""
    service.link_if_possible(app.database)
    with app.database.read() as session:
        return service.verify(session)

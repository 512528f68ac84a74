"""Lists and releases models in quarantine."""

from __future__ import annotations

from service.audit.service import note
from service.deps import AppState
from service.principal import Principal
from service.quarantine import repository
from service.quarantine.schemas import QuarantineNotFoundError, QuarantineOut
from service.storage import is_sha256


def list_all(app: AppState, tenant_id: str) -> list[QuarantineOut]:
    """The tenant's models in quarantine, the newest first."""
    with app.database.read() as session:
        rows = repository.list_held(session, tenant_id)
        return [QuarantineOut.model_validate(row, from_attributes=True) for row in rows]


def release(app: AppState, by: Principal, digest: str) -> None:
    """Have jobs tried again with these bytes.

    Raises:
        QuarantineNotFoundError: they are not in quarantine.
    """
    with app.database.write() as session:
        # what is no digest is not asked for: PostgreSQL takes no NUL
        if not is_sha256(digest) or repository.held(session, by.tenant_id, digest) is None:
            raise QuarantineNotFoundError(digest)
        repository.forget(session, by.tenant_id, digest)
        note(session, by, "quarantine.release", digest)

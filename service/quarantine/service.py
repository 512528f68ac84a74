"""What the holder of the key can do about models in quarantine: see them, release them."""

from __future__ import annotations

from service.deps import Desk
from service.quarantine import repository
from service.quarantine.errors import QuarantineNotFoundError
from service.quarantine.schemas import QuarantineOut


def list_all(desk: Desk, tenant_id: str) -> list[QuarantineOut]:
    """The tenant's models in quarantine, the newest first."""
    with desk.database.read() as session:
        rows = repository.list_held(session, tenant_id)
        return [QuarantineOut.model_validate(row, from_attributes=True) for row in rows]


def release(desk: Desk, tenant_id: str, digest: str) -> None:
    """Have jobs tried again with these bytes.

    Raises:
        QuarantineNotFoundError: they are not in quarantine.
    """
    with desk.database.write() as session:
        if repository.held(session, tenant_id, digest) is None:
            raise QuarantineNotFoundError(digest)
        repository.forget(session, tenant_id, digest)

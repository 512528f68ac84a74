"""Keys of a tenant, models in quarantine, and queues."""

from __future__ import annotations

from service.client.connection import Connection
from service.client.driving import Call, Each
from service.client.steps import Items, Steps
from service.keys.schemas import DAY_SECONDS, KeyMade, KeyOut
from service.principal import Scope
from service.quarantine.schemas import QuarantineList, QuarantineOut
from service.queues.schemas import QueueList, QueueOut

_PATH = "/v1/keys"


class AdministrationCalls(Connection):
    """Calls of ``/v1/keys``, ``/v1/quarantine`` and ``/v1/queues``."""

    @Call
    def create_key(
        self, name: str, scope: Scope = "submit", *, days: float | None = None, tenant: str | None = None
    ) -> Steps[KeyMade]:
        """Make a key. ``key`` of the answer is its text, shown this once.

        Args:
            name: what people call it.
            scope: the highest of what it may do, at most what the client's own may.
            days: until it expires; None: never.
            tenant: whose resources it sees; default: the tenant of the client's key.
        """
        body = {"name": name, "scope": scope, "days": days, "tenant": tenant}
        return KeyMade.model_validate((yield from self._create(_PATH, body)))

    @Each
    def keys(self, *, tenant: str | None = None, limit: int | None = None) -> Items[KeyOut, None]:
        """All keys, also those that have ended, the newest first, read page by page; at most ``limit``."""
        yield from self._all(_PATH, KeyOut, {"tenant": tenant}, limit)

    @Call
    def key(self, key_id: str) -> Steps[KeyOut]:
        """One key."""
        return (yield from self._get(KeyOut, f"{_PATH}/{key_id}"))

    @Call
    def rotate_key(self, key_id: str, *, grace_seconds: float = DAY_SECONDS) -> Steps[KeyMade]:
        """A new key in place of one, its text shown this once; the old one is good for the grace."""
        body = {"grace_seconds": grace_seconds}
        return KeyMade.model_validate((yield from self._json("POST", f"{_PATH}/{key_id}/rotate", json=body)))

    @Call
    def revoke_key(self, key_id: str) -> Steps[KeyOut]:
        """End a key at once."""
        return KeyOut.model_validate((yield from self._json("POST", f"{_PATH}/{key_id}/revoke")))

    @Call
    def quarantine(self) -> Steps[list[QuarantineOut]]:
        """All models in quarantine, the newest first."""
        return (yield from self._get(QuarantineList, "/v1/quarantine")).items

    @Call
    def release(self, digest: str) -> Steps[None]:
        """Release the model of this digest.

        Raises:
            NotFoundError: it is not in quarantine.
        """
        yield from self._request("DELETE", f"/v1/quarantine/{digest}")

    @Call
    def version(self) -> Steps[str]:
        """The version of Quantmill that the service runs."""
        return str((yield from self._json("GET", "/v1/version"))["version"])

    @Call
    def queues(self) -> Steps[list[QueueOut]]:
        """Every queue: what waits in it, what runs, and the slots of its live workers."""
        return (yield from self._get(QueueList, "/v1/queues")).items

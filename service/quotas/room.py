"""How many bytes a tenant may store beside those that it has, for files whose size nobody knows beforehand."""

from __future__ import annotations

from dataclasses import dataclass

from service.contracts.quota import Quota
from service.quotas.errors import LargerThanQuotaError, QuotaExceededError

# When to ask again for bytes: what becomes free does so at no time that is known.
RETRY_SECONDS = 3600.0


@dataclass(frozen=True)
class Room:
    """What the tenant's limits were when it was looked at, and how many bytes were stored."""

    quota: Quota
    used_bytes: int

    def refuse_beyond(self, size_bytes: int, together_bytes: int | None = None) -> None:
        """See whether one file more of so many bytes fits in.

        Args:
            size_bytes: of the file.
            together_bytes: of it and others that are not stored yet. Default: of it alone.

        Raises:
            LargerThanQuotaError: the file alone is larger than one may be, or than all together.
            QuotaExceededError: of bytes stored.
        """
        limits = {"upload_bytes": self.quota.upload_bytes, "stored_bytes": self.quota.stored_bytes}
        for name, limit in limits.items():
            if limit is not None and size_bytes > limit:
                raise LargerThanQuotaError(name, limit, size_bytes)
        limit, wanted = self.quota.stored_bytes, size_bytes if together_bytes is None else together_bytes
        if limit is not None and self.used_bytes + wanted > limit:
            raise QuotaExceededError("stored_bytes", limit, self.used_bytes, wanted, retry_after_seconds=RETRY_SECONDS)

    def refuse_form(self, form_bytes: int) -> None:
        """See whether the files of a form, which is so long without its fields, fit in; each is seen to as it comes.

        Raises:
            LargerThanQuotaError: they are more than may be stored.
            QuotaExceededError: of bytes stored.
        """
        Room(Quota(stored_bytes=self.quota.stored_bytes), self.used_bytes).refuse_beyond(form_bytes)

"""Whose jobs run beside each other in this worker, so that nobody's crowd stands in the way of others."""

from __future__ import annotations

import math
import threading
from collections import Counter

# One step of nice is worth so much CPU time (man 7 sched; sched_prio_to_weight in the kernel's kernel/sched/core.c).
_SHARE_PER_NICE = 1.25


class Company:
    """Counts the jobs of each tenant that run here; for any thread.

    Args:
        most: jobs of one tenant at a time; None: as many as there are slots.
    """

    def __init__(self, most: int | None = None) -> None:
        self._most = most
        self._here: Counter[str] = Counter()
        self._lock = threading.Lock()

    def join(self, tenant_id: str) -> bool:
        """Count one more of the tenant's, to be taken off by ``leave``; False, and nothing is done, if it has most."""
        with self._lock:
            if self._most is not None and self._here[tenant_id] >= self._most:
                return False
            self._here[tenant_id] += 1
            return True

    def leave(self, tenant_id: str) -> None:
        """One of the tenant's has ended."""
        with self._lock:
            self._here[tenant_id] -= 1
            self._here += Counter()  # forgets whom nothing is left of

    def niceness(self, tenant_id: str) -> int:
        """How far each of the tenant's has to stand back, so that all of them together weigh as much as one."""
        with self._lock:
            return round(math.log(max(1, self._here[tenant_id]), _SHARE_PER_NICE))

    def crowds(self) -> frozenset[str]:
        """Tenants of whom no more may join."""
        with self._lock:
            return frozenset(
                name for name, count in self._here.items() if self._most is not None and count >= self._most
            )

"""The broker's transports for workers: what is no message of ours is thrown away with one line in the log.

kombu takes every message for one that kombu wrote, and an exception on the way ends the worker: one
``redis-cli lpush cpu "not json"`` would do.
"""

from __future__ import annotations

from typing import Any

from service.settings import Settings


def worker_transport(settings: Settings) -> dict[str, Any]:
    """Celery settings that make a worker read its broker with these transports; none for other brokers."""
    scheme = settings.broker_url.partition("://")[0]
    if scheme == "filesystem":
        return {"broker_transport": f"{__name__}.filesystem:Transport"}
    if scheme not in {"redis", "rediss"}:
        return {}
    return {"broker_transport": f"{__name__}.redis:Transport"}

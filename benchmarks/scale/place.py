"""An installation on servers of its own, so that whatever they compute is its."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.dispatch import HERE, Service
from benchmarks.scale.meter import Meter
from tests.fault.harness.servers import PostgresServer, RedisServer

# As much memory as a small server has, and statements that are counted.
_POSTGRES = {"shared_buffers": "256MB", "max_connections": "400", "shared_preload_libraries": "pg_stat_statements"}


@contextmanager
def installation(*, apis: int = 1, workers: int = 0) -> Iterator[tuple[Service, Meter]]:
    """A running service on a new PostgreSQL and a new Redis, and what counts what they do."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quantmill-scale-")))
        postgres, redis = PostgresServer(**_POSTGRES), RedisServer()
        stack.callback(redis.close)
        stack.callback(postgres.close)
        service = Service(HERE, folder, postgres.new_database(), redis.new_database(), workers, apis=apis)
        stack.enter_context(service.running())
        yield service, Meter(service.database_url, postgres, redis, service.pids)

"""What processes, PostgreSQL and Redis do between two moments: CPU seconds, transactions, statements, bytes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from tests.fault.harness.processes import descendants
from tests.fault.harness.servers import PostgresServer, RedisServer

_TICKS = os.sysconf("SC_CLK_TCK")
_STATEMENTS = """
SELECT query, calls, rows FROM pg_stat_statements JOIN pg_database ON oid = dbid
WHERE datname = current_database() AND query NOT LIKE '%pg_stat%' ORDER BY calls DESC
"""
# Statements that begin and end transactions.
_FRAMES = ("BEGIN", "COMMIT", "ROLLBACK")


def cpu_seconds(pid: int) -> float:
    """What a process has computed, with all that it has started."""
    return sum(map(_own_seconds, (pid, *descendants(pid))))


def _own_seconds(pid: int) -> float:
    """With the children that have ended and that it has waited for."""
    with suppress(FileNotFoundError, ProcessLookupError):
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        return sum(map(int, fields[11:15])) / _TICKS
    return 0.0


@dataclass
class Figures:
    """Differences between the end of a block and its beginning."""

    cpu_seconds: dict[str, float] = field(default_factory=dict)  # by part: api, worker, reconciler ...
    transactions: int = 0  # that PostgreSQL has ended; looks that write nothing are some, too
    statements: dict[str, int] = field(default_factory=dict)  # calls by text, without BEGIN and the like
    wal_bytes: int = 0
    updates: int = 0  # of rows of jobs
    hot_updates: int = 0  # of these, those for which no index was written
    redis_commands: int = 0
    connections: int = 0  # of clients at the end

    @property
    def calls(self) -> int:
        """Statements of all kinds."""
        return sum(self.statements.values())


class Meter:
    """Reads the counters of one installation.

    Args:
        database_url: of its database.
        postgres: the server.
        redis: the broker.
        pids: of its processes, by name; ``worker-3`` counts as ``worker``.
    """

    def __init__(
        self, database_url: str, postgres: PostgresServer, redis: RedisServer, pids: Mapping[str, int]
    ) -> None:
        self._url = database_url
        self._redis = redis
        self._pids = {**pids, "postgresql": postgres.process.pid, "redis": redis.process.pid}
        with psycopg.connect(database_url, autocommit=True) as connection:
            connection.execute("CREATE EXTENSION IF NOT EXISTS pg_stat_statements")

    @contextmanager
    def measured(self) -> Iterator[Figures]:
        """Filled in at the end of the block."""
        figures = Figures()
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("SELECT pg_stat_statements_reset()")
            before, cpu = self._counters(connection), self._cpu()
            yield figures
            after, ended = self._counters(connection), self._cpu()
            told = connection.execute(_STATEMENTS).fetchall()
        for name, seconds in ended.items():
            part = name.partition("-")[0]
            figures.cpu_seconds[part] = figures.cpu_seconds.get(part, 0.0) + seconds - cpu[name]
        figures.transactions, figures.wal_bytes, figures.updates, figures.hot_updates, figures.redis_commands = (
            int(after[k] - before[k]) for k in range(5)
        )
        figures.connections = int(after[5]) - 1
        figures.statements = {
            " ".join(query.split()): calls for query, calls, _ in told if not query.startswith(_FRAMES)
        }

    def _cpu(self) -> dict[str, float]:
        return {name: cpu_seconds(pid) for name, pid in self._pids.items()}

    def _counters(self, connection: psycopg.Connection) -> tuple[float, ...]:
        # what sessions have counted is there a moment later
        row = connection.execute(
            """
            SELECT pg_stat_force_next_flush(), d.xact_commit + d.xact_rollback, pg_current_wal_lsn() - '0/0',
                   t.n_tup_upd, t.n_tup_hot_upd, d.numbackends
            FROM pg_stat_database d, pg_stat_user_tables t WHERE datname = current_database() AND relname = 'jobs'
            """
        ).fetchone()
        assert row is not None
        with self._redis.client() as client:
            commands = client.info("stats")["total_commands_processed"]
        return (*row[1:5], commands, row[5])

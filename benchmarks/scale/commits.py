"""Transactions per second of many connections at once: renewals, which tell nobody, and progress, which is told.

PostgreSQL commits transactions that NOTIFY one after the other, and waits for the disk within: the server here waits,
as one that keeps its promises does.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from sqlalchemy.orm import Session

from service.contracts.runner import ProgressLine
from service.db import Database, migrate
from service.jobs import transitions
from tests.db.test_transitions import claim, submit
from tests.fault.harness.servers import PostgresServer

CONNECTIONS = (1, 4, 16)
_SECONDS = 4.0
Write = Callable[[Session, str], object]
WRITES: dict[str, Write] = {
    "renew a lease": lambda session, job_id: transitions.renew(session, job_id, 1, lease_seconds=60),
    "progress": lambda session, job_id: transitions.record_progress(
        session, job_id, 1, ProgressLine(stage="finetune", done=1)
    ),
}


def rate(database: Database, write: Write, job_ids: list[str]) -> float:
    """Transactions per second of a connection for each job."""
    over = threading.Event()

    def run(job_id: str) -> int:
        done = 0
        while not over.is_set():
            with database.write() as session:
                write(session, job_id)
            done += 1
        return done

    with ThreadPoolExecutor(len(job_ids)) as pool:
        running = [pool.submit(run, job_id) for job_id in job_ids]
        time.sleep(_SECONDS)
        over.set()
        return sum(done.result() for done in running) / _SECONDS


def measure() -> None:
    """Print the table."""
    server = PostgresServer(fsync="on", shared_buffers="256MB")
    database = None
    try:
        url = server.url("postgres")
        migrate(url)
        database = Database(url)
        print("| transaction | " + " | ".join(f"{count} connections, a second" for count in CONNECTIONS) + " |")
        print("|---" * (len(CONNECTIONS) + 1) + "|")
        with database.write() as session:
            job_ids = [claim(session, submit(session)).id for _ in range(max(CONNECTIONS))]
        for name, write in WRITES.items():
            found = [rate(database, write, job_ids[:count]) for count in CONNECTIONS]
            print(f"| {name} | " + " | ".join(f"{each:.0f}" for each in found) + " |", flush=True)
    finally:
        if database is not None:
            database.close()
        server.close()

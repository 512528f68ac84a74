"""How soon the API answers while it is busy: submissions, looks at a job and health checks, from another process.

    python -m benchmarks.api [--crowd] [--idle] [--quick] [--requests 300] [--rate 5] [--jobs 10000]

An API, two workers and a reconciler run on a PostgreSQL database of their own (QUANTMILL_TEST_POSTGRES_URL names the
server) that holds 10,000 queued quantize jobs, so that both workers compute all the time; 100 event streams follow a
job each. With ``--crowd`` 300 streams and 100 long polls wait for one job that tells of its progress twice a second.
Every kind of request is sent at a fixed rate, whether or not the one before has been answered.

Prints median, 99th percentile and the longest in milliseconds. Exits 1 where a 99th percentile is above its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from sqlalchemy import func, insert, select

from service.client import Client
from service.contracts.runner import ProgressLine
from service.db import Database, db_now, migrate
from service.jobs import events, transitions
from service.resources import new_id
from service.tables import Job, JobEvent
from tests.fault.client import CONFIG
from tests.fault.harness.processes import Process
from tests.support.services import new_postgres_database, postgres_trouble
from tests.support.tiny import make_tiny
from tests.worker.running import ROOT, environment, processes_of
from tests.worker.workbench import wait_for

LIMIT_MS, CROWD_LIMIT_MS = 100.0, 200.0
STREAMS, CROWD_STREAMS, CROWD_POLLS = 100, 300, 100
SUBMIT, LOOK, HEALTH = "POST /v1/jobs", "GET /v1/jobs/{id}", "GET /healthz"
_WARMUP = 10
_PROGRESS_SECONDS = 0.5
_LEASE_SECONDS = 86_400.0
_ROWS = 500
_LOOKED_AT = 500


class Place:
    """An API, workers and a reconciler on one folder and one database; nothing of them is left at the end.

    Args:
        folder: of its own.
        database_url: migrated.
        workers: worker processes.
        variables: environment of all processes.
    """

    def __init__(self, folder: Path, database_url: str, *, workers: int = 2, **variables: str) -> None:
        self._folder = folder
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port: int = self._listener.getsockname()[1]
        self._environment = environment(
            QUANTMILL_DATA_DIR=str(folder),
            QUANTMILL_DATABASE_URL=database_url,
            QUANTMILL_MIN_FREE_BYTES="0",
            QUANTMILL_THREADS="1",
            **variables,
        )
        self.api = self._process("api", "api", "--fd", str(self._listener.fileno()))
        self._workers = [
            self._process(f"worker-{number}", "worker", "--queues", "cpu,inspect") for number in range(workers)
        ]
        self._reconciler = self._process("reconciler", "reconcile")

    def __enter__(self) -> Self:
        try:
            for process in self._all:
                process.start()
            self.api.wait_until_said("startup complete")
            for worker in self._workers:
                worker.wait_until_said(" ready.")
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(f"the API's log: {self.api.said()[-3000:]}")
        self._close()

    def upload(self) -> dict[str, str]:
        """A small model and data; ids as a job takes them."""
        tiny = make_tiny(self._folder)
        with Client(f"http://127.0.0.1:{self.port}") as client:
            model, data = client.push_model(tiny.model), client.push_dataset(tiny.calibration)
            return {"model_id": client.wait_ready(model).id, "calibration_dataset_id": client.wait_ready(data).id}

    def cpu_seconds(self) -> float:
        """What the API has computed so far."""
        fields = Path(f"/proc/{self.api.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def stop_workers(self) -> None:
        """Leave the machine to the API and its clients."""
        for worker in self._workers:
            worker.close()

    @property
    def _all(self) -> tuple[Process, ...]:
        return (self.api, *self._workers, self._reconciler)

    def _close(self) -> None:
        for process in self._all:
            process.close()
        self._listener.close()
        for pid in processes_of(self._folder):
            os.kill(pid, signal.SIGKILL)

    def _process(self, name: str, *arguments: str) -> Process:
        return Process(
            name,
            [sys.executable, "-P", "-m", "worker.cli", *arguments],
            environment=self._environment,
            log=self._folder / f"{name}.log",
            pass_fds=(self._listener.fileno(),) if name == "api" else (),
            folder=self._folder,
        )


def fill(database: Database, template_id: str, count: int, **values: Any) -> list[str]:
    """Copy a job so many times, queued as when it was submitted, with other ``values``; the ids."""
    ids = [new_id("job") for _ in range(count)]
    for first in range(0, count, _ROWS):
        _insert(database, template_id, ids[first : first + _ROWS], **values)
    with database.write() as session:
        session.connection().exec_driver_sql("ANALYZE")
    return ids


def held(database: Database, template_id: str) -> str:
    """A job that runs, as it seems, for the whole day: no worker has it."""
    job_id = new_id("job")
    lease = {"lease_until": db_now() + _LEASE_SECONDS, "worker_id": "benchmark", "started_at": db_now()}
    _insert(database, template_id, [job_id], state="running", attempt=1, **lease)
    return job_id


def _insert(database: Database, template_id: str, ids: list[str], **values: Any) -> None:
    # what the database computes or the copies do not have yet
    unset = {"report_job_id", "worker_id", "lease_until", "started_at", "finished_at", "dispatched_at", "progress"}
    now = db_now()
    fresh = {"state": "queued", "attempt": 0, "interruptions": 0, "stage": None, "last_seq": 1, "row_version": 1}
    times = dict.fromkeys(("not_before", "created_at", "queued_at", "updated_at"), now)
    with database.write() as session:
        template = session.get_one(Job, template_id)
        kept = [column.name for column in Job.__table__.columns if column.name not in unset]
        row = {name: value for name in kept if (value := getattr(template, name)) is not None} | fresh | times | values
        session.execute(insert(Job).values([{**row, "id": job_id} for job_id in ids]))
        told = {"seq": 1, "attempt": 0, "type": "state", "data": {"name": "job.queued", "state": "queued"}}
        told |= {"tenant_id": template.tenant_id, "created_at": now}
        session.execute(insert(JobEvent).values([{**told, "job_id": job_id} for job_id in ids]))


@contextmanager
def telling(database: Database, job_id: str, *, figures: bool = False) -> Iterator[None]:
    """The held job tells of its progress meanwhile; with ``figures``, of those of a step of training each time, too."""
    over = threading.Event()

    def tell() -> None:
        step = 0
        while not over.wait(_PROGRESS_SECONDS):
            step += 1
            line = ProgressLine(line="progress", stage="calibrate", done=step, total=100_000)
            with database.write() as session:
                transitions.record_progress(session, job_id, 1, line)
                if figures:
                    told = {"stage": "training", "step": step, "loss": 1.0 / step, "top1": 90.0 - 1.0 / step}
                    events.append(session, job_id, 1, "metric", told)

    thread = threading.Thread(target=tell)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def client(kind: str) -> subprocess.Popen[str]:
    """A process of ``benchmarks.api_client``."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.api_client", kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )


@contextmanager
def crowd(port: int, streams: list[str], polls: list[str]) -> Iterator[None]:
    """Event streams and long polls of these jobs are open meanwhile; tells at the end what they saw."""
    wanted = {
        "port": port,
        "streams": [f"/v1/jobs/{job_id}/events" for job_id in streams],
        "polls": [f"/v1/jobs/{job_id}" for job_id in polls],
    }
    process = client("wait")
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(wanted) + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "waiting\n", "the crowd did not come"
        yield
        seen = json.loads(process.communicate(timeout=60)[0])
        print(f"{len(streams)} event streams got {seen['events']} events, {len(polls)} long polls waited", end="")
        print(f"; {seen['refused']} were refused, {len(seen['broken'])} broke {seen['broken'] or ''}")
        if seen["refused"] or seen["broken"]:
            raise RuntimeError("the service did not keep everybody who waited")
    finally:
        process.kill()
        process.communicate()


def measured(port: int, body: dict[str, Any], looked_at: list[str], *, requests: int, rate: float) -> dict[str, Any]:
    """Milliseconds by kind of request, taken by another process."""
    lanes = {
        SUBMIT: {"method": "POST", "paths": ["/v1/jobs"], "body": body},
        LOOK: {"method": "GET", "paths": [f"/v1/jobs/{job_id}" for job_id in looked_at]},
        HEALTH: {"method": "GET", "paths": ["/healthz"]},
    }
    wanted = {"port": port, "rate": rate, "requests": requests, "warmup": _WARMUP, "lanes": lanes}
    process = client("measure")
    try:
        told = process.communicate(json.dumps(wanted) + "\n")[0]
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise RuntimeError("the client that measures gave up")
    found: dict[str, Any] = json.loads(told)
    return found


def show(taken: dict[str, list[float]], *, crowded: bool) -> bool:
    """Print the table; True if every 99th percentile is within its limit."""
    print(f"{'':20} {'requests':>8} {'median':>9} {'99 %':>9} {'longest':>9} {'limit':>9}")
    holds = True
    for name, milliseconds in taken.items():
        high = statistics.quantiles(milliseconds, n=100, method="inclusive")[-1]
        limit = CROWD_LIMIT_MS if crowded and name != SUBMIT else LIMIT_MS
        holds = holds and high <= limit
        print(
            f"{name:20} {len(milliseconds):8} {statistics.median(milliseconds):6.1f} ms {high:6.1f} ms"
            f" {max(milliseconds):6.1f} ms {limit:6.0f} ms{'' if high <= limit else '  ABOVE'}"
        )
    return holds


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit code says whether the limits were held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--crowd", action="store_true", help="300 streams and 100 long polls wait for one job")
    parser.add_argument("--idle", action="store_true", help="stop the workers before anything is measured")
    parser.add_argument("--quick", action="store_true", help="1000 jobs and 100 requests of each kind")
    parser.add_argument("--requests", type=int, default=300, help="of each kind")
    parser.add_argument("--rate", type=float, default=5.0, help="requests of each kind per second")
    parser.add_argument("--jobs", type=int, default=10_000, help="in the table")
    options = parser.parse_args(arguments)
    if options.quick:
        options.jobs, options.requests = 1000, 100
    trouble = postgres_trouble()
    if trouble is not None:
        parser.error(trouble)
    # a polite end of this process, too, has to take everything with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quantmill-api-")))
        url = stack.enter_context(new_postgres_database())
        migrate(url)
        database = Database(url)
        stack.callback(database.close)
        place = stack.enter_context(Place(folder, url))
        inputs, config = place.upload(), dict(CONFIG)
        with Client(f"http://127.0.0.1:{place.port}") as first:
            template_id = first.submit(
                model=inputs["model_id"], calibration=inputs["calibration_dataset_id"], config=config
            ).id
        if options.idle:
            place.stop_workers()
        ids = fill(database, template_id, options.jobs)
        watched = held(database, template_id)
        stack.enter_context(telling(database, watched))
        streams, polls = ([watched] * CROWD_STREAMS, [watched] * CROWD_POLLS) if options.crowd else (ids[:STREAMS], [])
        with crowd(place.port, streams, polls):
            if not options.idle:
                wait_for(lambda: _done(database) >= 3, message="the workers do nothing")
            before, computed, begun = _done(database), place.cpu_seconds(), time.monotonic()
            taken = measured(
                place.port, {**inputs, "config": config}, ids[:_LOOKED_AT], requests=options.requests, rate=options.rate
            )
            share = (place.cpu_seconds() - computed) / (time.monotonic() - begun)
            done = _done(database) - before
            print(f"{options.jobs} jobs in the table; workers did {done} meanwhile; the API took {share:.0%} of a core")
        return 0 if show(taken, crowded=options.crowd) else 1


def _done(database: Database) -> int:
    with database.read() as session:
        statement = select(func.count()).select_from(Job).where(Job.kind == "quantize", Job.state == "succeeded")
        return session.scalar(statement) or 0


if __name__ == "__main__":
    sys.exit(main())

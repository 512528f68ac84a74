"""One installation: a back end, a data folder, and real processes of this checkout that a test may hurt."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, TypeVar

from sqlalchemy import func, select
from sqlalchemy.orm import load_only

from service.client import Client
from service.db import Database, migrate
from service.failpoints import NAMES, VARIABLE
from service.settings import Settings
from service.storage.opening import open_store
from service.tables import Job, JobEvent
from service.tables.jobs import LIVE_STATES
from tests.fault.harness.processes import Process
from tests.fault.harness.servers import Servers
from tests.fault.harness.versions import Version
from tests.fault.ledger import AnyStore
from tests.support import leaks
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.running import environment, processes_of
from tests.worker.workbench import is_spare, wait_for

T = TypeVar("T")
Backend = Literal["files", "servers"]
BACKENDS: tuple[Backend, ...] = ("files", "servers")
LEASE_SECONDS = 3.0
# Periods that make faults visible within a test's patience.
QUICK = {
    "QUANTMILL_LEASE_SECONDS": str(LEASE_SECONDS), "QUANTMILL_RENEW_SECONDS": "0.4",
    "QUANTMILL_RECONCILE_SECONDS": "0.2", "QUANTMILL_REDISPATCH_SECONDS": "2", "QUANTMILL_PUBLISH_SECONDS": "2",
    "QUANTMILL_MIN_FREE_BYTES": "0", "QUANTMILL_THREADS": "1",
}  # fmt: skip
_PLACES = ("storage_dir", "scratch_dir")
RUNNER = "worker.runner"
# Longer than any transaction of ours takes.
LOCK_PATIENCE_SECONDS = 2.0


class Installation:
    """An API, workers and a reconciler on one data folder."""

    def __init__(
        self,
        folder: Path,
        *,
        servers: Servers | None,
        template: Path | None = None,
        workers: int = 1,
        apis: int = 1,
        home: Path | None = None,
        bucket_url: str = "",
        version: Version | None = None,
        **variables: str,
    ) -> None:
        """With ``bucket_url``, whose server ``variables`` tell, every process has a data folder of its own."""
        self.folder = folder
        # Whose code processes are started on; None: this one's.
        self.version = version
        revision = "head" if version is None else version.revision
        self.servers = servers
        self.home = home or folder / "home"
        for place in (folder, self.home):
            place.mkdir(parents=True, exist_ok=True)
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        places = {"QUANTMILL_DATA_DIR": str(self.home)}
        if servers is None:
            self.database_url = f"sqlite:///{self.home / 'service.db'}"
            if template is not None and version is None:
                shutil.copyfile(template, self.home / "service.db")
            else:
                migrate(self.database_url, revision)
            self.broker_url = ""
        else:
            servers.heal()
            self.database_url = servers.postgres.new_database(None if version is None else revision)
            self.broker_url = servers.redis.new_database()
            places |= {"QUANTMILL_DATABASE_URL": self.database_url, "QUANTMILL_BROKER_URL": self.broker_url}
        self._holds = folder / "holds"
        self._holds.mkdir()
        everywhere = ";".join(f"{name}=wait:{self._holds / name}" for name in NAMES)
        leaks.remember_variables({**places, **variables})
        self._apart = bool(bucket_url)
        if bucket_url:
            places["QUANTMILL_STORAGE_URL"] = bucket_url
        self._environment = environment(**QUICK, **places, **variables, **{VARIABLE: everywhere})
        by_name = {name: variables.get(f"QUANTMILL_{name.upper()}") for name in _PLACES}
        given = {name: Path(place) for name, place in by_name.items() if place is not None}
        self.settings = Settings(data_dir=self.home, database_url=self.database_url, storage_url=bucket_url, **given)
        self.settings.make_folders()
        self.database = Database(self.database_url)
        store = open_store(self.settings)
        assert isinstance(store, AnyStore)
        self.store = store
        self.apis = [
            self._process(f"api-{number}", "api", "--fd", str(self._listener.fileno())) for number in range(apis)
        ]
        self.workers = [
            self._process(f"worker-{number}", "worker", "--queues", "cpu,inspect") for number in range(workers)
        ]
        self.reconciler = self._process("reconciler", "reconcile")
        self._locker: sqlite3.Connection | None = None
        # By name of the process: it was started with failpoints of its own.
        self._armed: dict[str, bool] = {}

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            error.add_note(self.tail())
        self.close()

    @property
    def api(self) -> Process:
        return self.apis[0]

    @property
    def worker(self) -> Process:
        return self.workers[0]

    @property
    def processes(self) -> tuple[Process, ...]:
        return (*self.apis, *self.workers, self.reconciler)

    def start(self, process: Process | None = None, **failpoints: str) -> None:
        """Start one process, or all that do not run, and wait until they do their work."""
        armed = {VARIABLE: ";".join(f"{name}={action}" for name, action in failpoints.items())}
        started = []
        for one in self.processes if process is None else (process,):
            if not one.alive:
                started.append((one, len(one.said())))
                # an older version may not know all failpoints of this one
                known = {} if self.version is None else {VARIABLE: "", "PYTHONPATH": str(self.version.code)}
                one.start(**{**known, **(armed if failpoints else {})})
                self._armed[one.name] = bool(failpoints)
        for one, said in started:
            self._wait_ready(one, said)

    def replace(self, process: Process) -> int:
        """Stop a process and start it on this version's code; returns how it ended."""
        self.version = None
        code = process.stop()
        self.start(process)
        return code

    def another(self, name: str, *arguments: str) -> Process:
        """A further process, which is not started, and for which the installation does not care."""
        return self._process(name, *arguments)

    def client(self, *, patience_seconds: float = PATIENCE_SECONDS, timeout_seconds: float = 30.0) -> Client:
        return Client(self.url, timeout_seconds=timeout_seconds, patience_seconds=patience_seconds)

    def upload(self, tiny: Tiny) -> dict[str, str]:
        """Upload model and data of ``tiny``; gives the ids as a job takes them."""
        with self.client() as client:
            model, data = client.push_model(tiny.model), client.push_dataset(tiny.calibration)
            return {
                "model_id": client.wait_ready(model, timeout_seconds=PATIENCE_SECONDS).id,
                "calibration_dataset_id": client.wait_ready(data, timeout_seconds=PATIENCE_SECONDS).id,
            }

    def hold(self, place: str) -> None:
        """Hold every process that comes to the failpoint, until ``release``."""
        self._reached(place).unlink(missing_ok=True)
        (self._holds / place).touch()

    def wait_held(self, place: str) -> None:
        self.wait_for(self._reached(place).exists, f"nothing ever reached the failpoint {place}")

    def release(self, place: str) -> None:
        (self._holds / place).unlink(missing_ok=True)

    def runners(self) -> list[int]:
        return [pid for worker in self.workers for pid in worker.children(RUNNER) if not is_spare(pid)]

    def job(self, job_id: str) -> Job:
        with self.database.read() as session:
            found = select(Job).where(Job.id == job_id)
            if self.version is not None:  # its schema may lack columns that this version has
                found = found.options(load_only(Job.state, Job.attempt, Job.interruptions, Job.error, Job.last_seq))
            job = session.scalars(found).one_or_none()
        assert job is not None, f"there is no job {job_id}"
        return job

    def wait_for_state(self, job_id: str, *states: str) -> Job:
        """The job's row once it is in one of ``states``."""

        def look() -> Job | None:
            job = self.job(job_id)
            return job if job.state in states else None

        found = self.wait_for(look, f"{job_id} never became {' or '.join(states)}")
        assert found is not None
        return found

    def states_told(self, job_id: str) -> list[str]:
        return [str(event.data["name"]) for event in self._events(job_id, "state")]

    def live_jobs(self) -> int:
        with self.database.read() as session:
            return session.scalar(select(func.count()).where(Job.state.in_(LIVE_STATES))) or 0

    def quiesce(self, *, seconds: float = PATIENCE_SECONDS) -> None:
        self.wait_for(lambda: not self.live_jobs(), "jobs never ended", seconds=seconds)

    def wait_for(self, what: Callable[[], T], message: str, *, seconds: float = PATIENCE_SECONDS) -> T:
        try:
            return wait_for(what, seconds=seconds, message=message)
        except AssertionError as error:
            error.add_note(self.tail())
            raise

    def break_database(self) -> None:
        if self.servers is not None:
            self.servers.postgres.stop()
        elif self._locker is None:
            self._locker = sqlite3.connect(
                self.home / "service.db", isolation_level=None, timeout=PATIENCE_SECONDS, check_same_thread=False
            )
            self._locker.execute("BEGIN EXCLUSIVE")

    def mend_database(self) -> None:
        if self.servers is not None:
            self.servers.postgres.heal()
        elif self._locker is not None:
            self._locker.execute("ROLLBACK")
            self._locker.close()
            self._locker = None

    def break_broker(self) -> None:
        """Redis is killed; without a broker there is nothing to break."""
        if self.servers is not None:
            self.servers.redis.stop()

    def mend_broker(self) -> None:
        """Redis runs again, empty."""
        if self.servers is not None:
            self.servers.redis.heal()

    def lose_messages(self) -> None:
        if self.servers is not None:
            self.servers.redis.empty(self.broker_url)

    def heal(self) -> None:
        for path in self._holds.iterdir():
            path.unlink(missing_ok=True)
        if self.servers is not None:
            self.servers.heal()
        self.mend_database()
        self.mend_broker()
        for process in self.processes:
            process.resume()
        self.start()

    def begin_anew(self) -> None:
        """Nothing that an earlier test has computed helps the next one, and nothing that was logged counts."""
        for folder in (self.settings.checkpoint_dir, self.settings.cache_dir):
            for path in folder.iterdir() if folder.exists() else ():
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        for process in self.processes:
            if self._armed.get(process.name):
                process.resume()
                process.stop()
                self.start(process)
            process.turn_page()

    def freeze(self, process: Process) -> None:
        """SIGSTOP at a moment when the process holds no lock on SQLite: a stopped writer would lock everyone out."""
        self.wait_for(lambda: self._frozen(process), f"{process.name} wrote whenever it was stopped")

    def _frozen(self, process: Process) -> bool:
        process.pause()
        if self.servers is not None:
            return True
        probe = sqlite3.connect(self.home / "service.db", isolation_level=None, timeout=LOCK_PATIENCE_SECONDS)
        try:
            probe.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            process.resume()
            return False
        finally:
            probe.close()
        return True

    @contextmanager
    def paused(self, process: Process) -> Iterator[None]:
        self.freeze(process)
        try:
            yield
        finally:
            process.resume()

    def stop(self) -> dict[str, int]:
        order = (*self.workers, self.reconciler, *self.apis)
        for process in order:
            process.resume()
            process.send(signal.SIGTERM)
        return {process.name: process.wait() for process in order}

    def leftovers(self) -> dict[int, str]:
        """Living processes that belong to this folder, with their command lines."""
        return processes_of(self.home)

    def tail(self, chars: int = 3000) -> str:
        return "\n".join(f"--- {process.name}\n{process.said()[-chars:]}" for process in self.processes)

    def close(self) -> None:
        self.mend_database()
        for process in self.processes:
            process.close()
        self._listener.close()
        self.database.close()
        left = self.leftovers()
        for pid in left:
            os.kill(pid, signal.SIGKILL)
        if self.servers is not None:
            self.servers.heal()
            leaks.refuse(leaks.rows_of(self.database_url))
            self.servers.postgres.drop_database(self.database_url)
        leaks.refuse(leaks.files_of(self.folder))
        assert not left, f"left behind: {left}"

    def _events(self, job_id: str, kind: str) -> list[JobEvent]:
        of_kind = select(JobEvent).where(JobEvent.job_id == job_id, JobEvent.type == kind).order_by(JobEvent.seq)
        with self.database.read() as session:
            return list(session.scalars(of_kind))

    def _reached(self, place: str) -> Path:
        return self._holds / f"{place}.reached"

    def _own_place(self, name: str) -> dict[str, str]:
        return {"QUANTMILL_DATA_DIR": str(self.home / name)}

    def _process(self, name: str, *arguments: str) -> Process:
        return Process(
            name,
            [sys.executable, "-P", "-m", "worker.cli", *arguments],
            environment=self._environment | (self._own_place(name) if self._apart else {}),
            log=self.folder / f"{name}.log",
            pass_fds=(self._listener.fileno(),) if name.startswith("api") else (),
            folder=self.folder,
        )

    def _wait_ready(self, process: Process, said: int) -> None:
        if process in self.apis:
            process.wait_until_said("startup complete", after=said)
        elif process in self.workers:
            process.wait_until_said(" ready.", after=said)

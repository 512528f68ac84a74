"""A worker's surroundings for tests: database, store, rows, runners of our own, and waiting for a condition."""

from __future__ import annotations

import functools
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from select import select as readable
from typing import Any, TypeVar

from sqlalchemy import insert, select, update

from service.artifacts import repository as artifacts
from service.db import Database, db_now, head_revision
from service.ids import new_id
from service.jobs import transitions
from service.settings import Settings
from service.storage import FileStore
from service.tables import Artifact, Base, Dataset, Job, JobEvent, Model, ModelFile
from tests.support.patience import PATIENCE_SECONDS
from worker.confinement.controls import Mode
from worker.confinement.places import Places
from worker.lease import Timing
from worker.outcome import Outcome
from worker.sandbox import Sandbox
from worker.spares import Spares
from worker.supervisor import Supervisor

T = TypeVar("T")

# What every runner of the tests starts with: say(line) writes a RunnerLine, task is the decoded task.
RUNNER_HEAD = """
import json, os, signal, sys, time
task_file = sys.argv[-1]
task = json.load(open(task_file))
def say(**line):
    os.write(3, (json.dumps(line) + "\\n").encode())
def log(text):
    say(line="log", message=str(text))
SUMMARY = dict(ir_version=8, opset={"": 17}, producer="test", inputs=[], outputs=[], node_count=0, op_counts={},
               parameter_count=0, size_bytes=1, sha256="0" * 64)
def succeed():
    say(line="model", summary=SUMMARY)
    sys.exit(0)
"""

QUICK = Timing(
    lease=5.0,
    renew=0.5,
    look=0.1,
    flush=0.05,
    flush_max=0.1,
    stall=60.0,
    cancel_grace=1.0,
    shutdown_grace=1.0,
    backoff=lambda attempt: 0.0,
)


def wait_for(what: Callable[[], T], *, seconds: float = PATIENCE_SECONDS, message: str = "it never happened") -> T:
    """The first true value of ``what()``; looked for more rarely the longer it takes, for each look costs something."""
    begin = time.monotonic()
    while (passed := time.monotonic() - begin) < seconds:
        value = what()
        if value:
            return value
        time.sleep(min(max(0.02, 0.1 * passed), 0.1))
    raise AssertionError(message)


def finish(thread: threading.Thread) -> None:
    thread.join(PATIENCE_SECONDS)
    assert not thread.is_alive()


def process_gone(pid: int) -> bool:
    """True if there is no such process, or only its entry that nobody has reaped yet."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):  # the second if it ends between open and read
        return True


def parent(pid: int) -> int:
    """Of a process that is there."""
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def is_spare(pid: int) -> bool:
    """True for a runner that was started without a job and has none yet, which shows by its folder."""
    try:
        command, folder = Path(f"/proc/{pid}/cmdline").read_bytes(), Path(f"/proc/{pid}/cwd").readlink()
    except OSError:  # it ended meanwhile
        return False
    return b"--spare" in command and not folder.name.startswith("job_")


def run_in_thread(supervisor: Supervisor, job_id: str) -> threading.Thread:
    thread = threading.Thread(target=supervisor.run, args=(job_id,))
    thread.start()
    return thread


# What a runner begins with whose pid a test wants to know.
WRITE_PID = """
with open(os.environ['BENCH'] + '/pid.tmp', 'w') as stream: stream.write(str(os.getpid()))
os.rename(stream.name, os.environ['BENCH'] + '/pid')
"""
WAIT = "while not os.path.exists(os.environ['BENCH'] + '/go'): time.sleep(0.02)\n"
# Runs the program that is named behind it, also as a spare runner.
WAITS = Path(__file__).with_name("waits.py")
# Works until the test lets it go.
UNTIL_GO = WRITE_PID + WAIT + "succeed()\n"
# Works until it is asked to stop.
UNTIL_ASKED = "signal.signal(signal.SIGTERM, lambda *_: sys.exit(13))\n" + WRITE_PID + "while True: time.sleep(0.02)\n"
# Writes a file that is published.
PUBLISHES = """
import hashlib
data = b"y" * 2_000_000
with open(os.path.join(task["output_dir"], "thumbnails.png"), "wb") as stream: stream.write(data)
say(line="dataset", summary=dict(format="npz", arrays={}, samples=1, size_bytes=1, sha256="0" * 64, thumbnails=dict(
    file="thumbnails.png", sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))))
sys.exit(0)
"""


def runner_pid(bench: Workbench) -> int:
    return int(wait_for(lambda: (bench.folder / "pid").exists() and (bench.folder / "pid").read_text()))


def threads_refused(monkeypatch: Any, prefix: str) -> threading.Event:
    """The system refuses threads whose name begins so; set once it has refused one."""
    refused, real = threading.Event(), threading.Thread.start

    def start(thread: threading.Thread) -> None:
        if thread.name.startswith(prefix):
            refused.set()
            raise RuntimeError("can't start new thread")
        real(thread)

    monkeypatch.setattr(threading.Thread, "start", start)
    return refused


def process_state(pid: int) -> str:
    """The letter that the kernel shows: R and S while it runs, T while it is stopped, Z when it has ended."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]


def spare_pid(spares: Spares) -> int:
    """The runner that waits, once there is one that has said so."""
    started = wait_for(lambda: spares._spare, message="there is no spare").started  # type: ignore[union-attr]
    wait_for(lambda: readable([started.lines], [], [], 0)[0], message="it does not wait")
    return started.process.pid


@contextmanager
def database_away(bench: Workbench) -> Iterator[None]:
    """Opening the database fails at once meanwhile, as it does with a server that is down."""
    path = Path(bench.settings.database_url.removeprefix("sqlite:///"))
    bench.database.engine.dispose()
    away, nowhere = path.with_name("away"), path.with_name("nowhere")
    away.hardlink_to(path)
    nowhere.symlink_to(path.with_name("missing") / path.name)
    # replaced at a stroke: SQLite makes the file anew, empty, where it opens a name that is free for a moment
    nowhere.replace(path)
    try:
        yield
    finally:
        away.replace(path)


@functools.cache
def _empty_database() -> bytes:
    """A SQLite file with all tables, of the newest revision: on any other no process starts."""
    with tempfile.TemporaryDirectory() as folder:
        database = Database(f"sqlite:///{folder}/empty.db")
        Base.metadata.create_all(database.engine)
        with database.engine.begin() as connection:
            connection.exec_driver_sql("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
            connection.exec_driver_sql(f"INSERT INTO alembic_version VALUES ('{head_revision()}')")
        database.close()
        return Path(folder, "empty.db").read_bytes()


class ReleasingSupervisor(Supervisor):
    """Runs a job as if it had just been released."""

    def run(self, job_id: str, attempt: int | None = None) -> Outcome | None:
        with self._database.write() as session:
            released = update(Job).where(Job.id == job_id).values(dispatched_at=db_now()).returning(Job.attempt)
            before = session.scalar(released) or 0
        return super().run(job_id, before + 1 if attempt is None else attempt)


class Workbench:
    """One isolated service on ``folder``."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.settings = Settings(data_dir=folder / "data", threads=1, **settings)
        self.settings.make_folders()
        kind, _, path = self.settings.database_url.partition(":///")
        if kind == "sqlite" and not Path(path).exists():
            Path(path).write_bytes(_empty_database())
        self.database = Database(self.settings.database_url)
        self.store = FileStore(self.settings.storage_dir)
        self.spares: list[Spares] = []

    def close(self) -> None:
        for spares in self.spares:
            spares.close()
        self.database.close()

    def put(self, data: bytes) -> str:
        path = self.folder / "incoming"
        path.write_bytes(data)
        return self.store.put_file(path).sha256

    def add_model(self, files: dict[str, bytes] | None = None, tenant: str = "default") -> str:
        files = {"net.onnx": b"onnx"} if files is None else files
        model_id = new_id("mdl")
        with self.database.write() as session:
            now = db_now()
            session.execute(
                insert(Model).values(
                    id=model_id, tenant_id=tenant, name=f"net {model_id}", format="onnx", status="validating",
                    row_version=1, created_at=now, updated_at=now,
                )
            )  # fmt: skip
            for path, data in files.items():
                session.execute(
                    insert(ModelFile).values(
                        tenant_id=tenant, model_id=model_id, path=path, sha256=self.put(data), size_bytes=len(data),
                        is_main=path.endswith(".onnx"),
                    )
                )  # fmt: skip
        return model_id

    def add_dataset(self, data: bytes = b"npz", preprocessing: dict[str, Any] | None = None) -> str:
        dataset_id = new_id("dst")
        with self.database.write() as session:
            now = db_now()
            session.execute(
                insert(Dataset).values(
                    id=dataset_id, tenant_id="default", name=f"data {dataset_id}", format="npz", status="validating",
                    sha256=self.put(data), size_bytes=len(data), preprocessing=preprocessing or {},
                    row_version=1, created_at=now, updated_at=now,
                )
            )  # fmt: skip
        return dataset_id

    def quantize(self, model: bytes = b"onnx", calibration: bytes = b"npz", **config: Any) -> str:
        """A quantize job of the preset int8, unless the config says otherwise."""
        model_id, data = self.add_model({"net.onnx": model}), self.add_dataset(calibration)
        config = {"preset": "int8", **config}
        return self.submit(kind="quantize", model_id=model_id, calibration_dataset_id=data, config=config)

    def inspect_dataset(self, data: bytes = b"npz") -> str:
        return self.submit(kind="inspect_dataset", model_id=None, dataset_id=self.add_dataset(data))

    def submit(self, tenant: str = "default", **values: Any) -> str:
        values.setdefault("kind", "inspect_model")
        if values["kind"] == "inspect_model" and "model_id" not in values:
            values["model_id"] = self.add_model(tenant=tenant)
        with self.database.write() as session:
            return transitions.submit(session, transitions.NewJob(tenant_id=tenant, **values)).id

    def supervisor(
        self, code: str, *, timing: Timing = QUICK, mode: Mode = "auto", spare: bool = False, **options: Any
    ) -> Supervisor:
        """A supervisor whose runners run ``code``; they may write into the bench's folder.

        With ``spare`` it has one that waits, the last of ``spares``.
        """
        program = self.folder / f"runner-{len(list(self.folder.glob('runner-*')))}.py"
        program.write_text(RUNNER_HEAD + textwrap.dedent(code))
        sandbox = Sandbox(
            (sys.executable, "-P", *([str(WAITS)] if spare else ()), str(program)),
            variables={"BENCH": str(self.folder)}, mode=mode, places=Places(writable=(self.folder,)),
        )  # fmt: skip
        if spare:
            options["spares"] = self.keep_spare(sandbox)
        if timing.backoff is transitions.backoff_seconds:
            timing = replace(timing, backoff=lambda attempt: 0.0)
        return ReleasingSupervisor(self.settings, self.database, sandbox=sandbox, timing=timing, **options)

    def release(self, job_id: str, seconds_ago: float = 0.0) -> int:
        """As a dispatcher does; the attempt that it is for."""
        with self.database.write() as session:
            released = update(Job).where(Job.id == job_id).values(dispatched_at=db_now() - seconds_ago)
            released = released.returning(Job.attempt)
            return session.scalars(released).one() + 1

    def keep_spare(self, sandbox: Sandbox) -> Spares:
        """One that waits, of a sandbox whose command is ``WAITS`` and a program."""
        self.spares.append(Spares(sandbox, self.settings, first_seconds=0.0))
        spare_pid(self.spares[-1])
        return self.spares[-1]

    def begin(
        self, code: str = UNTIL_GO, job_id: str | None = None, **options: Any
    ) -> tuple[str, threading.Thread, int]:
        """An attempt in a thread whose runner has begun and written its pid: the job, the thread, and the pid."""
        job_id = job_id or self.submit()
        thread = run_in_thread(self.supervisor(code, **options), job_id)
        return job_id, thread, runner_pid(self)

    def go(self) -> None:
        (self.folder / "go").touch()

    def job(self, job_id: str) -> Job:
        with self.database.read() as session:
            job = session.get(Job, job_id)
        assert job is not None
        return job

    def standing(self, job_id: str) -> tuple[str, int, int]:
        job = self.job(job_id)
        return job.state, job.attempt, job.interruptions

    def states(self, *job_ids: str) -> list[str]:
        return [self.job(job_id).state for job_id in job_ids]

    def failure(self, job_id: str) -> tuple[str, str | None]:
        job = self.job(job_id)
        return job.state, None if job.error is None else job.error["code"]

    def artifacts(self, job_id: str) -> dict[str, Artifact]:
        with self.database.read() as session:
            return {item.kind: item for item in artifacts.list_of_job(session, "default", job_id)}

    def model(self, model_id: str | None) -> Model:
        with self.database.read() as session:
            model = session.get(Model, model_id)
        assert model is not None
        return model

    def events(self, job_id: str, kind: str | None = None) -> list[JobEvent]:
        with self.database.read() as session:
            found = list(session.scalars(select(JobEvent).where(JobEvent.job_id == job_id).order_by(JobEvent.seq)))
        assert [event.seq for event in found] == list(range(1, len(found) + 1))
        return [event for event in found if kind in (None, event.type)]

    def names(self, job_id: str) -> list[str]:
        return [event.data["name"] for event in self.events(job_id, "state")]

    def logged(self, job_id: str) -> list[str]:
        return [event.data["message"] for event in self.events(job_id, "log")]

    def cancel(self, job_id: str) -> None:
        with self.database.write() as session:
            transitions.request_cancel(session, "default", job_id)

    def scratch_folders(self) -> list[str]:
        return sorted(path.name for path in self.settings.scratch_dir.iterdir())

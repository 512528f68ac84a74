"""How soon jobs start, how many get done, and whose: real processes on PostgreSQL and Redis, tiny jobs.

    python -m benchmarks.dispatch [--tree FOLDER ...] [--jobs N] [--singles N] [--workers N]
    python -m benchmarks.dispatch --backlog 10000 [--workers N]

The first prints for each tree, one after the other on databases of its own: dispatch, from a job's submission to its
claim while slots are free; jobs per second and overhead of each of N jobs that are submitted at once, beyond the
engine's own time. A tree is another checkout of the project: it runs in processes of its own with this interpreter.
The second lets one tenant have a backlog, and prints how long single jobs of another one wait beside it, and how long
one of the first tenant's own with a higher priority does. All by the service's own timestamps.
"""

from __future__ import annotations

import argparse
import os
import secrets
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import mean, median, quantiles

import httpx
import psycopg
from sqlalchemy.engine import make_url

from benchmarks.service import write_inputs
from service.client import Client
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from service.db import Database
from service.jobs import transitions
from tests.fault.harness.servers import free_port
from tests.support.services import new_postgres_database, own_redis_database
from worker.children import command_line

HERE = Path(__file__).resolve().parents[1]
SUBMITTERS = 4
START_SECONDS = 60.0


class Service:
    """One tree's API, reconciler and workers.

    Args:
        tree: whose code runs.
        folder: takes everything, also logs.
        database_url: of an empty database.
        broker_url: of an empty one.
        workers: processes of one slot each.
        apis: API processes, each with a port of its own.
    """

    def __init__(
        self, tree: Path, folder: Path, database_url: str, broker_url: str, workers: int, *, apis: int = 1
    ) -> None:
        self.ports = [free_port() for _ in range(apis)]
        self.url = f"http://127.0.0.1:{self.ports[0]}"
        self.database_url = database_url
        # Of the processes that run, by name.
        self.pids: dict[str, int] = {}
        self._folder = folder
        kept = {name: value for name, value in os.environ.items() if not name.startswith("QUANTMILL_")}
        self._variables = {
            **kept,
            "PYTHONPATH": str(tree),
            "QUANTMILL_DATA_DIR": str(folder / "home"),
            "QUANTMILL_DATABASE_URL": database_url,
            "QUANTMILL_BROKER_URL": broker_url,
            "QUANTMILL_KEY_PEPPER": secrets.token_hex(16),
            "QUANTMILL_API_KEY": secrets.token_hex(16),
            "QUANTMILL_THREADS": "1",
            "QUANTMILL_HOST_SLOTS": str(workers + 1),
        }
        self._commands = {
            **{f"api-{number}": ("api", "--port", str(port)) for number, port in enumerate(self.ports)},
            "reconciler": ("reconcile",),
            "inspector": ("worker", "--queues", "inspect"),
            **{f"worker-{number}": ("worker", "--queues", "cpu") for number in range(workers)},
        }

    @contextmanager
    def running(self) -> Iterator[None]:
        """Start all, and end all at the end."""
        self.run("migrate")
        with ExitStack() as stack:
            for name, words in self._commands.items():
                log = stack.enter_context((self._folder / f"{name}.log").open("wb"))
                process = subprocess.Popen(
                    command_line(*words), env=self._variables, stdout=log, stderr=log, start_new_session=True
                )
                stack.callback(process.wait)
                stack.callback(process.terminate)
                self.pids[name] = process.pid
            until = time.monotonic() + START_SECONDS
            while not self._ready():
                if time.monotonic() > until:
                    raise SystemExit(f"error: not ready; see the logs: {self._logs()}")
                time.sleep(0.1)
            yield

    def run(self, *words: str) -> str:
        """Standard output of one command of the tree."""
        done = subprocess.run(command_line(*words), env=self._variables, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def client(self, tenant: str = "default") -> Client:
        """A client of a tenant, with a key of its own."""
        return Client(self.url, key=self.key(tenant))

    def key(self, tenant: str = "default") -> str:
        """A key of a tenant."""
        return self.run("keys", "create", tenant, "--tenant", tenant)

    def times(self, condition: str) -> list[tuple[float, float, float]]:
        """Creation, start and end of the jobs that have ended, in seconds since 1970."""
        address = make_url(self.database_url).set(drivername="postgresql").render_as_string(hide_password=False)
        with psycopg.connect(address) as connection:
            columns = "SELECT created_at, started_at, finished_at FROM jobs WHERE kind = 'quantize' AND "
            found = connection.execute(f"{columns} finished_at IS NOT NULL AND ({condition}) ORDER BY created_at")
            return [(float(created), float(started), float(ended)) for created, started, ended in found.fetchall()]

    def _ready(self) -> bool:
        try:
            asked = [httpx.get(f"http://127.0.0.1:{port}/readyz", trust_env=False) for port in self.ports]
        except httpx.TransportError:
            return False
        return all(answer.is_success for answer in asked)

    def _logs(self) -> str:
        return " ".join(path.read_text(errors="replace")[-400:] for path in self._folder.glob("*.log"))


@contextmanager
def service(tree: Path, workers: int) -> Iterator[Service]:
    with (
        tempfile.TemporaryDirectory(prefix="quantmill-dispatch-") as folder,
        new_postgres_database() as database_url,
        own_redis_database() as broker_url,
    ):
        made = Service(tree, Path(folder), database_url, broker_url, workers)
        with made.running():
            yield made


def upload(client: Client) -> dict[str, str]:
    """What a job is submitted with."""
    with tempfile.TemporaryDirectory() as folder:
        model_file, data_file = write_inputs(Path(folder))
        model, data = client.push_model(model_file), client.push_dataset(data_file, PreprocessingSpec())
    return {"model": client.wait_ready(model).id, "calibration": client.wait_ready(data).id}


def percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100, method="inclusive")[percent - 1]


def compare(trees: Sequence[Path], *, workers: int, jobs: int, singles: int, gap_seconds: float) -> None:
    for tree in trees:
        with service(tree, workers) as made, made.client() as client:
            inputs = upload(client)
            engine = []
            for number in range(singles):
                job = client.wait_succeeded(client.submit(**inputs, config=QuantizationConfig()).id)
                if number >= singles // 2:
                    engine.append(sum(stage.seconds for stage in client.report(job.id).stages))
                time.sleep(gap_seconds)
            waited = [1000 * (started - created) for created, started, _ in made.times("true")]
            print(
                f"{tree}: dispatch of {singles} single jobs: median {median(waited):.0f} ms, "
                f"p99 {percentile(waited, 99):.0f} ms, longest {max(waited):.0f} ms",
                flush=True,
            )
            first = time.time()
            submit = partial(client.submit, **inputs, config=QuantizationConfig())
            with ThreadPoolExecutor(SUBMITTERS) as pool:
                list(pool.map(lambda call: call(), [submit] * jobs))
            while len(found := made.times(f"created_at >= {first}")) < jobs:
                time.sleep(1.0)
            seconds = max(ended for *_, ended in found) - min(created for created, *_ in found)
            print(
                f"{tree}: {jobs} jobs on {workers} workers in {seconds:.1f} s: {jobs / seconds:.2f} a second, "
                f"{workers * seconds / jobs:.3f} s of a slot for each; {mean(engine):.3f} s are the engine's, alone",
                flush=True,
            )


def beside_backlog(tree: Path, *, workers: int, backlog: int, singles: int) -> None:
    with service(tree, workers) as made, made.client("crowd") as crowd, made.client("single") as single:
        theirs, ours = upload(crowd), upload(single)
        database = Database(made.database_url)
        fields = {"kind": "quantize", "model_id": theirs["model"], "calibration_dataset_id": theirs["calibration"]}
        with database.write() as session:
            for _ in range(backlog):
                transitions.submit(session, transitions.NewJob(tenant_id="crowd", config={"preset": "int8"}, **fields))
        database.close()
        time.sleep(5.0)  # all slots are theirs by now
        urgent = []
        for number in range(singles):
            single.wait_succeeded(single.submit(**ours, config=QuantizationConfig()).id)
            if number % 2:
                job = crowd.submit(**theirs, config=QuantizationConfig(), priority=5)
                urgent.append(crowd.wait_succeeded(job.id).id)
        lengths = [ended - started for _, started, ended in made.times("tenant_id = 'crowd'")]
        waits = [started - created for created, started, _ in made.times("tenant_id = 'single'")]
        named = ", ".join(f"'{job_id}'" for job_id in urgent)
        ahead = [started - created for created, started, _ in made.times(f"id IN ({named})")]
    print(
        f"{workers} workers, {backlog} jobs of another tenant queued: {singles} single jobs waited "
        f"{median(waits):.2f} s, at most {max(waits):.2f} s; urgent ones of the other {median(ahead):.2f} s, at most "
        f"{max(ahead):.2f} s; its {len(lengths)} jobs took {median(lengths):.2f} s, at most {max(lengths):.2f} s"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, action="append", help="default: this checkout")
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--singles", type=int, default=100, help="two at least")
    parser.add_argument("--gap", type=float, default=1.2, help="seconds between single jobs: so that a service idles")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--backlog", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.backlog:
        beside_backlog(HERE, workers=arguments.workers, backlog=arguments.backlog, singles=arguments.singles)
    else:
        compare(
            arguments.tree or [HERE],
            workers=arguments.workers,
            jobs=arguments.jobs,
            singles=arguments.singles,
            gap_seconds=arguments.gap,
        )


if __name__ == "__main__":
    main()

"""What it costs that many wait for news, and how soon they have it.

    python -m benchmarks.streams [sqlite] [postgresql] [--streams 300] [--seconds 30] [--events 60]

An API and a reconciler run on a database of their own (QUANTMILL_TEST_POSTGRES_URL names the server), and event streams
are open that follow a job each, of which none tells anything. Prints what the API computes meanwhile, as percent of a
core, for streams that are open and for none. Then one more job tells of events at random moments: milliseconds from
its commit to the client that follows it.
"""

from __future__ import annotations

import argparse
import http.client
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.api import Place, crowd, fill
from service.client import Client
from service.db import Database, db_now, migrate
from service.jobs import events
from tests.fault.client import CONFIG
from tests.support.services import new_postgres_database, postgres_trouble

DATABASES = ("sqlite", "postgresql")
_PAUSE_SECONDS = (0.3, 0.9)
_SETTLED_SECONDS = 3.0
# No worker and no reconciler has anything to do with the jobs.
_LATER_SECONDS = 86_400.0
_TIMEOUT_SECONDS = 60.0


@contextmanager
def new_database(kind: str, folder: Path) -> Iterator[str]:
    """The URL of a migrated one."""
    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'service.db'}"
        if kind == "postgresql":
            url = stack.enter_context(new_postgres_database())
        migrate(url)
        yield url


def idle_share(place: Place, seconds: float) -> float:
    """What the API computes while nothing happens, as a share of a core."""
    time.sleep(_SETTLED_SECONDS)
    computed, begun = place.cpu_seconds(), time.monotonic()
    time.sleep(seconds)
    return (place.cpu_seconds() - computed) / (time.monotonic() - begun)


class Follower:
    """Follows the log of a job, and notes when each event came."""

    def __init__(self, port: int, job_id: str) -> None:
        self.came: dict[int, float] = {}
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_SECONDS)
        self._connection.request("GET", f"/v1/jobs/{job_id}/events", headers={"Accept": "text/event-stream"})
        self._answer = self._connection.getresponse()
        threading.Thread(target=self._follow, daemon=True).start()

    def _follow(self) -> None:
        while line := self._answer.readline():
            if line.startswith(b"id: "):
                self.came[int(line.removeprefix(b"id: "))] = time.monotonic()


def latencies(place: Place, database: Database, job_id: str, count: int) -> list[float]:
    """Milliseconds from the commit of an event until it was read by who follows its job."""
    follower, committed = Follower(place.port, job_id), {}
    for number in range(count):
        time.sleep(random.uniform(*_PAUSE_SECONDS))
        with database.write() as session:
            seq = events.append(session, job_id, 0, "log", {"level": "info", "message": str(number)})
        committed[seq] = time.monotonic()
    time.sleep(_SETTLED_SECONDS)
    return [(follower.came[seq] - at) * 1e3 for seq, at in committed.items()]


def measure(kind: str, options: argparse.Namespace) -> None:
    """Print the row of a database."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quantmill-streams-")))
        url = stack.enter_context(new_database(kind, folder))
        database = Database(url)
        stack.callback(database.close)
        # all streams are opened at once, on a machine that may be busy
        patient = {"QUANTMILL_API_ANSWER_SECONDS": str(_TIMEOUT_SECONDS)}
        place = stack.enter_context(Place(folder, url, workers=1, **patient))
        inputs = place.upload()
        with Client(f"http://127.0.0.1:{place.port}") as client:
            ids = {"model": inputs["model_id"], "calibration": inputs["calibration_dataset_id"]}
            template_id = client.submit(**ids, config=dict(CONFIG)).id
            client.wait_succeeded(template_id)
        place.stop_workers()
        nobody = idle_share(place, options.seconds)
        tells, *silent = fill(database, template_id, 1 + options.streams, not_before=db_now() + _LATER_SECONDS)
        with crowd(place.port, silent, []):
            many = idle_share(place, options.seconds)
            taken = latencies(place, database, tells, options.events)
    high = statistics.quantiles(taken, n=100, method="inclusive")[-1]
    print(
        f"{kind:10}  API idle {nobody:6.2%} of a core, with {options.streams} streams {many:6.2%};"
        f"  commit to client: median {statistics.median(taken):6.1f} ms, 99 % {high:6.1f} ms,"
        f" longest {max(taken):6.1f} ms of {len(taken)}",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("databases", nargs="*", help=f"of {', '.join(DATABASES)}; default: both")
    parser.add_argument("--streams", type=int, default=300, help="that are open")
    parser.add_argument("--seconds", type=float, default=30.0, help="for which the API's computing is measured")
    parser.add_argument("--events", type=int, default=60, help="whose way is measured")
    options = parser.parse_args()
    databases = options.databases or DATABASES
    if "postgresql" in databases and (trouble := postgres_trouble()) is not None:
        parser.error(trouble)
    # a polite end of this process, too, has to take everything with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for kind in databases:
        measure(kind, options)


if __name__ == "__main__":
    main()

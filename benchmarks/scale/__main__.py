"""How the service grows with requests, workers and rows: prints the tables of docs/scale.md.

    python -m benchmarks.scale requests [--seconds S] [--processes N ...]
    python -m benchmarks.scale workers [--count N ...] [--jobs N] [--idle S] [--statements]
    python -m benchmarks.scale commits
    python -m benchmarks.scale database [--jobs N] [--events N]

``requests`` loads one, two and four API processes; ``workers`` sends tiny jobs through the queue to one to eight
workers, after a look at what passes while they idle; ``commits`` writes from many connections at once. All of it runs
on a PostgreSQL and a Redis of its own, so that their CPU seconds are this benchmark's. ``database`` fills a database of
the server that QUANTMILL_TEST_POSTGRES_URL names, and compares it with an empty one.
"""

from __future__ import annotations

import argparse
import signal
import sys
from pathlib import Path

from benchmarks.scale import commits, database, requests, workers
from tests.support.many_rows import Amount


def _machine() -> str:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{len(models)} cores, {models[0]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(dest="part", required=True)
    of_requests = parts.add_parser("requests")
    of_requests.add_argument("--seconds", type=float, default=8.0, help="for each kind of request")
    of_requests.add_argument("--processes", type=int, nargs="+", default=requests.PROCESSES)
    of_workers = parts.add_parser("workers")
    of_workers.add_argument("--count", type=int, nargs="+", default=workers.WORKERS)
    of_workers.add_argument("--jobs", type=int, default=40)
    of_workers.add_argument("--idle", type=float, default=20.0, help="seconds of the look at idle workers")
    of_workers.add_argument("--statements", action="store_true", help="print those of a job")
    parts.add_parser("commits")
    of_database = parts.add_parser("database")
    of_database.add_argument("--jobs", type=int, default=1_000_000)
    of_database.add_argument("--events", type=int, default=20_000_000)
    options = parser.parse_args()
    # a polite end of this process, too, has to take everything with it
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    print(_machine(), flush=True)
    if options.part == "requests":
        requests.measure(options.seconds, tuple(options.processes))
    elif options.part == "workers":
        workers.measure(options.jobs, tuple(options.count), options.idle, statements=options.statements)
    elif options.part == "commits":
        commits.measure()
    else:
        share = options.jobs / 1_000_000
        few = {
            name: max(1, round(share * getattr(Amount(), name))) for name in ("queued", "running", "workers", "audit")
        }
        database.measure(Amount(jobs=options.jobs, events=options.events, **few))


if __name__ == "__main__":
    main()

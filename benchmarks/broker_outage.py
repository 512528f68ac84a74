"""Submissions while the broker is down: how long each takes, and whether all are done once it is back.

    python -m benchmarks.broker_outage [--jobs 1000] [--clients 1] [--limit-ms 200]

Prints the median, the 99th percentile and the longest of all answers, and the verdict of the client's ledger after the
broker came back and every job has ended (1000 jobs take a quarter of an hour on two cores). Exits 1 if an answer took
longer than the limit, or if anything was lost.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

from tests.fault.client import Client
from tests.fault.harness.installation import Installation
from tests.fault.harness.servers import Servers
from tests.fault.ledger import Ledger, check
from tests.support.tiny import make_tiny

_SETTLE_SECONDS = 3600.0


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit code says whether all was well."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--clients", type=int, default=1, help="that submit at the same time")
    parser.add_argument("--limit-ms", type=float, default=200.0)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="quantmill-outage-") as folder, ExitStack() as stack:
        root, servers = Path(folder), Servers()
        stack.callback(servers.close)
        installation = stack.enter_context(Installation(root / "all", servers=servers, workers=2))
        ledger = Ledger(root / "ledger.jsonl")
        client = Client(installation.url, ledger, installation.upload(make_tiny(root)))

        def submit(number: int) -> float:
            begun = time.perf_counter()
            assert client.submit_once(f"outage-{number}") is not None, "not accepted at once"
            return (time.perf_counter() - begun) * 1000

        installation.break_broker()
        with ThreadPoolExecutor(options.clients) as threads:
            taken = sorted(threads.map(submit, range(options.jobs)))
        print(
            f"POST /v1/jobs without a broker: median {statistics.median(taken):.1f} ms,"
            f" 99 % below {taken[int(len(taken) * 0.99)]:.1f} ms, longest {taken[-1]:.1f} ms,"
            f" over {len(taken)} jobs by {options.clients} clients",
            flush=True,
        )
        begun = time.perf_counter()
        installation.heal()
        installation.quiesce(seconds=_SETTLE_SECONDS)
        print(f"all ended {time.perf_counter() - begun:.0f} s after the broker came back", flush=True)
        client.close()
        ledger.close()
        verdict = check(ledger, installation.database, installation.store)
        print(verdict.told())
        return 0 if verdict.clean and taken[-1] < options.limit_ms else 1


if __name__ == "__main__":
    sys.exit(main())

"""Many small jobs, and one fault after the other: what is left of what was promised?

    python -m tests.fault.soak        (make soak)

    SOAK_JOBS=500         jobs
    SOAK_MINUTES=5        for how long faults are done; jobs are spread over that time
    SOAK_SEED=...         default: drawn, and printed
    SOAK_BACKEND=both     sqlite (and files), postgres (and Redis), or both, one after the other

Prints what was done and one line per back end, ``lost=0 duplicated_effects=0 unexpected=0``; exits 1 if it is another.
"""

from __future__ import annotations

import os
import random
import secrets
import sys
import tempfile
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from service.db import migrate
from tests.fault.client import Client
from tests.fault.harness.disk import SmallDisk, small_disk
from tests.fault.harness.faults import ASKED_TO_END, Faults
from tests.fault.harness.installation import Backend, Installation
from tests.fault.harness.servers import Servers
from tests.fault.ledger import Ledger, Verdict, check
from tests.support.tiny import make_tiny

_BACKENDS: dict[str, tuple[Backend, ...]] = {
    "sqlite": ("files",), "postgres": ("servers",), "both": ("files", "servers")
}  # fmt: skip
_CLIENTS = 4
_CANCELED_SHARE = 0.1
_DISK_MIB = 256
_SETTLE_SECONDS = 1800.0


@dataclass(frozen=True)
class Plan:
    """How much of what; the seed fixes which faults come in which order."""

    jobs: int
    seconds: float
    seed: int


@dataclass
class Outcome:
    """What was done, and what is left of it."""

    plan: Plan
    backend: Backend
    verdict: Verdict = field(default_factory=Verdict)
    faults: Counter[str] = field(default_factory=Counter)
    answers: Counter[str] = field(default_factory=Counter)

    def told(self) -> str:
        plan = self.plan
        return "\n".join(
            (
                f"soak: backend={self.backend} jobs={plan.jobs} minutes={plan.seconds / 60:g} seed={plan.seed}",
                f"faults={self.faults.total()}: {_counts(self.faults)}",
                f"answers: {_counts(self.answers)}",
                f"jobs: {_counts(self.verdict.states)}",
                self.verdict.told(),
            )
        )


def soak(installation: Installation, plan: Plan, folder: Path, backend: Backend, disk: SmallDisk | None) -> Outcome:
    """Run the plan on a started installation, which is stopped at the end."""
    outcome = Outcome(plan, backend)
    generator = random.Random(plan.seed)
    faults = Faults(installation, random.Random(generator.random()), disk)
    ledger = Ledger(folder / "ledger.jsonl")
    client = Client(installation.url, ledger, installation.upload(make_tiny(folder)))
    begin = time.monotonic()
    over = threading.Event()

    def one(number: int, at_seconds: float, cancel_after: float | None) -> None:
        over.wait(max(0.0, begin + at_seconds - time.monotonic()))
        key = f"soak-{number}"
        job_id = client.submit(key)
        if cancel_after is not None:
            over.wait(cancel_after)
            client.cancel(key, job_id)

    with ThreadPoolExecutor(_CLIENTS) as threads:
        sent = []
        for number in range(plan.jobs):
            canceled = generator.random() < _CANCELED_SHARE
            wait = generator.uniform(0, 3) if canceled else None
            sent.append(threads.submit(one, number, plan.seconds * number / plan.jobs, wait))
        while time.monotonic() - begin < plan.seconds:
            faults.pause()
            faults.one()
        over.set()
        installation.heal()
        for future in sent:
            future.result()
    installation.quiesce(seconds=_SETTLE_SECONDS)
    client.close()
    ledger.close()
    codes = installation.stop()
    outcome.verdict = check(ledger, installation.database, installation.store, leftovers=installation.leftovers())
    outcome.verdict.unexpected += faults.died
    ends = [f"{name} ended with {code}" for name, code in codes.items() if code not in ASKED_TO_END]
    outcome.verdict.unexpected += ends
    outcome.faults = faults.done
    for entry in ledger.entries.values():
        outcome.answers["202"] += len(entry.acknowledged)
        outcome.answers["none"] += entry.unsure
        outcome.answers.update(entry.refused)
    return outcome


def run(plan: Plan, backend: Backend, folder: Path, servers: Servers | None = None) -> Outcome:
    """A fresh installation below ``folder``, and the plan on it; ``servers`` None: of its own, if it needs them."""
    with ExitStack() as stack:
        if backend == "servers" and servers is None:
            servers = Servers()
            stack.callback(servers.close)
        template = folder / "template.db"
        migrate(f"sqlite:///{template}")
        disk = None
        with suppress(pytest.skip.Exception):  # without the right to mount one, disks do not fill up here
            disk = stack.enter_context(small_disk(_DISK_MIB))
        # with SQLite the database, too, lies on the disk that fills up
        home = None if disk is None else disk.folder / "home"
        installation = stack.enter_context(
            Installation(folder / backend, servers=servers, template=template, workers=2, home=home)
        )
        return soak(installation, plan, folder, backend, disk)


def main() -> int:
    """Run what the environment asks for; the exit code says whether all was well."""
    seed = int(os.environ.get("SOAK_SEED", secrets.randbelow(1_000_000)))
    plan = Plan(int(os.environ.get("SOAK_JOBS", "500")), float(os.environ.get("SOAK_MINUTES", "5")) * 60, seed)
    asked = os.environ.get("SOAK_BACKEND", "both")
    if asked not in _BACKENDS:
        sys.exit(f"soak: there is no SOAK_BACKEND {asked!r}: take one of {', '.join(_BACKENDS)}")
    clean = True
    for backend in _BACKENDS[asked]:
        print(f"soak: backend={backend} seed={seed} ...", flush=True)
        with tempfile.TemporaryDirectory(prefix="quantmill-soak-") as folder:
            outcome = run(plan, backend, Path(folder))
        print(outcome.told(), flush=True)
        clean = clean and outcome.verdict.clean
    return 0 if clean else 1


def _counts(counter: Counter[str]) -> str:
    return ", ".join(f"{name}={count}" for name, count in sorted(counter.items())) or "none"


if __name__ == "__main__":
    sys.exit(main())

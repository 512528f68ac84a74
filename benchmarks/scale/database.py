"""A database of a million jobs beside an empty one: what each statement costs, and how quickly old rows go."""

from __future__ import annotations

import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median

from benchmarks.scale.looks import DISPATCH, FIGURES, LISTS, READS, RECONCILER, RETENTION, WALKS, Look, Sample
from service.audit.service import link, verify
from service.db import Database, migrate
from tests.support.many_rows import Amount, fill
from tests.support.plans import plans_of, undone
from tests.support.services import new_postgres_database
from worker.upkeep.repository import OLD_ROWS

GROUPS: dict[str, Mapping[str, Look]] = {
    "lists": LISTS, "lists that go through a tenant's jobs": WALKS, "reads": READS, "figures": FIGURES,
    "dispatch": DISPATCH, "reconciler": RECONCILER, "retention": RETENTION,
}  # fmt: skip
EMPTY = Amount(jobs=100, events=2000, queued=10, running=5, workers=5, audit=100)
_RUNS = 15
# Rows of each kind that are deleted to tell the rate.
_DELETED = 20_000
_OLD_SECONDS = 45 * 86_400.0


@dataclass(frozen=True)
class Cost:
    """What a look takes: the median time of some runs, and what one of them did."""

    milliseconds: float
    statements: int
    examined: int
    blocks: int
    scanned: tuple[str, ...]


def cost(url: str, look: Look) -> Cost:
    """Of a look at a database."""
    database = Database(url)
    taken = []
    try:
        with database.read() as session:
            sample = Sample.of(session)
        for _ in range(_RUNS):
            with undone(database) as session:
                begun = time.perf_counter()
                look(session, sample)
                taken.append((time.perf_counter() - begun) * 1000)
    finally:
        database.close()
    plans = plans_of(url, lambda session: look(session, sample))
    return Cost(
        median(taken),
        len(plans),
        sum(plan.examined for plan in plans),
        sum(plan.blocks for plan in plans),
        tuple(sorted({name for plan in plans for name in plan.scanned})),
    )


def compare(empty_url: str, full_url: str) -> None:
    """Print the table."""
    print("| | empty, ms | full, ms | ratio | statements | rows examined | blocks | read from end to end |")
    print("|---|---|---|---|---|---|---|---|")
    for group, looks in GROUPS.items():
        for name, look in looks.items():
            few, many = cost(empty_url, look), cost(full_url, look)
            print(
                f"| {group}: {name} | {few.milliseconds:.1f} | {many.milliseconds:.1f} | "
                f"{many.milliseconds / few.milliseconds:.1f} | {many.statements} | {many.examined:,} | "
                f"{many.blocks:,} | {', '.join(many.scanned)} |",
                flush=True,
            )


def chain(database: Database) -> None:
    """Chain the audit log; prints how quickly."""
    begun, rows = time.perf_counter(), 0
    while done := link(database):
        rows += done
    print(f"audit entries chained: {rows:,}, {rows / (time.perf_counter() - begun):,.0f} a second")


def forget(database: Database) -> None:
    """Delete old rows; prints how quickly, and the longest transaction."""
    for rows in OLD_ROWS:
        if rows.name not in {"progress", "jobs", "audit"}:
            continue
        taken, done = [], 0
        while done < _DELETED:
            begun = time.perf_counter()
            with database.write() as session:
                found = rows.delete(session, _OLD_SECONDS, rows.batch)
            taken.append(time.perf_counter() - begun)
            done += found
            if found < rows.batch:
                break
        print(
            f"old {rows.name} deleted: {done:,}, {done / sum(taken):,.0f} rows a second in batches of {rows.batch}; "
            f"a transaction took {median(taken) * 1000:.0f} ms, at most {max(taken) * 1000:.0f} ms",
            flush=True,
        )
    with database.read() as session:
        verdict = verify(session)
    print(f"the audit log has {verdict.rows:,} entries and {verdict.fault or 'no fault'}")


def measure(amount: Amount) -> None:
    """Make both databases, and print what all of it costs."""
    with ExitStack() as stack:
        urls = []
        for each in (EMPTY, amount):
            url = stack.enter_context(new_postgres_database())
            migrate(url)
            begun = time.perf_counter()
            fill(url, each)
            database = Database(url)
            stack.callback(database.close)
            print(f"{each.jobs:,} jobs, {each.jobs * each.events_of_job:,} events: {time.perf_counter() - begun:.0f} s")
            chain(database)
            urls.append(url)
        compare(*urls)
        forget(database)

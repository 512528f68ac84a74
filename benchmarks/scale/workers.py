"""Workers on tiny jobs, and workers that idle: what a job and a worker cost every part of the service."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from statistics import mean, median

from benchmarks.dispatch import SUBMITTERS, Service, upload
from benchmarks.scale.meter import Figures
from benchmarks.scale.place import installation
from service.client import Client
from service.contracts.config import QuantizationConfig

WORKERS = (1, 2, 4, 8)
PARTS = ("api", "inspector", "reconciler", "worker", "postgresql", "redis")
_SETTLED_SECONDS = 12.0


def measure(jobs: int, workers: tuple[int, ...], idle_seconds: float, *, statements: bool = False) -> None:
    """Print jobs per second and the cost of each, then what passes while nothing happens."""
    print("| workers | jobs a second | wait, median | of a slot, each | ", end="")
    print(" | ".join(f"{part}, CPU s" for part in PARTS), end="")
    print(" | transactions | statements | WAL, bytes | updates of jobs, without an index | Redis commands |")
    print("|---" * 15 + "|")
    idle: dict[int, Figures] = {}
    for count in workers:
        with installation(workers=count) as (service, meter), service.client() as client:
            inputs = upload(client)
            client.wait_succeeded(client.submit(**inputs, config=QuantizationConfig()).id)
            time.sleep(_SETTLED_SECONDS)
            with meter.measured() as idle[count]:
                time.sleep(idle_seconds)
            first = time.time()
            with meter.measured() as figures:
                _submit(client, inputs, jobs)
                found = _ended(service, first, jobs)
            seconds = max(ended for *_, ended in found) - min(created for created, *_ in found)
            waited = median(started - created for created, started, _ in found)
            held = mean(ended - started for _, started, ended in found)
            cpu = " | ".join(f"{figures.cpu_seconds[part] / jobs:.3f}" for part in PARTS)
            print(
                f"| {count} | {jobs / seconds:.2f} | {waited:.2f} s | {held:.2f} s | {cpu} | "
                f"{figures.transactions / jobs:.1f} | {figures.calls / jobs:.1f} | {figures.wal_bytes / jobs:,.0f} | "
                f"{figures.updates / jobs:.1f}, {figures.hot_updates / jobs:.1f} | "
                f"{figures.redis_commands / jobs:.1f} |",
                flush=True,
            )
            if statements:
                _show(figures, jobs)
    _show_idle(idle, idle_seconds)


def _submit(client: Client, inputs: dict[str, str], jobs: int) -> None:
    with ThreadPoolExecutor(SUBMITTERS) as pool:
        list(pool.map(lambda _: client.submit(**inputs, config=QuantizationConfig()), range(jobs)))


def _ended(service: Service, first: float, jobs: int) -> list[tuple[float, float, float]]:
    while len(found := service.times(f"created_at >= {first}")) < jobs:
        time.sleep(0.5)
    return found


def _show(figures: Figures, jobs: int) -> None:
    for statement, calls in list(figures.statements.items())[:40]:
        print(f"    {calls / jobs:6.2f}  {statement[:150]}")


def _show_idle(idle: dict[int, Figures], seconds: float) -> None:
    print("\n| idle workers | connections | " + " | ".join(f"{part}, % of a core" for part in PARTS), end="")
    print(" | transactions a second | statements a second | WAL, bytes a second | Redis commands a second |")
    print("|---" * 12 + "|")
    for count, figures in idle.items():
        cpu = " | ".join(f"{100 * figures.cpu_seconds[part] / seconds:.2f}" for part in PARTS)
        print(
            f"| {count} | {figures.connections} | {cpu} | {figures.transactions / seconds:.2f} | "
            f"{figures.calls / seconds:.2f} | {figures.wal_bytes / seconds:,.0f} | "
            f"{figures.redis_commands / seconds:.1f} |",
            flush=True,
        )

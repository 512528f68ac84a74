"""One, two and four API processes under a client that sends its next request as soon as the last was answered."""

from __future__ import annotations

import json
from statistics import median
from typing import Any

from benchmarks.api import client
from benchmarks.dispatch import percentile, upload
from benchmarks.scale.place import installation

PROCESSES = (1, 2, 4)
_CONNECTIONS = 8
_WARMUP_SECONDS = 2.0


def loaded(wanted: dict[str, Any]) -> list[float]:
    """Milliseconds of each request, by a client of its own process."""
    process = client("load")
    try:
        told = process.communicate(json.dumps(wanted) + "\n")[0]
    finally:
        process.kill()
        process.wait()
    if process.returncode != 0:
        raise RuntimeError("the client that loads the service gave up")
    found: list[float] = json.loads(told)
    return found


def measure(seconds: float, processes: tuple[int, ...] = PROCESSES) -> None:
    """Print requests per second, their times, and what each of them costs every part."""
    print("| API processes | request | a second | median, ms | 99 %, ms | API, CPU ms | PostgreSQL, CPU ms | ", end="")
    print("transactions | statements | WAL, bytes | Redis commands |")
    print("|---" * 11 + "|")
    for apis in processes:
        with installation(apis=apis) as (service, meter), service.client() as first:
            inputs = upload(first)
            key = service.key()
            body = {
                "model_id": inputs["model"], "calibration_dataset_id": inputs["calibration"],
                "config": {"preset": "int8"},
            }  # fmt: skip
            job_id = first.submit(**inputs, config=body["config"]).id
            asked = {
                "POST /v1/jobs": ("POST", ["/v1/jobs"], body),
                "GET /v1/jobs/{id}": ("GET", [f"/v1/jobs/{job_id}"], None),
                "GET /v1/jobs": ("GET", ["/v1/jobs?limit=20"], None),
            }
            for name, (method, paths, sent) in asked.items():
                wanted = {
                    "ports": service.ports, "method": method, "paths": paths, "body": sent, "key": key,
                    "connections": _CONNECTIONS, "seconds": _WARMUP_SECONDS,
                }  # fmt: skip
                loaded(wanted)
                with meter.measured() as figures:
                    taken = loaded({**wanted, "seconds": seconds})
                cpu = {part: 1000 * figures.cpu_seconds[part] / len(taken) for part in ("api", "postgresql")}
                print(
                    f"| {apis} | `{name}` | {len(taken) / seconds:.0f} | {median(taken):.1f} | "
                    f"{percentile(taken, 99):.1f} | {cpu['api']:.2f} | {cpu['postgresql']:.2f} | "
                    f"{figures.transactions / len(taken):.1f} | {figures.calls / len(taken):.1f} | "
                    f"{figures.wal_bytes / len(taken):,.0f} | {figures.redis_commands / len(taken):.1f} |",
                    flush=True,
                )

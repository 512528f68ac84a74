"""Latency of ``POST /v1/jobs`` on the embedded default: a real API process, SQLite, and no broker.

    python -m benchmarks.submit_latency [--requests 100] [--database-url URL] [--broker-url URL]

Prints median and 95th percentile in milliseconds; exits 1 if the median is above the limit.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import httpx
from sqlalchemy import text

from service.contracts.dataset import ArraySummary, DatasetSummary
from service.contracts.model import ModelSummary, TensorInfo
from service.db import Database, migrate
from service.jobs import transitions
from service.jobs.outcome import Outcome
from service.settings import Settings
from tests.support.server import ApiProcess

LIMIT_MS = 50.0
SHAPE = (1, 3, 224, 224)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print; the exit code says whether the limit was held."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--requests", type=int, default=100)
    parser.add_argument("--database-url", default="", help="must be migrated; default: SQLite in a temporary folder")
    parser.add_argument("--broker-url", default="", help="default: none")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="quantmill-latency-") as folder:
        settings = Settings(
            data_dir=Path(folder), database_url=options.database_url, broker_url=options.broker_url, min_free_bytes=0
        )
        settings.make_folders()
        migrate(settings.database_url)
        milliseconds = measure(settings, options.requests)
    median, high = statistics.median(milliseconds), statistics.quantiles(milliseconds, n=20)[-1]
    verdict = "within" if median < LIMIT_MS else "ABOVE"
    print(
        f"POST /v1/jobs: median {median:.1f} ms, 95 % below {high:.1f} ms, over {len(milliseconds)} requests"
        f" ({verdict} the limit of {LIMIT_MS:.0f} ms)"
    )
    return 0 if median < LIMIT_MS else 1


def measure(settings: Settings, requests: int) -> list[float]:
    """Milliseconds of each submission, one after the other, over one connection."""
    server = ApiProcess(settings)
    try:
        with httpx.Client(base_url=server.url, timeout=30.0) as client:
            body = ready_nouns(client, settings)
            taken = [submit(client, body, number) for number in range(requests + 5)]
    finally:
        server.close()
    return taken[5:]


def submit(client: httpx.Client, body: dict[str, object], number: int) -> float:
    """Milliseconds until the answer."""
    begun = time.perf_counter()
    answer = client.post("/v1/jobs", json=body, headers={"Idempotency-Key": f"request-{number}-{begun}"})
    taken = (time.perf_counter() - begun) * 1000
    answer.raise_for_status()
    return taken


def ready_nouns(client: httpx.Client, settings: Settings) -> dict[str, object]:
    """A model and a dataset that count as validated."""
    model = client.post("/v1/models", json={"name": "m", "files": [{"upload_id": upload(client), "path": "m.onnx"}]})
    dataset = client.post("/v1/datasets", json={"name": "d", "upload_id": upload(client), "format": "npz"})
    tensor = TensorInfo(name="x", dtype="float32", shape=("batch", *SHAPE[1:]))
    facts = ModelSummary(
        ir_version=8,
        opset={"": 17},
        producer="benchmark",
        inputs=(tensor,),
        outputs=(tensor,),
        node_count=1,
        op_counts={"Relu": 1},
        parameter_count=0,
        size_bytes=1,
        sha256="0" * 64,
    )
    arrays = {"x": ArraySummary(dtype="float32", shape=SHAPE)}
    data = DatasetSummary(format="npz", samples=1, arrays=arrays, size_bytes=1, sha256="0" * 64)
    model_id, dataset_id = model.json()["id"], dataset.json()["id"]
    validate(settings, "model_id", model_id, facts)
    validate(settings, "dataset_id", dataset_id, data)
    return {"model_id": model_id, "calibration_dataset_id": dataset_id, "config": {"preset": "int8"}}


def upload(client: httpx.Client) -> str:
    """A complete upload."""
    made = client.post("/v1/uploads", json={"filename": "f"}).json()
    client.put(made["links"]["content"], content=b"bytes").raise_for_status()
    upload_id: str = made["id"]
    return upload_id


def validate(settings: Settings, column: str, noun_id: str, summary: Outcome) -> None:
    """Do the worker's part of a validation."""
    database = Database(settings.database_url)
    with database.write() as session:
        job_id = session.scalar(text(f"SELECT id FROM jobs WHERE {column} = :noun"), {"noun": noun_id})
        job = transitions.claim(session, str(job_id), worker_id="benchmark", lease_seconds=60)
        assert job is not None
        assert transitions.succeed(session, job.id, job.attempt, result=summary)
    database.close()


if __name__ == "__main__":
    sys.exit(main())

"""``quantmill compare`` and the clients' calls behind it, on jobs that a worker has run."""

from __future__ import annotations

import csv
import io
import json

import pytest

from service.client import Client
from tests.cli.conftest import KEY
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.running import Service

pytestmark = pytest.mark.slow  # on a service


@pytest.fixture(scope="module")
def two_jobs(service: Service, tiny: Tiny) -> tuple[str, str]:
    """Names of two jobs of one model: int8, and the same in shifts of powers of two."""
    with Client(service.url, KEY, patience_seconds=PATIENCE_SECONDS) as client:
        model = client.push_model(tiny.model, name="compared")
        data = client.push_dataset(tiny.calibration, name="compared")
        jobs = [
            client.submit(model=model, calibration=data, preset=preset, name=preset) for preset in ("int8", "xint8")
        ]
        for job in jobs:
            client.wait_succeeded(job)
    return jobs[0].id, jobs[1].id


def test_jobs_side_by_side(quantmill, service: Service, two_jobs: tuple[str, str]) -> None:
    there = {"QUANTMILL_SERVER": service.url, "QUANTMILL_API_KEY": KEY}
    shown = quantmill("compare", *two_jobs, **there)
    assert shown.returncode == 0, shown.stderr
    assert all(word in shown.stdout for word in ("xint8", "/preset", "SQNR in dB", "verdict"))
    told = json.loads(quantmill("compare", *two_jobs, "--json", **there).stdout)
    assert [job["preset"] for job in told["jobs"]] == ["int8", "xint8"]
    assert {"pointer": "/preset", "values": ["int8", "xint8"]} in told["config_differences"]
    (pair,) = told["pairs"]
    assert f"{pair['flips']['lost']} lost, {pair['flips']['won']} won" in " ".join(shown.stdout.split())
    rows = list(csv.DictReader(io.StringIO(quantmill("compare", *two_jobs, "--csv", **there).stdout)))
    assert [(row["job"], row["preset"]) for row in rows] == list(zip(two_jobs, ("int8", "xint8"), strict=True))
    with Client(service.url, KEY) as client:
        assert json.loads(client.compare(two_jobs).model_dump_json(by_alias=True)) == told


def test_one_job_is_no_comparison(quantmill) -> None:
    refused = quantmill("compare", "job_1", QUANTMILL_SERVER="http://127.0.0.1:1")
    assert refused.returncode == 2
    assert "name another" in refused.stderr

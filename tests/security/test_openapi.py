"""Every endpoint by what the OpenAPI document says of it: valid, almost valid and nonsense requests, and chains.

Schemathesis asks a real process on a database with rows in every state. No answer is a 5xx, none fails to come, each
has a status, a content type and a body that the document tells of; what breaks the schema is refused, and so is whoever
has no key. ``QUANTMILL_TEST_OPENAPI=long``: more than 8,000 requests, those at the bounds of every config among them.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from service.settings import Settings
from tests.api.conftest import front_of
from tests.support.batches import grid_body, submitted
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS
from tests.support.schedules import add_schedule
from tests.support.server import ApiProcess

pytestmark = [pytest.mark.long, pytest.mark.slow]

LONG = os.environ.get("QUANTMILL_TEST_OPENAPI") == "long"
EXAMPLES = 40 if LONG else 4
# How many requests there are at least; fewer would mean that the document was not read.
LEAST_CASES = 8000 if LONG else 600
KEY = "a-key-for-the-tests-of-the-document"
# What a request may be refused with that does not fit the schema, besides what schemathesis knows itself.
CONFIG = """
seed = 20260105
continue-on-failure = true
request-timeout = {timeout}
headers = {{ Authorization = "Bearer {key}" }}

[generation]
deterministic = true
database = "none"
max-examples = {examples}
no-shrink = true

[checks]
# a schema cannot say which dataset fits which model
positive_data_acceptance.enabled = false
negative_data_rejection.expected-statuses = [400, 401, 403, 404, 405, 408, 409, 413, 414, 422, 431]

[parameters]
"query.wait" = 0
# a stream of what goes on does not end
"query.format" = "json"
{bindings}

[dictionaries]
{dictionaries}
"""
# Where a body holds a whole config, its bounds alone make ten thousand requests.
NO_BOUNDS = """
[[operations]]
include-path = ["/v1/jobs", "/v1/jobs:validate", "/v1/models/{model_id}/inspect"]
include-method = "POST"
phases.coverage.enabled = false
"""


def made(front: Front, noun: str, body: dict[str, Any]) -> str:
    answer = front.http.post(f"/v1/{noun}", json=body)
    assert answer.is_success, answer.text
    return str(answer.json()["id"])


def rows(front: Front) -> dict[str, list[str]]:
    succeeded, failed, queued = front.succeeded_job(), front.new_job(), front.new_job()
    front.claim(failed)
    artifact = front.http.get(f"/v1/jobs/{succeeded}/artifacts").json()["items"][0]["id"]
    inspected = front.http.post(f"/v1/models/{front.ready_model()}/inspect?target=onnxruntime_cpu").json()["id"]
    aliased = front.ready_model()
    front.http.put(f"/v1/models/{aliased}/aliases/prod", headers={"If-None-Match": "*"})
    evaluation = {"model_id": front.ready_model(), "evaluation_dataset_id": front.ready_dataset()}
    evaluated = made(front, "evaluations", evaluation)
    batch = submitted(front, grid_body(front, models=1))["id"]
    for live in (f"jobs/{evaluated}", f"batches/{batch}"):
        front.http.post(f"/v1/{live}/cancel")
    schedule = add_schedule(front, front.job_body())
    run = front.http.post(f"/v1/schedules/{schedule['id']}/run").json()["id"]
    webhook = made(front, "webhooks", {"url": "https://hooks.invalid/"})
    front.http.post(f"/v1/webhooks/{webhook}/ping")
    delivery = front.http.get(f"/v1/webhooks/{webhook}/deliveries").json()["items"][0]["id"]
    return {
        "batch_id": [batch], "schedule_id": [schedule["id"], schedule["name"]], "run_id": [run],
        "webhook_id": [webhook], "delivery_id": [delivery], "alias": ["prod"],
        "job_id": [succeeded, queued, evaluated], "artifact_id": [artifact], "inspection_id": [inspected],
        "model_id": [aliased, front.rejected_model(), "tiny@latest"], "name": ["int8", "onnxruntime_cpu"],
        "dataset_id": [front.ready_dataset(), front.rejected_dataset()],
        "upload_id": [front.upload(), made(front, "uploads", {"filename": "a.npz"})],
    }  # fmt: skip


@pytest.fixture
def known(app: FastAPI, place: Settings) -> dict[str, list[str]]:
    with front_of(app, place) as front:
        return rows(front)


def configuration(known: dict[str, list[str]]) -> str:
    bindings = [f'"path.{name}" = {{ dictionary = "{name}", probability = 0.7 }}' for name in known]
    values = [f"{name} = {{ values = {json.dumps(ids)} }}" for name, ids in known.items()]
    lines = {"bindings": "\n".join(bindings), "dictionaries": "\n".join(values)}
    text = CONFIG.format(timeout=PATIENCE_SECONDS, key=KEY, examples=EXAMPLES, **lines)
    return text if LONG else text + NO_BOUNDS


def run_schemathesis(folder: Path, url: str) -> subprocess.CompletedProcess[str]:
    command = "import sys; from schemathesis.cli import schemathesis; schemathesis()"
    options = ["--config-file", str(folder / "schemathesis.toml"), "run", f"{url}/openapi.json", "--no-color"]
    options += ["--report-json-path", str(folder / "report.json")]
    return subprocess.run(
        [sys.executable, "-c", command, *options], cwd=folder, capture_output=True, text=True, check=False
    )


@pytest.mark.timeout(3600)
def test_every_answer_is_one_that_the_document_tells_of(
    place: Settings, known: dict[str, list[str]], tmp_path: Path
) -> None:
    (tmp_path / "schemathesis.toml").write_text(configuration(known))
    server = ApiProcess(Settings.model_validate({**place.model_dump(), "api_key": KEY}))
    try:
        # made with its first request; schemathesis waits ten seconds for it
        httpx.get(f"{server.url}/openapi.json", timeout=PATIENCE_SECONDS)
        done = run_schemathesis(tmp_path, server.url)
        cases = re.search(r"(\d+) generated", done.stdout)
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
        assert cases is not None
        assert int(cases[1]) >= LEAST_CASES
        log = server.log.read_text()
        for word in ("Traceback", "request.crashed", KEY):
            assert word not in log, log[max(0, log.index(word) - 1000) :][:5000]
        assert httpx.get(f"{server.url}/readyz", timeout=PATIENCE_SECONDS).status_code == 200
    finally:
        server.close()

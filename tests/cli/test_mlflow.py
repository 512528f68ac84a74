"""Jobs of a real service handed over to a real MLflow server, from Python and by ``quantmill jobs to-mlflow``."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from service.jobs.schemas import JobOut
from tests.cli.conftest import KEY, Ask
from tests.docs.blocks import ROOT, fenced
from tests.support import services
from tests.support.mlflow_server import mlflow_server, mlflow_trouble, run_beside
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import Service

pytestmark = pytest.mark.slow  # starts servers, quantizes

# Through MLflow's own interfaces: what is there of a job, and what its model computes.
LOOK = """
import hashlib, json, pathlib, sys
import mlflow, numpy
from mlflow import MlflowClient
uri, experiment, job, name = sys.argv[1:]
mlflow.set_tracking_uri(uri)
client = MlflowClient(uri)
within = [client.get_experiment_by_name(experiment).experiment_id]
found = client.search_runs(within, f"tags.`quantmill.job_id` = '{job}'")
told = {"runs": len(found), "versions": []}
for run in found:
    told |= {"params": run.data.params, "metrics": run.data.metrics, "tags": run.data.tags, "run_id": run.info.run_id}
    told |= {"status": run.info.status, "name": run.info.run_name, "ended": run.info.end_time}
    told["history"] = len(client.get_metric_history(run.info.run_id, "sqnr_db"))
    folder = pathlib.Path(client.download_artifacts(run.info.run_id, "", "."))
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "mlflow.log"]
    told["files"] = {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
if name:
    there = client.search_model_versions(f"name='{name}'")
    told["versions"] = [dict(version.tags, run_id=version.run_id) for version in there]
    model = mlflow.pyfunc.load_model(f"models:/{name}/1")
    x = numpy.load("x.npy")
    told["scores"] = model.predict({"x": x})["y"].tolist()
    told["inputs"] = [value.name for value in mlflow.onnx.load_model(f"models:/{name}/1").graph.input]
print(json.dumps(told))
"""
LOG = """
import sys
from quantmill import Client
from quantmill.mlflow import log_job
url, key, job, uri, experiment = sys.argv[1:]
with Client(url, key) as client:
    done = log_job(client, job, experiment=experiment, tracking_uri=uri)
print(done.run_id, done.was_there, done.model_version)
"""
# The connection breaks off within the artifacts, once.
BREAK_OFF = """
import mlflow, requests
def refuse(*_):
    raise requests.ConnectionError("cut off, http://me:secret-of-mine@host/")
mlflow.MlflowClient.log_artifacts = refuse
"""


@pytest.fixture(scope="module")
def tracking(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    services.require(mlflow_trouble())
    with mlflow_server(tmp_path_factory.mktemp("mlflow")) as url:
        yield url


@pytest.fixture(scope="module")
def passed(service: Service, uploaded: dict[str, str]) -> str:
    made = service.client.submit(
        **uploaded,
        config={"preset": "int8", "evaluation": {"gate": {"min_sqnr_db": 1}}},
        name="nightly",
        labels={"team/owner": "größe", "build": "12"},
    )
    return service.client.wait_succeeded(made, timeout_seconds=PATIENCE_SECONDS).id


def look(folder: Path, tracking: str, experiment: str, job: str, name: str = "") -> dict[str, Any]:
    done = run_beside(folder, tracking, experiment, job, name, code=LOOK)
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return told


@pytest.mark.long
def test_a_job_is_one_run_and_one_version_however_often_it_is_logged(
    service: Service, passed: str, tracking: str, tmp_path: Path
) -> None:
    job = passed
    named = ("--tracking-uri", tracking, "--experiment", "nights", "--register", "net")
    words = ("jobs", "to-mlflow", job, *named, "--server", service.url, "--key", KEY)
    first, again = (run_beside(tmp_path, *words) for _ in range(2))
    assert (first.returncode, again.returncode) == (0, 0), first.stderr + again.stderr
    run_line, version_line = first.stdout.splitlines()
    assert version_line == "version   net 1"
    assert again.stdout.splitlines() == [f"{run_line} (existing)", version_line]
    service.client.rename(job, {"labels": {"build": None}})
    (page,) = fenced(ROOT / "docs" / "hand-over.md", "python")
    places = {"QUANTMILL_SERVER": service.url, "QUANTMILL_API_KEY": KEY, "MLFLOW_TRACKING_URI": tracking}
    third = run_beside(tmp_path, job, code=page, **places)
    assert third.stdout.splitlines()[-1].split() == [run_line.split()[1], "1"], third.stderr

    x = np.random.default_rng(5).normal(size=(4, 3, 8, 8)).astype(np.float32)
    np.save(tmp_path / "x.npy", x)
    seen, report = look(tmp_path, tracking, "nights", job, "net"), service.client.report(job)
    assert (seen["runs"], seen["status"], seen["name"], seen["history"]) == (1, "FINISHED", "nightly", 1)
    ended = service.client.job(job).finished_at
    assert ended is not None
    assert seen["ended"] == int(ended.timestamp() * 1000)

    assert seen["params"]["preset"] == "int8"
    assert seen["params"]["weight.dtype"] == report.manifest.config.weight.dtype
    assert seen["metrics"]["top1.quantized"] == report.quantized.metrics["top1"]
    assert seen["metrics"]["sqnr_db"] == pytest.approx(report.fidelity.sqnr_db)
    assert seen["metrics"]["quantized.size_bytes"] == report.quantized.size_bytes

    tags, digest = seen["tags"], report.manifest.output_sha256
    assert tags["quantmill.model.sha256"] == tags["quantmill.complete"] == digest
    assert (tags["quantmill.verdict"], tags["quantmill.service"]) == ("pass", service.url)
    assert tags["quantmill.engine_version"] == report.manifest.engine_version
    assert tags["quantmill.label.team/owner"] == "größe"
    assert "quantmill.label.build" not in tags, "a label that was taken away is"
    assert tags["mlflow.note.content"] == report.summary
    assert KEY not in json.dumps(tags)

    artifacts = {artifact.kind: artifact for artifact in service.client.artifacts(job)}
    model = f"model/{artifacts['model'].filename}"
    assert seen["files"][model] == digest
    assert seen["files"]["report.json"] == artifacts["report"].sha256
    attested = hashlib.sha256(service.client.attestation(job) + b"\n").hexdigest()
    assert seen["files"][f"{model}.intoto.jsonl"] == attested
    assert {"config.json", "report.html", "model/MLmodel"} <= seen["files"].keys()

    (version,) = seen["versions"]
    assert (version["sha256"], version["run_id"], version["quantmill.job_id"]) == (digest, seen["run_id"], job)
    service.client.download(job, tmp_path / "q.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "q.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(seen["scores"], session.run(None, {"x": x})[0], rtol=1e-3, atol=1e-3)
    assert seen["inputs"] == ["x"]


@pytest.mark.long
def test_a_run_that_broke_off_is_completed(service: Service, job: JobOut, tracking: str, tmp_path: Path) -> None:
    given = (service.url, KEY, job.id, tracking, "broken")
    broken = run_beside(tmp_path, *given, code=BREAK_OFF + LOG)
    assert broken.returncode == 1
    assert "MlflowFailedError: MLflow: cut off, http://host/" in broken.stderr
    half = look(tmp_path, tracking, "broken", job.id)
    assert (half["runs"], half["status"], half["files"]) == (1, "RUNNING", {})
    mended = run_beside(tmp_path, *given, code=LOG)
    assert mended.stdout.splitlines()[-1].split() == [half["run_id"], "False", "None"]
    whole = look(tmp_path, tracking, "broken", job.id)
    assert (whole["runs"], whole["status"], whole["history"]) == (1, "FINISHED", 1)
    assert "report.json" in whole["files"]


@pytest.mark.long
def test_a_model_that_did_not_pass_is_logged_but_not_registered(
    service: Service, other_job: JobOut, tracking: str, tmp_path: Path
) -> None:
    words = ("jobs", "to-mlflow", other_job.id, "--tracking-uri", tracking, "--server", service.url, "--key", KEY)
    refused = run_beside(tmp_path, *words, "--register", "net")
    assert refused.returncode == 1
    assert "not-registered" in refused.stderr
    assert run_beside(tmp_path, *words).returncode == 0
    seen = look(tmp_path, tracking, "quantmill", other_job.id)
    assert (seen["runs"], seen["tags"]["quantmill.verdict"]) == (1, "fail")


def test_without_mlflow_the_command_says_what_to_install(ask: Ask) -> None:
    told = ask("jobs", "to-mlflow", "job_1", code=1)
    assert "mlflow-missing" in told
    assert "pip install 'quantmill[mlflow]'" in told

"""Hands a job that has succeeded over to MLflow: a run with all that is known of it, and a version of a model.

MLflow's own client does it, which is loaded when it is first needed: ``pip install 'quantmill[mlflow]'``.
"""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from importlib import import_module
from pathlib import Path
from typing import Any

from service.artifacts.schemas import ArtifactOut
from service.client.clients import Client
from service.client.connection import Resource
from service.client.errors import (
    ApiError,
    JobNotSucceededError,
    MlflowFailedError,
    MlflowMissingError,
    NotRegisteredError,
)
from service.client.mlflow_facts import (
    ATTESTATION_TAG,
    COMPLETE_TAG,
    JOB_TAG,
    LEFT_OUT_TAG,
    MODEL_FOLDER,
    PREFIX,
    metrics_of,
    params_of,
    stale_labels,
    tags_of,
    write_model_files,
)
from service.contracts.report import Report
from service.contracts.runner import DATA_KIND
from service.jobs.schemas import JobOut

EXPERIMENT = "quantmill"
# MLflow takes so many params, or tags, at once.
_AT_ONCE = 100
# Why a service signs nothing; its jobs are good all the same.
_UNSIGNED = frozenset({"signing-unavailable", "signing-key-unreadable", "attestation-not-found"})
_REGISTERED_VERDICTS = ("pass", "none")
_THERE_ALREADY = "RESOURCE_ALREADY_EXISTS"
_PASSWORD = re.compile(r"//[^/@\s]+@")


@dataclass(frozen=True)
class LoggedRun:
    """Where a job stands in MLflow."""

    run_id: str  # of the run
    experiment_id: str  # that the run belongs to
    was_there: bool  # True if the job had been logged before, whole: nothing was sent again but its tags
    model_version: str | None  # of the registered model; None if none was asked for


@dataclass(frozen=True)
class _FoundRun:
    """What the service tells of a job."""

    job: JobOut
    report: Report
    artifacts: list[ArtifactOut]

    @property
    def model(self) -> ArtifactOut:
        return next(artifact for artifact in self.artifacts if artifact.kind == "model")


def log_job(
    client: Client,
    job: Resource | str,
    *,
    experiment: str = EXPERIMENT,
    tracking_uri: str | None = None,
    run_name: str | None = None,
    register_as: str | None = None,
) -> LoggedRun:
    """Log a job that has succeeded: params, metrics, tags, report, attestation, and its model in MLflow's form.

    The run is found by the tag ``quantmill.job_id``: a job that was logged before keeps its run in that experiment, and
    one that broke off is completed. Two processes that log the same job at the same moment make two runs.

    Args:
        client: of the service.
        job: the job, or its id.
        experiment: by name; it is made if there is none.
        tracking_uri: of MLflow; None: what MLflow takes by itself, such as MLFLOW_TRACKING_URI.
        run_name: default: the job's name, or its id. Of a new run alone.
        register_as: a registered model, which is made if there is none; its new version bears the tag ``sha256``.

    Raises:
        MlflowMissingError: the extra ``mlflow`` is not installed.
        JobNotSucceededError: the job has not succeeded.
        NotRegisteredError: ``register_as`` of a job whose verdict is fail or undecided; nothing was logged.
        MlflowFailedError: MLflow refused, or cannot be reached.
        ApiError: the service refused.
    """
    mlflow = _mlflow()
    found = _found(client, job)
    if register_as is not None and found.report.verdict not in _REGISTERED_VERDICTS:
        raise NotRegisteredError(
            f"The verdict of the job {found.job.id} is {found.report.verdict}.",
            hint="Leave register_as (--register) out to log it all the same; models that passed are registered.",
        )
    with _told(mlflow):
        tracking = mlflow.MlflowClient(tracking_uri=tracking_uri)
        run = _run(mlflow, tracking, found.job, experiment, run_name)
        was_there = run.data.tags.get(COMPLETE_TAG) == found.model.sha256
        tags = tags_of(found.job, found.report, found.artifacts, client.place.url)
        if not was_there:
            tags |= _log(mlflow, tracking, run, client, found)
        for name in stale_labels(run.data.tags, tags):
            tracking.delete_tag(run.info.run_id, name)
        _tag(mlflow, tracking, run.info.run_id, tags)
        version = None if register_as is None else _version(mlflow, tracking, run, found, register_as)
    return LoggedRun(run.info.run_id, run.info.experiment_id, was_there, version)


def _mlflow() -> Any:
    try:
        return import_module("mlflow")
    except ModuleNotFoundError as error:
        if error.name != "mlflow":
            raise
        raise MlflowMissingError(
            "The hand-over to MLflow needs MLflow's client.", hint="pip install 'quantmill[mlflow]', or mlflow itself."
        ) from None


def _found(client: Client, job: Resource | str) -> _FoundRun:
    seen = client.job(job)
    if seen.state != "succeeded" or seen.kind != "quantize":
        raise JobNotSucceededError(
            f"The job {seen.id} is a {seen.kind} job, {seen.state}: there is no result to hand over.",
            hint="Wait for the quantization with GET /v1/jobs/{id}?wait=25.",
        )
    return _FoundRun(seen, client.report(seen), client.artifacts(seen))


@contextmanager
def _told(mlflow: Any) -> Iterator[None]:
    """Failures of MLflow in our words; a password of its address is not among them."""
    requests = import_module("requests")  # MLflow's client sends by it, and lets some of its errors through
    try:
        yield
    except (mlflow.MlflowException, requests.RequestException) as error:
        raise MlflowFailedError(
            f"MLflow: {_PASSWORD.sub('//', str(error))}",
            hint="Check the address of MLflow and its log; the same call resumes where this one ended.",
        ) from error


def _run(mlflow: Any, tracking: Any, job: JobOut, experiment: str, run_name: str | None) -> Any:
    """The run of the job in the experiment; a new one if there is none that is not deleted."""
    experiment_id = _experiment_id(mlflow, tracking, experiment)
    runs = tracking.search_runs(
        [experiment_id], filter_string=f"tags.`{JOB_TAG}` = '{job.id}'", max_results=1, order_by=["start_time ASC"]
    )
    if runs:
        return runs[0]
    tags = {JOB_TAG: job.id}
    began = _milliseconds(job.started_at or job.created_at)
    return tracking.create_run(experiment_id, start_time=began, tags=tags, run_name=run_name or job.name or job.id)


def _experiment_id(mlflow: Any, tracking: Any, name: str) -> str:
    found = tracking.get_experiment_by_name(name)
    if found is None:
        try:
            return str(tracking.create_experiment(name))
        except mlflow.MlflowException as error:
            if error.error_code != _THERE_ALREADY:
                raise
            found = tracking.get_experiment_by_name(name)  # another made it meanwhile
    return str(found.experiment_id)


def _log(mlflow: Any, tracking: Any, run: Any, client: Client, found: _FoundRun) -> dict[str, str]:
    """Everything but the tags that change; sent twice it is there once. Returns what is to be tagged behind it."""
    run_id, at = run.info.run_id, _milliseconds(found.job.finished_at or found.job.updated_at)
    params, left_out = params_of(found.job.config or {})
    entities = [mlflow.entities.Param(name, value) for name, value in params.items()]
    for first in range(0, len(entities), _AT_ONCE):
        tracking.log_batch(run_id, params=entities[first : first + _AT_ONCE])
    figures = metrics_of(found.report, found.job.seconds)
    # with the job's own time: the same figure once more is none beside it
    metrics = [mlflow.entities.Metric(name, value, at, 0) for name, value in figures.items()]
    for first in range(0, len(metrics), _AT_ONCE):
        tracking.log_batch(run_id, metrics=metrics[first : first + _AT_ONCE])
    with tempfile.TemporaryDirectory(prefix="quantmill-") as folder:
        unsigned = _write(mlflow, Path(folder), run_id, client, found)
        tracking.log_artifacts(run_id, folder)
    tracking.set_terminated(run_id, "FINISHED", end_time=at)
    told = {COMPLETE_TAG: found.model.sha256, LEFT_OUT_TAG: str(left_out)}
    return told if unsigned is None else {**told, ATTESTATION_TAG: unsigned}


def _write(mlflow: Any, folder: Path, run_id: str, client: Client, found: _FoundRun) -> str | None:
    """The files of the run; returns why there is no attestation, as a code, where there is none."""
    (folder / "config.json").write_text(json.dumps(found.job.config, indent=2) + "\n")
    (folder / "report.html").write_bytes(client.report_file(found.job, "html"))
    (folder / MODEL_FOLDER).mkdir()
    model = folder / MODEL_FOLDER / Path(found.model.filename).name
    for artifact in found.artifacts:
        data = f"{MODEL_FOLDER}/{Path(artifact.filename).name}"  # as the model calls it
        places = {"model": f"{MODEL_FOLDER}/{model.name}", DATA_KIND: data, "report": "report.json"}
        name = places.get(artifact.kind)
        path = folder / (name or f"files/{Path(artifact.filename).name}")
        path.parent.mkdir(exist_ok=True)
        client.download_artifact(artifact, path)
    write_model_files(model, found.job, found.report, found.model, run_id=run_id)
    try:
        model.with_name(f"{model.name}.intoto.jsonl").write_bytes(client.attestation(found.job) + b"\n")
    except ApiError as error:
        if error.code not in _UNSIGNED:
            raise
        return error.code
    return None


def _tag(mlflow: Any, tracking: Any, run_id: str, tags: Mapping[str, str]) -> None:
    entities = [mlflow.entities.RunTag(name, value) for name, value in tags.items()]
    for first in range(0, len(entities), _AT_ONCE):
        tracking.log_batch(run_id, tags=entities[first : first + _AT_ONCE])


def _version(mlflow: Any, tracking: Any, run: Any, found: _FoundRun, name: str) -> str:
    """The version of the registered model that is this run's; a new one if there is none."""
    run_id, digest = run.info.run_id, found.model.sha256
    for version in tracking.search_model_versions(f"run_id = '{run_id}'"):
        if version.name == name and version.tags.get("sha256") == digest:
            return str(version.version)
    try:
        tracking.create_registered_model(name)
    except mlflow.MlflowException as error:
        if error.error_code != _THERE_ALREADY:
            raise
    tags = {"sha256": digest, JOB_TAG: found.job.id, f"{PREFIX}verdict": found.report.verdict}
    source = f"{run.info.artifact_uri}/{MODEL_FOLDER}"
    made = tracking.create_model_version(name, source, run_id=run_id, tags=tags, description=found.report.summary)
    return str(made.version)


def _milliseconds(at: datetime) -> int:
    return int(at.timestamp() * 1000)

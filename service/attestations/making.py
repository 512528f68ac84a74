"""Attestations made of the rows of jobs that have succeeded, signed and kept once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from sqlalchemy.orm import Session

from service.attestations import repository, signing
from service.attestations.dsse import enveloped
from service.attestations.statement import BuildRecord, InputFile, ProducedFile, made_statement
from service.contracts.report import upgraded
from service.db import Database
from service.jobs import repository as jobs
from service.jobs.errors import JobNotFoundError
from service.settings import Settings
from service.tables import Attestation, Dataset, Job, Model


def attest(database: Database, settings: Settings, tenant_id: str, job_id: str) -> Attestation | None:
    """Sign what a job with a report has made and keep it; None if the job is no longer there.

    Raises:
        SigningUnavailableError, SigningKeyUnreadableError: the installation cannot sign.
    """
    key = signing.signing_key(database, settings)
    try:
        with database.read() as session:
            record = _read_build_record(session, tenant_id, job_id)
    except JobNotFoundError:
        return None
    if record is None:
        return None
    line = enveloped(made_statement(record), key).line()
    key_id = key.public.id
    with database.write() as session:
        repository.add_attestation(session, tenant_id, job_id, attempt=record.attempt, key_id=key_id, envelope=line)
        return repository.attestation_of(session, tenant_id, job_id)


def _read_build_record(session: Session, tenant_id: str, job_id: str) -> BuildRecord | None:
    job = jobs.get(session, tenant_id, job_id)
    report = jobs.report(session, tenant_id, job_id)
    if report is None:
        return None
    manifest = upgraded(report.body)["manifest"]
    graphs = sorted(_graph_ids(manifest["config"]))
    models = repository.models_given(session, tenant_id, [id_ for id_ in (job.model_id, *graphs) if id_ is not None])
    data = [(job.calibration_dataset_id, "calibration"), (job.evaluation_dataset_id, "evaluation")]
    datasets = repository.datasets_given(session, tenant_id, [id_ for id_, _ in data if id_ is not None])
    given: list[InputFile] = []
    if job.model_id in models:
        given += _files_of(models[job.model_id], "model", manifest["model_sha256"])
    for dataset_id, role in data:
        if dataset_id in datasets:
            given.append(_file_of(datasets[dataset_id], role, manifest.get(f"{role}_sha256")))
    for model_id in graphs:
        if model_id in models:
            given += _files_of(models[model_id], "graph", None)
    made = [ProducedFile(row.filename, row.sha256) for row in repository.files_made(session, tenant_id, job_id)]
    return _told(job, report.attempt, made, given, manifest)


def _told(
    job: Job, attempt: int, made: list[ProducedFile], given: list[InputFile], manifest: dict[str, Any]
) -> BuildRecord:
    return BuildRecord(
        job_id=job.id,
        attempt=attempt,
        device=job.device,
        started_at=job.started_at,
        finished_at=job.finished_at,
        made=made,
        given=[file for file in given if file.sha256],
        manifest=manifest,
    )


def _files_of(model: Model, role: str, read_sha256: str | None) -> list[InputFile]:
    """The model's files; of one that was deleted, what the report tells of it."""
    uri, name = f"urn:quantmill:model:{model.id}", f"{model.name}@{model.version}"
    if not model.files:
        return [InputFile(role, uri, name, read_sha256 or "")]
    return [InputFile(role, uri, f"{name}/{file.path}", file.sha256) for file in model.files]


def _file_of(dataset: Dataset, role: str, read_sha256: str | None) -> InputFile:
    """The dataset's file; of one that was deleted, what the report tells of it."""
    uri = f"urn:quantmill:dataset:{dataset.id}"
    return InputFile(role, uri, f"{dataset.name}@{dataset.version}", dataset.sha256 or read_sha256 or "")


def _graph_ids(part: Any) -> Iterator[str]:
    """Ids of the uploaded models that metrics and losses of a config are given as."""
    if isinstance(part, dict):
        graph = part.get("graph")
        model_id = graph.get("model_id") if isinstance(graph, dict) else None
        if isinstance(model_id, str):
            yield model_id
        for value in part.values():
            yield from _graph_ids(value)
    elif isinstance(part, list):
        for value in part:
            yield from _graph_ids(value)

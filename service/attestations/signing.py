"""The installation's signing key; creates and signs the attestation of each succeeded job once."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from sqlalchemy.orm import Session

from service.attestations import repository
from service.attestations.dsse import PublicKey, SigningKey, enveloped
from service.attestations.schemas import SigningKeyOut, SigningKeyUnreadableError, SigningUnavailableError
from service.attestations.statement import BuildRecord, InputFile, ProducedFile, made_statement
from service.audit.service import note
from service.contracts.report import upgraded
from service.db import Database
from service.jobs import repository as jobs
from service.jobs.errors import JobNotFoundError
from service.principal import DEFAULT_TENANT, SERVICE, Principal
from service.sealing import SealBrokenError, Sealer, Vault
from service.settings import Settings
from service.tables import Attestation, Dataset, Job, Model, SigningKeyRow
from service.tables.base import record_of

# Whoever needs the key first has it made, whatever may be its own scope.
_BY_ITSELF = Principal(DEFAULT_TENANT, SERVICE, "operator")


class KeyVault(Vault):
    """Encrypts and decrypts the installation's keys."""

    purpose = b"quantmill signing keys v1"
    about = "The signing key is"
    unavailable = SigningUnavailableError


def sealer_of(settings: Settings) -> Sealer:
    """What seals the installation's keys.

    Raises:
        SigningUnavailableError: it has no pepper.
    """
    return KeyVault.of(settings).sealer


def signing_key(database: Database, settings: Settings) -> SigningKey:
    """The key that signs now; it is made if there is none. Processes that race get the same.

    Raises:
        SigningUnavailableError: the installation has no pepper.
        SigningKeyUnreadableError: the stored key is of another pepper, or damaged.
    """
    sealer = sealer_of(settings)
    row = ensure_key(database, sealer)
    try:
        key = SigningKey.of_text(sealer.open(row.id, row.sealed))
    except SealBrokenError:
        raise SigningKeyUnreadableError(
            f"The signing key {row.id} is damaged, or was created with a different QUANTMILL_KEY_PEPPER.",
            hint="Set the pepper that it was created with, or create a new key: quantmill keys rotate-signing.",
        ) from None
    return key


def ensure_key(database: Database, sealer: Sealer) -> SigningKeyRow:
    """The row of the current key; it is made if there is none."""
    with database.read() as session:
        row = repository.current_signing_key(session)
    if row is not None:
        return row
    made = SigningKey.made()
    sealed, public = sealer.seal(made.public.id, made.text), made.public
    with database.write() as session:
        if _added(session, public, sealed, sealer.pepper_id):
            note(session, _BY_ITSELF, "signing-key.create", public.id)
        row = repository.current_signing_key(session)
    if row is None:
        raise SigningKeyUnreadableError(
            "The signing key was retired while it was being created.", hint="Send the request again."
        )
    return row


def known_keys(database: Database, settings: Settings) -> list[SigningKeyRow]:
    """All keys, the current one first; it is made if there is none.

    Raises:
        SigningUnavailableError: the installation has no pepper.
    """
    ensure_key(database, sealer_of(settings))
    with database.read() as session:
        return repository.signing_keys(session)


def rotate(database: Database, settings: Settings, by: Principal) -> SigningKeyRow:
    """A new key in place of the current one, which stays known. Of two at once, one makes the key of both.

    Raises:
        SigningUnavailableError: the installation has no pepper.
    """
    sealer, made = sealer_of(settings), SigningKey.made()
    sealed, public = sealer.seal(made.public.id, made.text), made.public
    with database.write() as session:
        repository.retire_signing_key(session)
        if _added(session, public, sealed, sealer.pepper_id):
            note(session, by, "signing-key.rotate", public.id)
        row = repository.current_signing_key(session)
    if row is None:
        raise SigningKeyUnreadableError(
            "The signing key was retired while it was being created.", hint="Rotate the key again."
        )
    return row


def public_key(row: SigningKeyRow) -> PublicKey:
    """The half of a stored key that may be known."""
    return PublicKey(base64.b64decode(row.public_key))


def _added(session: Session, public: PublicKey, sealed: str, pepper_id: str) -> bool:
    """Store a key, unless another is the current one."""
    raw = base64.b64encode(public.raw).decode()
    return repository.add_signing_key(session, public.id, public_key=raw, sealed=sealed, pepper_id=pepper_id)


def signing_key_out(row: SigningKeyRow) -> SigningKeyOut:
    """The public half of a key."""
    return record_of(row, SigningKeyOut, algorithm="ed25519", public_key=public_key(row).pem)


# Attestations made of the rows of jobs that have succeeded, signed and kept once.


def attest(database: Database, settings: Settings, tenant_id: str, job_id: str) -> Attestation | None:
    """Sign what a job with a report has made and keep it; None if the job is no longer there.

    Raises:
        SigningUnavailableError, SigningKeyUnreadableError: the installation cannot sign.
    """
    key = signing_key(database, settings)
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

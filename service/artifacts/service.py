"""Artifacts: looked up by row, read from the store."""

from __future__ import annotations

from service.artifacts import repository
from service.deps import AppState
from service.files.serving import ServedFile, open_file
from service.jobs import repository as jobs
from service.tables import Artifact


def get(app: AppState, tenant_id: str, artifact_id: str) -> Artifact:
    """The artifact.

    Raises:
        ArtifactNotFoundError: the tenant has no such artifact.
    """
    with app.database.read() as session:
        return repository.get(session, tenant_id, artifact_id)


def list_of_job(app: AppState, tenant_id: str, job_id: str) -> list[Artifact]:
    """Artifacts of a job; none before it has succeeded.

    Raises:
        JobNotFoundError: the tenant has no such job.
    """
    with app.database.read() as session:
        jobs.get(session, tenant_id, job_id)
        return repository.list_of_job(session, tenant_id, job_id)


def open_content(app: AppState, artifact: Artifact) -> ServedFile:
    """The artifact's bytes, for reading.

    Raises:
        StoredFileMissingError: the file is gone.
        StoredFileCorruptError: it has another size than it had, or was found to be damaged.
    """
    return open_file(app.database, app.store, artifact.sha256, artifact.size_bytes)


def signed_url(app: AppState, artifact: Artifact) -> str | None:
    """Where whoever has the address may read the artifact for a while; None: the service offers no such addresses.

    Raises:
        StoredFileMissingError: the file is gone.
        StoredFileCorruptError: it has another size than it had, or was found to be damaged.
    """
    seconds = app.settings.storage_signed_url_seconds
    if not seconds or (url := app.store.signed_url(artifact.sha256, seconds)) is None:
        return None
    open_content(app, artifact).stream.close()
    return url

"""Attestations of jobs and the keys that sign them."""

from __future__ import annotations

from service.attestations import repository
from service.attestations.schemas import AttestationNotFoundError, AttestationNotReadyError
from service.attestations.signing import attest
from service.deps import AppState
from service.jobs import repository as jobs
from service.jobs.schemas import TERMINAL
from service.tables import Attestation, SigningKeyRow


def kept(app: AppState, tenant_id: str, job_id: str) -> Attestation | None:
    """The attestation of a job; None: it is to be made.

    Raises:
        JobNotFoundError: the tenant has no such job.
        AttestationNotReadyError: it has not ended.
        AttestationNotFoundError: it gave nothing.
    """
    with app.database.read() as session:
        job = jobs.get(session, tenant_id, job_id)
        found = repository.attestation_of(session, tenant_id, job_id)
        has_report = found is not None or jobs.report(session, tenant_id, job_id) is not None
    if job.kind == "evaluate":
        raise AttestationNotFoundError(
            f"Job {job_id} is an evaluation: it created no model that could be attested.",
            hint=f"Get its results with GET /v1/jobs/{job_id}/report.",
        )
    if has_report:
        return found
    if job.state in TERMINAL:
        raise AttestationNotFoundError(
            f"Job {job_id} ended as {job.state} and has no results to attest.",
            hint=f"See its error with GET /v1/jobs/{job_id}.",
        )
    raise AttestationNotReadyError(
        f"Job {job_id} is {job.state}.", hint=f"Wait until it has ended with GET /v1/jobs/{job_id}?wait=25."
    )


def made(app: AppState, tenant_id: str, job_id: str) -> Attestation:
    """The attestation of a job with a report, made now.

    Raises:
        AttestationNotFoundError: the job was deleted meanwhile.
        SigningUnavailableError, SigningKeyUnreadableError: the installation cannot sign.
    """
    row = attest(app.database, app.settings, tenant_id, job_id)
    if row is None:
        raise AttestationNotFoundError(
            f"Job {job_id} was deleted during the request.", hint="List all jobs with GET /v1/jobs."
        )
    return row


def keys_kept(app: AppState) -> list[SigningKeyRow]:
    """All keys there are, the current one first."""
    with app.database.read() as session:
        return repository.signing_keys(session)

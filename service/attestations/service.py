"""Attestations of jobs, and the keys that sign them, for whoever asks."""

from __future__ import annotations

from service.attestations import repository, signing
from service.attestations.errors import AttestationNotFoundError, AttestationNotReadyError
from service.attestations.making import attest
from service.deps import Desk
from service.jobs import repository as jobs
from service.jobs.schemas import TERMINAL
from service.tables import Attestation, SigningKeyRow


def attestation(desk: Desk, tenant_id: str, job_id: str) -> Attestation:
    """The attestation of a job, made now if nobody has made it yet.

    Raises:
        JobNotFoundError: the tenant has no such job.
        AttestationNotReadyError: it has not ended.
        AttestationNotFoundError: it gave nothing.
        SigningUnavailableError, SigningKeyUnreadableError: the installation cannot sign.
    """
    with desk.database.read() as session:
        job = jobs.get(session, tenant_id, job_id)
        found = repository.attestation_of(session, tenant_id, job_id)
        has_report = found is not None or jobs.report(session, tenant_id, job_id) is not None
    if found is not None:
        return found
    if not has_report:
        if job.state in TERMINAL:
            raise AttestationNotFoundError(
                f"The job {job_id} ended as {job.state} and gave nothing to attest.",
                hint="GET /v1/jobs/{id} tells why, under error.",
            )
        raise AttestationNotReadyError(
            f"The job {job_id} is {job.state}.", hint="Wait for the job: GET /v1/jobs/{id}?wait=25"
        )
    made = attest(desk.database, desk.settings, tenant_id, job_id)
    if made is None:
        raise AttestationNotFoundError(f"The job {job_id} was deleted meanwhile.", hint="GET /v1/jobs lists the jobs.")
    return made


def list_keys(desk: Desk) -> list[SigningKeyRow]:
    """All keys, the current one first; it is made if there is none.

    Raises:
        SigningUnavailableError: the installation has no pepper.
    """
    return signing.known_keys(desk.database, desk.settings)

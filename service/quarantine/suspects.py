"""Counts crashes per model and quarantines a model that crashes its runner repeatedly.

Counted are ends by a fault of the process itself, and by the kernel for want of memory, by the bytes of the model: the
same file uploaded again is the same. A success with these bytes clears the count. Of an evaluation of two models nobody
knows which of them it was, and one that went well says nothing of quantizing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from sqlalchemy.orm import Session

from service.contracts.errors import Problem
from service.contracts.model import MADE_DATA, MADE_MODEL
from service.models import repository as models
from service.quarantine import repository
from service.quarantine.schemas import ModelQuarantinedError, release_hint
from service.tables import Job, Model, ModelFile

CRASHES = 2


def digest_of(files: Iterable[ModelFile]) -> str:
    """What is quarantined: the sha256 of the one uploaded file; of several, that of their digests in order."""
    digests = sorted(file.sha256 for file in files)
    return digests[0] if len(digests) == 1 else hashlib.sha256("\n".join(digests).encode()).hexdigest()


def uploaded(model: Model) -> list[ModelFile]:
    """The files of a model that its owner sent, without what validation made of them."""
    if model.format == "onnx":
        return list(model.files)
    return [file for file in model.files if file.path not in (MADE_MODEL, MADE_DATA)]


def refuse(session: Session, tenant_id: str, files: Iterable[ModelFile], *, pointer: str | None = None) -> None:
    """Let nothing be done with files in quarantine.

    Raises:
        ModelQuarantinedError: they are.
    """
    found = repository.held(session, tenant_id, digest_of(files))
    if found is not None:
        raise ModelQuarantinedError(found, pointer=pointer)


def refuse_job(session: Session, job: Job) -> None:
    """Let no job begin whose model came into quarantine while it waited.

    Raises:
        ModelQuarantinedError: it has.
    """
    for model_id in (job.model_id, job.reference_model_id):
        model = None if model_id is None else models.find(session, model_id)
        if model is not None:
            refuse(session, job.tenant_id, uploaded(model))


def note_crash(session: Session, job: Job, reason: str, poison: Problem) -> Problem | None:
    """Count that the job's model killed its runner.

    Args:
        session: writes.
        job: as claimed.
        reason: how the runner ended.
        poison: what the job fails with, or would if it were not tried again.

    Returns:
        What the job fails with, now that its model is in quarantine; None if it is not.
    """
    model = _suspect(session, job)
    if model is None:
        return None
    digest = digest_of(uploaded(model))
    found = repository.add_crash(
        session, job.tenant_id, digest, model_id=model.id, job_id=job.id, reason=reason, most=CRASHES
    )
    if found.quarantined_at is None:
        return None
    return poison.model_copy(
        update={
            "detail": f"The model crashed the process that worked on it {found.crashes} times in a row, most "
            f"recently: {reason}. It is now in quarantine.",
            "hint": release_hint(digest),
            "where": {**poison.where, "quarantine": digest},
        }
    )


def clear(session: Session, job: Job) -> None:
    """The job has succeeded: its model is above suspicion."""
    model = _suspect(session, job)
    if model is not None and job.kind != "evaluate":
        repository.forget(session, job.tenant_id, digest_of(uploaded(model)))


def _suspect(session: Session, job: Job) -> Model | None:
    is_known = job.model_id is not None and job.reference_model_id is None
    return models.find(session, job.model_id or "") if is_known else None

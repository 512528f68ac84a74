"""Jobs: one row is the state machine, the lease and the outbox. Only ``service.jobs.transitions`` changes ``state``."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, ForeignKey, Index
from sqlalchemy.orm import Mapped, mapped_column

from service.tables.base import Base, Document, Id, Moment, Name, Tenant, Word, one_of

JOB_KINDS = ("quantize", "inspect_model", "inspect_dataset", "inspect_target")
LIVE_STATES = ("queued", "running")
TERMINAL_STATES = ("succeeded", "failed", "canceled")
JOB_STATES = LIVE_STATES + TERMINAL_STATES


class Job(Base):
    """One unit of work.

    ``attempt`` counts claims and is the fencing token; ``attempt - interruptions`` is what the attempt budget is
    charged. ``last_seq`` is the number of the newest event. ``row_version`` changes with everything a reader can see.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(one_of("kind", JOB_KINDS), name="kind"),
        CheckConstraint(one_of("state", JOB_STATES), name="state"),
        CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="running_has_lease"),
        CheckConstraint("state <> 'running' OR worker_id IS NOT NULL", name="running_has_worker"),
        CheckConstraint("state <> 'queued' OR cancel_requested_at IS NULL", name="queued_is_not_canceling"),
        CheckConstraint("(state = 'failed') = (error IS NOT NULL)", name="failed_has_error"),
        CheckConstraint(
            f"({one_of('state', TERMINAL_STATES)}) = (finished_at IS NOT NULL)", name="terminal_has_finished"
        ),
        CheckConstraint("interruptions >= 0 AND attempt >= interruptions", name="attempt"),
        CheckConstraint("state NOT IN ('running', 'succeeded') OR attempt >= 1", name="claimed_has_attempt"),
        CheckConstraint("kind <> 'inspect_model' OR model_id IS NOT NULL", name="inspect_model_has_model"),
        CheckConstraint(
            "kind <> 'inspect_target' OR (model_id IS NOT NULL AND config IS NOT NULL)",
            name="inspect_target_has_inputs",
        ),
        CheckConstraint("kind <> 'inspect_dataset' OR dataset_id IS NOT NULL", name="inspect_dataset_has_dataset"),
        CheckConstraint(
            "kind <> 'quantize' OR (model_id IS NOT NULL AND config IS NOT NULL)", name="quantize_has_inputs"
        ),
        Index("ix_jobs_tenant_id_kind_created_at_id", "tenant_id", "kind", "created_at", "id"),
        Index("ix_jobs_state_not_before", "state", "not_before"),
        Index("ix_jobs_state_lease_until", "state", "lease_until"),
        Index("ix_jobs_state_deadline_at", "state", "deadline_at"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    kind: Mapped[Word]
    name: Mapped[Name | None]
    labels: Mapped[Document]
    state: Mapped[Word]
    queue: Mapped[Word]
    priority: Mapped[int]

    model_id: Mapped[Id | None] = mapped_column(ForeignKey("models.id"))
    dataset_id: Mapped[Id | None] = mapped_column(ForeignKey("datasets.id"))
    calibration_dataset_id: Mapped[Id | None] = mapped_column(ForeignKey("datasets.id"))
    evaluation_dataset_id: Mapped[Id | None] = mapped_column(ForeignKey("datasets.id"))
    config: Mapped[Document | None]

    attempt: Mapped[int]
    max_attempts: Mapped[int]
    interruptions: Mapped[int]
    worker_id: Mapped[Name | None]
    lease_until: Mapped[Moment | None]
    not_before: Mapped[Moment]
    dispatched_at: Mapped[Moment | None]
    deadline_at: Mapped[Moment | None]
    cancel_requested_at: Mapped[Moment | None]

    stage: Mapped[Name | None]
    progress: Mapped[Document | None]
    error: Mapped[Document | None]
    row_version: Mapped[int]
    last_seq: Mapped[int]

    request_id: Mapped[Name | None]
    created_at: Mapped[Moment]
    queued_at: Mapped[Moment]
    started_at: Mapped[Moment | None]
    finished_at: Mapped[Moment | None]
    updated_at: Mapped[Moment]

"""Tables of batches and schedules."""

from __future__ import annotations

from sqlalchemy import CheckConstraint, Index, String, UniqueConstraint
from sqlalchemy.orm import Mapped, mapped_column

from service.contracts.base import MOST_REFERENCE_CHARS
from service.tables.base import (
    Document,
    Id,
    Moment,
    Name,
    Owned,
    Sha256,
    Tenant,
    Word,
    of_own_tenant,
    one_of,
    partial_index,
)

# Condition of the index by which summaries are made; statements repeat it word for word.
IS_CURRENT = "superseded = false"


class Batch(Owned):
    """A grid of jobs, or a list of them. How it stands follows from its jobs, and is not stored.

    ``grid`` is what was multiplied: models and presets as they were given, and the number of configs; null for a list.
    """

    __tablename__ = "batches"
    __table_args__ = (
        UniqueConstraint("tenant_id", "id"),
        Index("ix_batches_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    name: Mapped[Name | None]
    labels: Mapped[Document]
    grid: Mapped[Document | None]
    row_version: Mapped[int]
    request_id: Mapped[Name | None]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]


class BatchMember(Owned):
    """One job of a batch.

    ``position`` counts the batch's jobs from 0 in the order in which they came to it, those of retries, too, and never
    changes; ``member`` is the place in the request, whose job is that of the one row that is not superseded. The job
    may be another's that was reused, and may be gone.
    """

    __tablename__ = "batch_members"
    __table_args__ = (
        CheckConstraint("position >= 0 AND member >= 0 AND position >= member", name="numbers"),
        of_own_tenant("batch_members", "batch_id", "batches"),
        partial_index("ix_batch_members_current", "batch_id", "member", where=IS_CURRENT, unique=True),
        Index("ix_batch_members_job_id", "job_id"),
    )

    tenant_id: Mapped[Tenant]
    batch_id: Mapped[Id] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    member: Mapped[int]
    job_id: Mapped[Id]
    superseded: Mapped[bool]
    # That job was there already.
    reused: Mapped[bool]
    # As the request has them.
    model: Mapped[str] = mapped_column(String(MOST_REFERENCE_CHARS))
    preset: Mapped[Name | None]
    config: Mapped[int | None]


DETAIL_LENGTH = 1000
OVERLAPS = ("skip", "queue", "cancel_running")
MISFIRES = ("run_once", "skip")
TRIGGERS = ("time", "request")
# A run that waits has no job yet; one that is running has one that has not been judged.
OPEN_STATES = ("waiting", "running")
RUN_STATES = (*OPEN_STATES, "passed", "failed", "skipped", "refused")
# Conditions of the partial indexes; statements repeat them word for word.
IS_PLANNED = "fires_at IS NOT NULL"
IS_OPEN = "state IN ('waiting', 'running')"
HAS_JOB = "job_id IS NOT NULL"


class JobSchedule(Owned):
    """A job that is submitted by the clock.

    ``next_due_at`` is the earliest due time that was not dealt with, ``fires_at`` the same with its jitter, and
    ``planned_at`` the moment at which both were worked out; all are null while it is paused, and once it is never due
    again. ``template`` is the request for the job, with its references.
    """

    __tablename__ = "schedules"
    __table_args__ = (
        CheckConstraint(one_of("overlap", OVERLAPS), name="overlap"),
        CheckConstraint(one_of("misfire", MISFIRES), name="misfire"),
        CheckConstraint("(next_due_at IS NULL) = (fires_at IS NULL)", name="due_fires"),
        CheckConstraint("(next_due_at IS NULL) = (planned_at IS NULL)", name="due_was_planned"),
        CheckConstraint("paused_at IS NULL OR next_due_at IS NULL", name="paused_is_not_due"),
        UniqueConstraint("tenant_id", "id"),
        UniqueConstraint("tenant_id", "name"),
        of_own_tenant("schedules", "last_pass_job_id", "jobs"),
        Index("ix_schedules_last_pass_job_id", "last_pass_job_id"),
        Index("ix_schedules_tenant_id_created_at_id", "tenant_id", "created_at", "id"),
        partial_index("ix_schedules_fires_at", "fires_at", where=IS_PLANNED),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    name: Mapped[Name]
    cron: Mapped[Name]
    timezone: Mapped[Name]
    template: Mapped[Document]
    overlap: Mapped[Word]
    misfire: Mapped[Word]
    misfire_grace_seconds: Mapped[int]
    jitter_seconds: Mapped[int]
    skip_unchanged: Mapped[bool]
    gate: Mapped[Document]
    promote_to: Mapped[Name | None]
    paused_at: Mapped[Moment | None]
    next_due_at: Mapped[Moment | None]
    fires_at: Mapped[Moment | None]
    planned_at: Mapped[Moment | None]
    # The job that was accepted last, which stays as long, and the fingerprint of all that its result follows from.
    last_pass_job_id: Mapped[Id | None]
    last_pass_fingerprint: Mapped[Sha256 | None]
    row_version: Mapped[int]
    created_by: Mapped[Name]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]


class ScheduleRun(Owned):
    """One time that a schedule was due, or was run by request. The key of schedule and due time makes a second one
    impossible, however many reconcilers there are.

    ``missed`` counts the due times before it that it takes the place of.
    """

    __tablename__ = "schedule_runs"
    __table_args__ = (
        CheckConstraint(one_of("trigger", TRIGGERS), name="trigger"),
        CheckConstraint(one_of("state", RUN_STATES), name="state"),
        CheckConstraint(f"({one_of('state', OPEN_STATES)}) = (finished_at IS NULL)", name="finished_has_time"),
        CheckConstraint("state <> 'running' OR job_id IS NOT NULL", name="running_has_job"),
        UniqueConstraint("tenant_id", "id"),
        UniqueConstraint("schedule_id", "due_at"),
        of_own_tenant("schedule_runs", "schedule_id", "schedules"),
        Index("ix_schedule_runs_schedule_id_created_at_id", "schedule_id", "created_at", "id"),
        Index("ix_schedule_runs_created_at", "created_at"),
        partial_index("ix_schedule_runs_open", "schedule_id", "state", where=IS_OPEN),
        partial_index("ix_schedule_runs_job_id", "job_id", where=HAS_JOB),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    schedule_id: Mapped[Id]
    due_at: Mapped[Moment]
    trigger: Mapped[Word]
    state: Mapped[Word]
    reason: Mapped[Word | None]
    detail: Mapped[str | None] = mapped_column(String(DETAIL_LENGTH))
    missed: Mapped[int]
    job_id: Mapped[Id | None]
    model_id: Mapped[Id | None]
    fingerprint: Mapped[Sha256 | None]
    verdict: Mapped[Word | None]
    fallback: Mapped[Word | None]
    problem: Mapped[Document | None]
    clauses: Mapped[Document | None]
    promoted_to: Mapped[Name | None]
    row_version: Mapped[int]
    created_at: Mapped[Moment]
    updated_at: Mapped[Moment]
    finished_at: Mapped[Moment | None]

"""Tables of jobs: states, events, results and estimates."""

from __future__ import annotations

from typing import get_args

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    Computed,
    Double,
    ForeignKeyConstraint,
    Index,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from service.contracts.report import Verdict
from service.principal import PEPPER_ID_LENGTH
from service.tables.base import (
    Base,
    Bytes,
    Document,
    Id,
    Moment,
    Name,
    Owned,
    Sha256,
    Tenant,
    TraceContext,
    Word,
    of_own_tenant,
    one_of,
    partial_index,
)

# What clients ask for by themselves, and lists tell of; such a job ends with a report. Statements repeat the condition.
USERS_KINDS = ("quantize", "evaluate")
IS_USERS = "kind IN ('quantize', 'evaluate')"
# Without parentheses: SQLAlchemy reads such expressions back from SQLite by them, and not well.
_CASES = " ".join(f"WHEN state = 'succeeded' AND kind = {kind!r} THEN id" for kind in USERS_KINDS)
HAS_REPORT = f"CASE {_CASES} END"
JOB_KINDS = (*USERS_KINDS, "inspect_model", "inspect_dataset", "inspect_target")
# Their jobs validate what was uploaded, a noun that is ready or rejected at their end.
UPLOAD_KINDS = ("inspect_model", "inspect_dataset")
LIVE_STATES = ("queued", "running")
TERMINAL_STATES = ("succeeded", "failed", "canceled")
JOB_STATES = LIVE_STATES + TERMINAL_STATES
SIZE_CLASSES = ("short", "long")
DEVICES = ("auto", "cpu", "gpu")
# Conditions of the partial indexes by which workers look for the next job, and messages are sent; statements repeat
# them word for word.
IS_QUEUED = "state = 'queued'"
IS_WAITING = "state = 'queued' AND dispatched_at IS NULL"
IS_WAITING_SHORT = f"{IS_WAITING} AND size_class = 'short'"
IS_RUNNING = "state = 'running'"
IS_LIVE = "state IN ('queued', 'running')"
HAS_FINISHED = "finished_at IS NOT NULL"
IS_NAMED = f"name IS NOT NULL AND {IS_USERS}"
# The conditions' own columns stand last: SQLite would look into the rows for them.
_TURN = ("queue", "priority", "tenant_id", "not_before", "id", "deadline_at", "state", "dispatched_at")
_TURN_SHORT = (*_TURN, "size_class")
_RELEASED = ("queue", "dispatched_at", "tenant_id", "size_class", "id", "state")
IS_RELEASED = "state = 'queued' AND dispatched_at IS NOT NULL"


class Job(Owned):
    """One unit of work.

    ``attempt`` counts claims and is the fencing token; ``attempt - interruptions`` is what the attempt budget is
    charged. ``last_seq`` is the number of the newest event. ``row_version`` changes with everything a reader can see.

    ``report_job_id`` is the job's own id once it has a report, as the database computes it. With its keys, and those of
    ``reports``, a quantize or evaluate job has succeeded if and only if there is a report of its last attempt; they are
    looked at when the transaction ends.
    """

    __tablename__ = "jobs"
    __table_args__ = (
        CheckConstraint(one_of("kind", JOB_KINDS), name="kind"),
        CheckConstraint(one_of("state", JOB_STATES), name="state"),
        CheckConstraint("(state = 'running') = (lease_until IS NOT NULL)", name="running_has_lease"),
        CheckConstraint("state <> 'running' OR worker_id IS NOT NULL", name="running_has_worker"),
        CheckConstraint("state <> 'queued' OR cancel_requested_at IS NULL", name="queued_is_not_canceling"),
        CheckConstraint("(state = 'failed') = (error IS NOT NULL)", name="failed_has_error"),
        CheckConstraint("state = 'queued' OR waiting IS NULL", name="only_queued_waits"),
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
        CheckConstraint(
            "kind <> 'evaluate' OR (model_id IS NOT NULL AND evaluation_dataset_id IS NOT NULL AND config IS NOT NULL)",
            name="evaluate_has_inputs",
        ),
        CheckConstraint("kind = 'evaluate' OR reference_model_id IS NULL", name="evaluate_alone_has_reference"),
        UniqueConstraint("report_job_id", "attempt", name="uq_jobs_report_job_id_attempt"),
        UniqueConstraint("tenant_id", "id"),
        of_own_tenant("jobs", "model_id", "models"),
        of_own_tenant("jobs", "reference_model_id", "models"),
        of_own_tenant("jobs", "dataset_id", "datasets"),
        of_own_tenant("jobs", "calibration_dataset_id", "datasets"),
        of_own_tenant("jobs", "evaluation_dataset_id", "datasets"),
        ForeignKeyConstraint(
            ["report_job_id", "attempt"],
            ["reports.job_id", "reports.attempt"],
            name="fk_jobs_report_job_id_reports",
            deferrable=True,
            initially="DEFERRED",
            use_alter=True,
        ),
        Index("ix_jobs_tenant_id_kind_created_at_id", "tenant_id", "kind", "created_at", "id"),
        partial_index("ix_jobs_users", "tenant_id", "created_at", "id", "kind", where=IS_USERS),
        # Lists of what is rare among a tenant's jobs; of anything else they go through ``ix_jobs_users``.
        partial_index("ix_jobs_users_state", "tenant_id", "state", "created_at", "id", where=IS_USERS),
        partial_index("ix_jobs_users_model", "tenant_id", "model_id", "created_at", "id", where=IS_USERS),
        partial_index("ix_jobs_users_name", "tenant_id", "name", "created_at", "id", where=IS_NAMED),
        CheckConstraint(one_of("size_class", SIZE_CLASSES), name="size_class"),
        CheckConstraint(one_of("device", DEVICES), name="device"),
        # None holds what a renewal or progress changes, such as ``lease_until``: PostgreSQL writes no index then.
        partial_index("ix_jobs_queued_not_before", "not_before", where=IS_QUEUED),
        partial_index("ix_jobs_live_deadline_at", "deadline_at", where=IS_LIVE),
        partial_index("ix_jobs_finished_at", "finished_at", where=HAS_FINISHED),
        partial_index("ix_jobs_waiting", *_TURN, where=IS_WAITING),
        partial_index("ix_jobs_waiting_short", *_TURN_SHORT, where=IS_WAITING_SHORT),
        # with all that is asked of it: the planner, which takes most jobs for released ones, would read others' rows
        partial_index("ix_jobs_released", *_RELEASED, where=IS_RELEASED),
        partial_index("ix_jobs_running", "queue", "tenant_id", where=IS_RUNNING),
        # in the order in which rows lie in the table: quicker to go through, for leases
        partial_index("ix_jobs_leased", "id", where=IS_RUNNING),
        Index("ix_jobs_tenant_id_queue_started_at", "tenant_id", "queue", "started_at"),
        partial_index("ix_jobs_tenant_id_fingerprint", "tenant_id", "fingerprint", where="fingerprint IS NOT NULL"),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    kind: Mapped[Word]
    name: Mapped[Name | None]
    labels: Mapped[Document]
    state: Mapped[Word]
    queue: Mapped[Word]
    priority: Mapped[int]
    # Whether a slot that is kept for short jobs may take it.
    size_class: Mapped[Word] = mapped_column(server_default=text("'long'"))
    # As it was asked for; ``queue`` says where that led.
    device: Mapped[Word] = mapped_column(server_default=text("'auto'"))

    model_id: Mapped[Id | None]
    # Of an evaluation: what its model is compared with.
    reference_model_id: Mapped[Id | None]
    dataset_id: Mapped[Id | None]
    calibration_dataset_id: Mapped[Id | None]
    evaluation_dataset_id: Mapped[Id | None]
    config: Mapped[Document | None]
    # What lists tell of the config, which may have megabytes: its preset, and the methods of its algorithms.
    preset: Mapped[Name | None]
    algorithms: Mapped[Document | None]
    # Whose request it repeats, unchanged or changed; that job may be gone.
    retry_of: Mapped[Id | None]
    cloned_from: Mapped[Id | None]
    # Of all that its result follows from, see service.jobs.submission; null in rows that older code has written.
    fingerprint: Mapped[Sha256 | None]

    attempt: Mapped[int]
    max_attempts: Mapped[int]
    interruptions: Mapped[int]
    worker_id: Mapped[Name | None]
    lease_until: Mapped[Moment | None]
    not_before: Mapped[Moment]
    dispatched_at: Mapped[Moment | None]
    deadline_at: Mapped[Moment | None]
    cancel_requested_at: Mapped[Moment | None]

    # Why the installation keeps a queued job from running: code, message, hint.
    waiting: Mapped[Document | None]

    stage: Mapped[Name | None]
    progress: Mapped[Document | None]
    error: Mapped[Document | None]
    report_job_id: Mapped[Id | None] = mapped_column(Computed(HAS_REPORT, persisted=True))
    row_version: Mapped[int]
    last_seq: Mapped[int]

    request_id: Mapped[Name | None]
    # Of its submission: what is done for the job belongs to that trace.
    trace_context: Mapped[TraceContext | None]
    created_at: Mapped[Moment]
    queued_at: Mapped[Moment]
    started_at: Mapped[Moment | None]
    finished_at: Mapped[Moment | None]
    updated_at: Mapped[Moment]

    @property
    def shown_state(self) -> str:
        """The stored state, or canceling for a running job whose cancel was requested."""
        return "canceling" if self.state == "running" and self.cancel_requested_at is not None else self.state


EVENT_TYPES = ("state", "progress", "log", "metric")
# Condition of the partial index; statements repeat it word for word.
IS_PROGRESS = "type = 'progress'"


class JobEvent(Owned):
    """One entry of a job's log; ``attempt`` is the claim it belongs to, 0 before the first."""

    __tablename__ = "job_events"
    __table_args__ = (
        CheckConstraint("seq >= 1 AND attempt >= 0", name="numbers"),
        of_own_tenant("job_events", "job_id", "jobs"),
        # what retention drops is found without reading what it keeps
        partial_index("ix_job_events_progress_created_at", "created_at", where=IS_PROGRESS),
    )

    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id] = mapped_column(primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    attempt: Mapped[int]
    type: Mapped[Word]
    data: Mapped[Document]
    created_at: Mapped[Moment]


class Artifact(Owned):
    """One file in the content-addressed store; it comes and goes with the report of the attempt that made it."""

    __tablename__ = "artifacts"
    __table_args__ = (
        UniqueConstraint("job_id", "kind"),
        of_own_tenant("artifacts", "job_id", "jobs"),
        ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["reports.job_id", "reports.attempt"],
            name="fk_artifacts_job_id_attempt_reports",
            deferrable=True,
            initially="DEFERRED",
        ),
    )

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id]
    attempt: Mapped[int]
    kind: Mapped[Word]
    filename: Mapped[Name]
    media_type: Mapped[Name]
    sha256: Mapped[Sha256]
    size_bytes: Mapped[Bytes]
    created_at: Mapped[Moment]


VERDICTS = get_args(Verdict)
# Condition of the partial index; statements repeat it word for word.
IS_UNATTESTED = "attested_at IS NULL"


class ReportRow(Owned):
    """The report of a job, as JSON; the key makes a second one impossible, and one of a job that has not succeeded."""

    __tablename__ = "reports"
    __table_args__ = (
        CheckConstraint(one_of("verdict", VERDICTS), name="verdict"),
        UniqueConstraint("job_id", "attempt", name="uq_reports_job_id_attempt"),
        of_own_tenant("reports", "job_id", "jobs"),
        ForeignKeyConstraint(
            ["job_id", "attempt"],
            ["jobs.report_job_id", "jobs.attempt"],
            name="fk_reports_job_id_attempt_jobs",
            deferrable=True,
            initially="DEFERRED",
        ),
        partial_index("ix_reports_unattested", "created_at", "job_id", where=IS_UNATTESTED),
        Index("ix_reports_tenant_id_verdict_job_id", "tenant_id", "verdict", "job_id"),
        Index("ix_reports_tenant_id_outcome_job_id", "tenant_id", "outcome", "job_id"),
    )

    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    verdict: Mapped[Word]
    # By which word lists show it: collapsed, critical, or else the verdict; null in rows that older code has written.
    outcome: Mapped[Word | None]
    # Which model is returned where the planned one was too slow; null: no other was looked for, or older code wrote it.
    fallback: Mapped[Word | None]
    body: Mapped[Document]
    # What lists tell of it; null in rows that older code has written.
    outline: Mapped[Document | None]
    created_at: Mapped[Moment]
    # When its job was attested; null: not yet. Of an evaluation, which makes no model, nothing is: its own moment.
    attested_at: Mapped[Moment | None]


# Conditions of the partial index; statements repeat it word for word.
IS_CURRENT = "retired_at IS NULL"
SIGNING_KEY = "ed25519"


class SigningKeyRow(Base):
    """A key by which the installation signs. The secret half is there encrypted alone, as secrets of webhooks are.

    One is current; those that were retired stay, so that what they signed can be verified.
    """

    __tablename__ = "signing_keys"
    __table_args__ = (
        CheckConstraint(f"algorithm = '{SIGNING_KEY}'", name="algorithm"),
        partial_index("uq_signing_keys_current", "algorithm", where=IS_CURRENT, unique=True),
    )

    id: Mapped[Word] = mapped_column(primary_key=True)
    algorithm: Mapped[Word]
    # 32 bytes in base64.
    public_key: Mapped[str] = mapped_column(String(64))
    sealed: Mapped[str] = mapped_column(String(255))
    pepper_id: Mapped[str] = mapped_column(String(PEPPER_ID_LENGTH))
    created_at: Mapped[Moment]
    retired_at: Mapped[Moment | None]


class Attestation(Owned):
    """What was signed of a job that succeeded: a DSSE envelope as one line of JSON. It is written once."""

    __tablename__ = "attestations"
    __table_args__ = (of_own_tenant("attestations", "job_id", "jobs"),)

    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id] = mapped_column(primary_key=True)
    attempt: Mapped[int]
    key_id: Mapped[Word]
    envelope: Mapped[str] = mapped_column(Text)
    created_at: Mapped[Moment]


class JobEstimate(Owned):
    """What a job was expected to take when it was stored.

    ``told`` is what is said of it; ``prior`` is what its graph, data and config alone made one expect.
    """

    __tablename__ = "job_estimates"
    __table_args__ = (of_own_tenant("job_estimates", "job_id", "jobs"),)

    tenant_id: Mapped[Tenant]
    job_id: Mapped[Id] = mapped_column(primary_key=True)
    model_sha256: Mapped[Sha256]
    recipe: Mapped[Word]
    seconds: Mapped[float] = mapped_column(Double)
    told: Mapped[Document]
    prior: Mapped[Document]


class JobTiming(Owned):
    """What a job took that has succeeded at its first attempt. Its id is the job's, which may be gone: this stays."""

    __tablename__ = "job_timings"
    __table_args__ = (Index("ix_job_timings_tenant_id_model_sha256_id", "tenant_id", "model_sha256", "id"),)

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[Tenant]
    model_sha256: Mapped[Sha256]
    recipe: Mapped[Word]
    prior: Mapped[Document]
    # Seconds by stage, with those of its start.
    stages: Mapped[Document]
    memory_bytes: Mapped[int] = mapped_column(BigInteger)
    size_bytes: Mapped[int] = mapped_column(BigInteger)
    created_at: Mapped[Moment]


class EstimateFit(Base):
    """Nothing reads or writes it any more; processes of the version before still do while a service is updated."""

    __tablename__ = "estimate_fits"

    name: Mapped[Word] = mapped_column(primary_key=True)
    fit: Mapped[Document]
    newest_timing: Mapped[Id]
    fitted_at: Mapped[Moment]

"""A PostgreSQL database with any number of jobs and events, made by the database itself: a million jobs in minutes.

The rows are as the service writes them, but for their numbers: half of the jobs are the default tenant's, the others
those of 50 tenants; of a hundred that have ended 96 have succeeded, 3 have failed and one was canceled; every tenth
validates a model. They are 90 days old at most, and evenly spread.
"""

from __future__ import annotations

from dataclasses import dataclass

import psycopg
from sqlalchemy.engine import make_url

DAYS = 90
TENANTS = 50
MODELS = 20
# Events of a job: three states, two lines of the log, two of figures; all others tell of progress.
LEAST_EVENTS = 8
_DRAWN = "mod(i * 2654435761, 4294967296)"
_JOB_ID = "'job_' || lpad(to_hex({}), 26, '0')"
_TENANT = "CASE WHEN mod(r, 100) < 50 THEN 'default' ELSE 'tenant-' || mod(r, 100) END"
_MODELS = f"""
INSERT INTO models (id, tenant_id, name, version, format, status, row_version, created_at, updated_at)
SELECT 'mdl_' || lpad(to_hex(t * 1000 + m), 26, '0'), {_TENANT.replace("mod(r, 100)", "t")}, 'net-' || m, 1, 'onnx',
       'validating', 1, %(now)s, %(now)s
FROM generate_series(49, 99) t, generate_series(0, {MODELS - 1}) m
"""
_JOBS = f"""
INSERT INTO jobs (id, tenant_id, kind, name, labels, state, queue, priority, size_class, model_id, config, preset,
    attempt, max_attempts, interruptions, worker_id, lease_until, not_before, dispatched_at, deadline_at, error,
    row_version, last_seq, created_at, queued_at, started_at, finished_at, updated_at, fingerprint)
SELECT id, tenant_id, kind, name, labels::json, state, queue, mod(r, 3), 'long', model_id, '{{"preset": "int8"}}',
    'int8',
    CASE state WHEN 'queued' THEN 0 ELSE 1 END, 3, 0,
    CASE state WHEN 'queued' THEN NULL ELSE 'worker-' || mod(i, %(workers)s) END,
    CASE state WHEN 'running' THEN %(now)s + 60 END, at, CASE state WHEN 'queued' THEN NULL ELSE at END,
    %(now)s + 86400, CASE state WHEN 'failed' THEN '{{"code": "nothing"}}'::json END, 3, %(events)s, at, at,
    CASE state WHEN 'queued' THEN NULL ELSE at + 1 END,
    CASE WHEN state IN ('succeeded', 'failed', 'canceled') THEN at + 30 END, at,
    encode(sha256(id::bytea), 'hex')
FROM (
    SELECT i, r, {_JOB_ID.format("i")} AS id, {_TENANT} AS tenant_id, 'nightly-' || mod(r, 5000) AS name,
        '{{"commit": "' || to_hex(r) || '"}}' AS labels,
        CASE WHEN mod(r / 10000, 10) = 0 THEN 'inspect_model' ELSE 'quantize' END AS kind,
        CASE WHEN mod(r / 10000, 10) = 0 THEN 'inspect' ELSE 'cpu' END AS queue,
        CASE WHEN i > %(jobs)s - %(queued)s THEN 'queued'
             WHEN i > %(jobs)s - %(queued)s - %(running)s THEN 'running'
             WHEN mod(r / 100, 100) < 3 THEN 'failed' WHEN mod(r / 100, 100) = 3 THEN 'canceled'
             ELSE 'succeeded' END AS state,
        'mdl_' || lpad(to_hex(greatest(49, mod(r, 100)) * 1000 + mod(r / 7, {MODELS})), 26, '0') AS model_id,
        %(now)s - {DAYS} * 86400.0 * (1 - i::float / %(jobs)s) - 60 AS at
    FROM (SELECT i, {_DRAWN} AS r FROM generate_series(1, %(jobs)s::bigint) i) numbers
) drawn
"""
_EVENTS = f"""
INSERT INTO job_events (tenant_id, job_id, seq, attempt, type, data, created_at)
SELECT tenant_id, id, seq, least(seq - 1, 1), type, (CASE type
    WHEN 'state' THEN '{{"name": "job.claimed", "state": "running", "worker_id": "worker-1"}}'
    WHEN 'log' THEN '{{"level": "info", "message": "Layer conv_17 was tuned; its error fell by a tenth."}}'
    WHEN 'metric' THEN '{{"stage": "finetune", "step": ' || seq || ', "loss": 0.125}}'
    ELSE '{{"stage": "finetune", "done": ' || seq || ', "total": 100, "unit": "steps", "share": 0.5}}' END)::json,
    at + seq
FROM (
    SELECT tenant_id, id, seq, created_at AS at, CASE WHEN seq <= 2 OR seq = %(events)s THEN 'state'
        WHEN seq <= 4 THEN 'log' WHEN seq <= 6 THEN 'metric' ELSE 'progress' END AS type
    FROM jobs, generate_series(1, %(events)s) seq
    WHERE id > {_JOB_ID.format("%(first)s::bigint")} AND id <= {_JOB_ID.format("%(last)s::bigint")}
) told
"""
_REPORTS = """
INSERT INTO reports (tenant_id, job_id, attempt, verdict, outcome, body, outline, created_at, attested_at)
SELECT tenant_id, id, 1, verdict, verdict, '{"verdict": "pass"}', '{"collapsed": false, "critical_findings": 0}',
    finished_at, finished_at
FROM (
    SELECT *, CASE WHEN substr(fingerprint, 1, 2) < '04' THEN 'fail' ELSE 'pass' END AS verdict
    FROM jobs WHERE report_job_id IS NOT NULL
) succeeded
"""
_ARTIFACTS = """
INSERT INTO artifacts (id, tenant_id, job_id, attempt, kind, filename, media_type, sha256, size_bytes, created_at)
SELECT 'art_' || substr(id, 5), tenant_id, id, 1, 'model', 'model.onnx', 'application/octet-stream', fingerprint, 1000,
    finished_at
FROM jobs WHERE report_job_id IS NOT NULL
"""
_AUDIT = """
INSERT INTO new_audit_events (id, tenant_id, actor, action, object, request_id, address, at)
SELECT 'aud_' || lpad(to_hex(i), 26, '0'), 'tenant-' || mod(i, 50), 'key_of_ci', 'job.create', 'job_' || i, 'req',
    '::1', %(now)s - 90 * 86400.0 * (1 - i::float / %(rows)s)
FROM generate_series(1, %(rows)s::bigint) i
"""
_WORKERS = """
INSERT INTO workers (id, queue, slots, short_slots, seen_at)
SELECT 'worker-' || i, queue, 2, 0, %(now)s + 86400
FROM generate_series(0, %(workers)s - 1) i, unnest(ARRAY['cpu', 'inspect']) queue
"""
_NOW = "SELECT extract(epoch FROM statement_timestamp())::float"
# Jobs whose events one statement makes: its progress can be told.
_AT_A_TIME = 50_000


@dataclass(frozen=True)
class Amount:
    """How many rows."""

    jobs: int = 1_000_000
    events: int = 20_000_000  # of all jobs
    queued: int = 10_000  # of the jobs, the newest
    running: int = 1_000  # of the jobs, those before them
    workers: int = 1_000  # that are alive, with two slots each
    audit: int = 100_000  # deeds, not chained yet

    @property
    def events_of_job(self) -> int:
        """As many for each."""
        return max(LEAST_EVENTS, self.events // max(1, self.jobs))


def fill(url: str, amount: Amount) -> None:
    """Fill a migrated, empty database; foreign keys are not looked at, and nobody is told."""
    address = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with psycopg.connect(address, autocommit=True) as connection:
        row = connection.execute(_NOW).fetchone()
        assert row is not None
        given = {**vars(amount), "events": amount.events_of_job, "now": row[0], "rows": amount.audit}
        connection.execute("SET session_replication_role = replica")
        for statement in (_MODELS, _WORKERS, _JOBS, _REPORTS, _ARTIFACTS, _AUDIT):
            connection.execute(statement, given)  # type: ignore[call-overload]
        for first in range(0, amount.jobs, _AT_A_TIME):
            some = {**given, "first": first, "last": min(first + _AT_A_TIME, amount.jobs)}
            connection.execute(_EVENTS, some)  # type: ignore[call-overload]
        # as the database would do by itself, in its time
        connection.execute("VACUUM (ANALYZE)")

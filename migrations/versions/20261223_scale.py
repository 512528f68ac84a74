"""Indexes for a million jobs: lists and retention go by them, and a renewed lease changes none

PostgreSQL builds them beside everything else that goes on, each in a transaction of its own. One that was broken off
is built anew by the next ``quantmill migrate``.

Revision ID: 20261223_scale
Revises: 20261222_outcomes
Create Date: 2026-12-23

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from migrations import online

revision = '20261223_scale'
down_revision = '20261222_outcomes'
branch_labels = None
depends_on = None

_USERS = "kind IN ('quantize', 'evaluate')"
_LISTED = ('created_at', 'id')
_TURN = ('queue', 'priority', 'tenant_id', 'not_before', 'id', 'deadline_at', 'state')
_WAITING = "state = 'queued' AND dispatched_at IS NULL"
_SHORT = "size_class = 'short'"
# Name, table, columns, condition.
_Index = tuple[str, str, tuple[str, ...], str | None]
_NEW: tuple[_Index, ...] = (
    ('ix_jobs_users_state', 'jobs', ('tenant_id', 'state', *_LISTED), _USERS),
    ('ix_jobs_users_model', 'jobs', ('tenant_id', 'model_id', *_LISTED), _USERS),
    ('ix_jobs_users_name', 'jobs', ('tenant_id', 'name', *_LISTED), f'name IS NOT NULL AND {_USERS}'),
    ('ix_jobs_waiting', 'jobs', (*_TURN, 'dispatched_at'), _WAITING),
    ('ix_jobs_waiting_short', 'jobs', (*_TURN, 'dispatched_at', 'size_class'), f'{_WAITING} AND {_SHORT}'),
    ('ix_jobs_released', 'jobs', ('queue', 'dispatched_at', 'tenant_id', 'size_class', 'id', 'state'),
     "state = 'queued' AND dispatched_at IS NOT NULL"),
    ('ix_jobs_leased', 'jobs', ('id',), "state = 'running'"),
    ('ix_jobs_queued_not_before', 'jobs', ('not_before',), "state = 'queued'"),
    ('ix_jobs_live_deadline_at', 'jobs', ('deadline_at',), "state IN ('queued', 'running')"),
    ('ix_jobs_finished_at', 'jobs', ('finished_at',), 'finished_at IS NOT NULL'),
    ('ix_job_events_progress_created_at', 'job_events', ('created_at',), "type = 'progress'"),
    ('ix_reports_tenant_id_verdict_job_id', 'reports', ('tenant_id', 'verdict', 'job_id'), None),
    ('ix_reports_tenant_id_outcome_job_id', 'reports', ('tenant_id', 'outcome', 'job_id'), None),
)
_OLD: tuple[_Index, ...] = (
    ('ix_jobs_state_not_before', 'jobs', ('state', 'not_before'), None),
    ('ix_jobs_state_lease_until', 'jobs', ('state', 'lease_until'), None),
    ('ix_jobs_state_deadline_at', 'jobs', ('state', 'deadline_at'), None),
    ('ix_jobs_message', 'jobs', ('queue', 'dispatched_at', 'not_before', 'id', 'state'), "state = 'queued'"),
    ('ix_jobs_turn', 'jobs', _TURN, "state = 'queued'"),
    ('ix_jobs_turn_short', 'jobs', (*_TURN, 'size_class'), f"state = 'queued' AND {_SHORT}"),
    ('ix_job_events_progress', 'job_events', ('job_id',), "type = 'progress'"),
)
# Of a page of jobs: what is left free, so that a row that changes stays on its page and no index has to tell.
_FILLFACTOR = 80


_REPORTS = sa.table('reports', sa.column('verdict'), sa.column('outcome'), sa.column('outline', sa.JSON))


def upgrade() -> None:
    if not online.is_postgresql():
        _fill_outcomes()
    else:
        with online.beside_others():  # a report never changes: whoever reads or writes others waits for nothing
            _fill_outcomes()
            op.execute(f'ALTER TABLE jobs SET (fillfactor = {_FILLFACTOR})')
    _change(made=_NEW, dropped=_OLD)
    if online.is_postgresql():
        with online.beside_others():
            op.execute('ANALYZE reports')  # plans follow from what is known of the new column's values


def downgrade() -> None:
    if online.is_postgresql():
        with online.beside_others():
            op.execute('ALTER TABLE jobs RESET (fillfactor)')
    _change(made=_OLD, dropped=_NEW)


def _fill_outcomes() -> None:
    critical = sa.func.coalesce(_REPORTS.c.outline['critical_findings'].as_integer(), 0) > 0
    word = sa.case(
        (sa.func.coalesce(_REPORTS.c.outline['collapsed'].as_boolean(), sa.false()), 'collapsed'),
        (sa.and_(critical, _REPORTS.c.verdict != 'fail'), 'critical'),
        else_=_REPORTS.c.verdict,
    )
    op.execute(sa.update(_REPORTS).where(_REPORTS.c.outcome.is_(None)).values(outcome=word))


def _change(made: tuple[_Index, ...], dropped: tuple[_Index, ...]) -> None:
    for name, table, columns, condition in made:
        online.create_index_concurrently(name, table, columns, where=condition)
    for name, table, *_ in dropped:
        online.drop_index_concurrently(name, table)

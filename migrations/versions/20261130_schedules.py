"""Schedules: jobs that are submitted by the clock, and what became of each time that one was due

Revision ID: 20261130_schedules
Revises: 20261129_names
Create Date: 2026-11-30

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261130_schedules'
down_revision = '20261129_names'
branch_labels = None
depends_on = None

_PLANNED = sa.text('fires_at IS NOT NULL')
_OPEN = sa.text("state IN ('waiting', 'running')")
_HAS_JOB = sa.text('job_id IS NOT NULL')


def upgrade() -> None:
    op.create_table(
        'schedules',
        sa.Column('id', sa.String(length=30), nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('cron', sa.String(length=255), nullable=False),
        sa.Column('timezone', sa.String(length=255), nullable=False),
        sa.Column('template', sa.JSON(), nullable=False),
        sa.Column('overlap', sa.String(length=32), nullable=False),
        sa.Column('misfire', sa.String(length=32), nullable=False),
        sa.Column('misfire_grace_seconds', sa.Integer(), nullable=False),
        sa.Column('jitter_seconds', sa.Integer(), nullable=False),
        sa.Column('skip_unchanged', sa.Boolean(), nullable=False),
        sa.Column('gate', sa.JSON(), nullable=False),
        sa.Column('promote_to', sa.String(length=255), nullable=True),
        sa.Column('paused_at', sa.Double(), nullable=True),
        sa.Column('next_due_at', sa.Double(), nullable=True),
        sa.Column('fires_at', sa.Double(), nullable=True),
        sa.Column('planned_at', sa.Double(), nullable=True),
        sa.Column('last_pass_job_id', sa.String(length=30), nullable=True),
        sa.Column('last_pass_fingerprint', sa.String(length=64), nullable=True),
        sa.Column('row_version', sa.Integer(), nullable=False),
        sa.Column('created_by', sa.String(length=255), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('updated_at', sa.Double(), nullable=False),
        sa.CheckConstraint("misfire IN ('run_once', 'skip')", name=op.f('ck_schedules_misfire')),
        sa.CheckConstraint("overlap IN ('skip', 'queue', 'cancel_running')", name=op.f('ck_schedules_overlap')),
        sa.CheckConstraint('(next_due_at IS NULL) = (fires_at IS NULL)', name=op.f('ck_schedules_due_fires')),
        sa.CheckConstraint('(next_due_at IS NULL) = (planned_at IS NULL)', name=op.f('ck_schedules_due_was_planned')),
        sa.CheckConstraint('paused_at IS NULL OR next_due_at IS NULL', name=op.f('ck_schedules_paused_is_not_due')),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_schedules')),
        sa.UniqueConstraint('tenant_id', 'id', name=op.f('uq_schedules_tenant_id_id')),
    )
    op.create_index(
        'ix_schedules_fires_at', 'schedules', ['fires_at'], sqlite_where=_PLANNED, postgresql_where=_PLANNED
    )
    op.create_index('ix_schedules_tenant_id_created_at_id', 'schedules', ['tenant_id', 'created_at', 'id'])
    op.create_table(
        'schedule_runs',
        sa.Column('id', sa.String(length=30), nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('schedule_id', sa.String(length=30), nullable=False),
        sa.Column('due_at', sa.Double(), nullable=False),
        sa.Column('trigger', sa.String(length=32), nullable=False),
        sa.Column('state', sa.String(length=32), nullable=False),
        sa.Column('reason', sa.String(length=32), nullable=True),
        sa.Column('detail', sa.String(length=1000), nullable=True),
        sa.Column('missed', sa.Integer(), nullable=False),
        sa.Column('job_id', sa.String(length=30), nullable=True),
        sa.Column('model_id', sa.String(length=30), nullable=True),
        sa.Column('fingerprint', sa.String(length=64), nullable=True),
        sa.Column('verdict', sa.String(length=32), nullable=True),
        sa.Column('problem', sa.JSON(), nullable=True),
        sa.Column('clauses', sa.JSON(), nullable=True),
        sa.Column('promoted_to', sa.String(length=255), nullable=True),
        sa.Column('row_version', sa.Integer(), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('updated_at', sa.Double(), nullable=False),
        sa.Column('finished_at', sa.Double(), nullable=True),
        sa.CheckConstraint(
            "(state IN ('waiting', 'running')) = (finished_at IS NULL)", name=op.f('ck_schedule_runs_finished_has_time')
        ),
        sa.CheckConstraint("state <> 'running' OR job_id IS NOT NULL", name=op.f('ck_schedule_runs_running_has_job')),
        sa.CheckConstraint(
            "state IN ('waiting', 'running', 'passed', 'failed', 'skipped', 'refused')",
            name=op.f('ck_schedule_runs_state'),
        ),
        sa.CheckConstraint("trigger IN ('time', 'request')", name=op.f('ck_schedule_runs_trigger')),
        sa.ForeignKeyConstraint(
            ['tenant_id', 'schedule_id'],
            ['schedules.tenant_id', 'schedules.id'],
            name='fk_schedule_runs_tenant_schedule_id_schedules',
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_schedule_runs')),
        sa.UniqueConstraint('schedule_id', 'due_at', name=op.f('uq_schedule_runs_schedule_id_due_at')),
        sa.UniqueConstraint('tenant_id', 'id', name=op.f('uq_schedule_runs_tenant_id_id')),
    )
    op.create_index('ix_schedule_runs_created_at', 'schedule_runs', ['created_at'])
    op.create_index(
        'ix_schedule_runs_job_id', 'schedule_runs', ['job_id'], sqlite_where=_HAS_JOB, postgresql_where=_HAS_JOB
    )
    op.create_index(
        'ix_schedule_runs_open', 'schedule_runs', ['schedule_id', 'state'], sqlite_where=_OPEN, postgresql_where=_OPEN
    )
    op.create_index('ix_schedule_runs_schedule_id_created_at_id', 'schedule_runs', ['schedule_id', 'created_at', 'id'])


def downgrade() -> None:
    op.drop_table('schedule_runs')
    op.drop_table('schedules')

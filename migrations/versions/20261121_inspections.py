"""Inspections of models for targets, and the jobs that make them

Revision ID: 20261121_inspections
Revises: 20261120_spine
Create Date: 2026-11-21

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261121_inspections'
down_revision = '20261120_spine'
branch_labels = None
depends_on = None

_KINDS = ('quantize', 'inspect_model', 'inspect_dataset')
_INPUTS = "kind <> 'inspect_target' OR (model_id IS NOT NULL AND config IS NOT NULL)"


def upgrade() -> None:
    _rebuild_jobs((*_KINDS, 'inspect_target'), with_inputs=True)
    op.create_table('inspections',
    sa.Column('id', sa.String(length=30), nullable=False),
    sa.Column('tenant_id', sa.String(length=64), nullable=False),
    sa.Column('model_id', sa.String(length=30), nullable=False),
    sa.Column('job_id', sa.String(length=30), nullable=False),
    sa.Column('config', sa.JSON(none_as_null=True), nullable=False),
    sa.Column('config_sha256', sa.String(length=64), nullable=False),
    sa.Column('status', sa.String(length=32), nullable=False),
    sa.Column('result', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('problem', sa.JSON(none_as_null=True), nullable=True),
    sa.Column('row_version', sa.Integer(), nullable=False),
    sa.Column('created_at', sa.Double(), nullable=False),
    sa.Column('updated_at', sa.Double(), nullable=False),
    sa.CheckConstraint("status IN ('running', 'ready', 'failed')", name=op.f('ck_inspections_status')),
    sa.CheckConstraint("(status = 'ready') = (result IS NOT NULL)", name=op.f('ck_inspections_ready_has_result')),
    sa.CheckConstraint("(status = 'failed') = (problem IS NOT NULL)", name=op.f('ck_inspections_failed_has_problem')),
    sa.ForeignKeyConstraint(['job_id'], ['jobs.id'], name=op.f('fk_inspections_job_id_jobs')),
    sa.ForeignKeyConstraint(['model_id'], ['models.id'], name=op.f('fk_inspections_model_id_models')),
    sa.PrimaryKeyConstraint('id', name=op.f('pk_inspections')),
    sa.UniqueConstraint('job_id', name=op.f('uq_inspections_job_id'))
    )
    with op.batch_alter_table('inspections') as batch_op:
        batch_op.create_index('uq_inspections_model_id_config_sha256', ['model_id', 'config_sha256'], unique=True, sqlite_where=sa.text("status <> 'failed'"), postgresql_where=sa.text("status <> 'failed'"))


def downgrade() -> None:
    with op.batch_alter_table('inspections') as batch_op:
        batch_op.drop_index('uq_inspections_model_id_config_sha256', sqlite_where=sa.text("status <> 'failed'"), postgresql_where=sa.text("status <> 'failed'"))

    op.drop_table('inspections')
    # the older code does not know these jobs
    op.execute("DELETE FROM job_events WHERE job_id IN (SELECT id FROM jobs WHERE kind = 'inspect_target')")
    op.execute("DELETE FROM jobs WHERE kind = 'inspect_target'")
    _rebuild_jobs(_KINDS, with_inputs=False)


def _rebuild_jobs(kinds: tuple[str, ...], *, with_inputs: bool) -> None:
    words = ', '.join(repr(kind) for kind in kinds)
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.drop_constraint(op.f('ck_jobs_kind'), type_='check')
        batch_op.create_check_constraint(op.f('ck_jobs_kind'), f'kind IN ({words})')
        if with_inputs:
            batch_op.create_check_constraint(op.f('ck_jobs_inspect_target_has_inputs'), _INPUTS)
        else:
            batch_op.drop_constraint(op.f('ck_jobs_inspect_target_has_inputs'), type_='check')

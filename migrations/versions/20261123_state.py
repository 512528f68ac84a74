"""A quantize job has succeeded if and only if it has exactly one report, of the attempt that succeeded

The database computes whose report a job must have, so that workers of older code go on as they are.

Revision ID: 20261123_state
Revises: 20261123_waiting
Create Date: 2026-11-23

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261123_state'
down_revision = '20261123_waiting'
branch_labels = None
depends_on = None

_REPORTED = "CASE WHEN state = 'succeeded' AND kind = 'quantize' THEN id END"
_OWN_REPORT = 'fk_jobs_report_job_id_reports'
_OWN_JOB = 'fk_reports_job_id_attempt_jobs'
_OF_REPORT = 'fk_artifacts_job_id_attempt_reports'


def upgrade() -> None:
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.add_column(
            sa.Column('report_job_id', sa.String(length=30), sa.Computed(_REPORTED, persisted=True), nullable=True)
        )
        batch_op.create_unique_constraint(op.f('uq_jobs_report_job_id_attempt'), ['report_job_id', 'attempt'])
    with op.batch_alter_table('reports') as batch_op:
        batch_op.create_unique_constraint(op.f('uq_reports_job_id_attempt'), ['job_id', 'attempt'])
        batch_op.create_foreign_key(
            op.f(_OWN_JOB), 'jobs', ['job_id', 'attempt'], ['report_job_id', 'attempt'],
            deferrable=True, initially='DEFERRED',
        )
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.create_foreign_key(
            op.f(_OWN_REPORT), 'reports', ['report_job_id', 'attempt'], ['job_id', 'attempt'],
            deferrable=True, initially='DEFERRED',
        )
    with op.batch_alter_table('artifacts') as batch_op:
        batch_op.create_foreign_key(
            op.f(_OF_REPORT), 'reports', ['job_id', 'attempt'], ['job_id', 'attempt'],
            deferrable=True, initially='DEFERRED',
        )


def downgrade() -> None:
    with op.batch_alter_table('artifacts') as batch_op:
        batch_op.drop_constraint(op.f(_OF_REPORT), type_='foreignkey')
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.drop_constraint(op.f(_OWN_REPORT), type_='foreignkey')
    with op.batch_alter_table('reports') as batch_op:
        batch_op.drop_constraint(op.f(_OWN_JOB), type_='foreignkey')
        batch_op.drop_constraint(op.f('uq_reports_job_id_attempt'), type_='unique')
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.drop_constraint(op.f('uq_jobs_report_job_id_attempt'), type_='unique')
        batch_op.drop_column('report_job_id')

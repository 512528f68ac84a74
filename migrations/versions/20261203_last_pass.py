"""The job that a schedule accepted last stays: the next ones are judged by it

Revision ID: 20261203_last_pass
Revises: 20261202_batches
Create Date: 2026-12-03

"""

from __future__ import annotations

from alembic import op

revision = '20261203_last_pass'
down_revision = '20261202_batches'
branch_labels = None
depends_on = None

_KEY = 'fk_schedules_tenant_last_pass_job_id_jobs'
_INDEX = 'ix_schedules_last_pass_job_id'


def upgrade() -> None:
    # Of one that is gone already nothing can be told: the schedule begins anew.
    op.execute(
        'UPDATE schedules SET last_pass_job_id = NULL, last_pass_fingerprint = NULL WHERE last_pass_job_id IS NOT NULL'
        ' AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = schedules.last_pass_job_id'
        ' AND jobs.tenant_id = schedules.tenant_id)'
    )
    with op.batch_alter_table('schedules') as batch_op:
        batch_op.create_foreign_key(op.f(_KEY), 'jobs', ['tenant_id', 'last_pass_job_id'], ['tenant_id', 'id'])
        batch_op.create_index(_INDEX, ['last_pass_job_id'])


def downgrade() -> None:
    with op.batch_alter_table('schedules') as batch_op:
        batch_op.drop_index(_INDEX)
        batch_op.drop_constraint(op.f(_KEY), type_='foreignkey')

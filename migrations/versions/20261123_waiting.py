"""Jobs that wait for their installation

Revision ID: 20261123_waiting
Revises: 20261122_workers
Create Date: 2026-11-23

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261123_waiting'
down_revision = '20261122_workers'
branch_labels = None
depends_on = None

_NAME = 'ck_jobs_only_queued_waits'


def upgrade() -> None:
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.add_column(sa.Column('waiting', sa.JSON(none_as_null=True), nullable=True))
        batch_op.create_check_constraint(op.f(_NAME), "state = 'queued' OR waiting IS NULL")


def downgrade() -> None:
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.drop_constraint(op.f(_NAME), type_='check')
        batch_op.drop_column('waiting')

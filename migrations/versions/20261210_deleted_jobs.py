"""Jobs that are deleted go on counting as submitted

Revision ID: 20261210_deleted_jobs
Revises: 20261209_sent_requests
Create Date: 2026-12-10

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261210_deleted_jobs'
down_revision = '20261209_sent_requests'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'deleted_jobs',
        sa.Column('job_id', sa.String(length=30), nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('job_id', name=op.f('pk_deleted_jobs')),
    )
    op.create_index('ix_deleted_jobs_tenant_id_created_at', 'deleted_jobs', ['tenant_id', 'created_at'])


def downgrade() -> None:
    op.drop_table('deleted_jobs')

"""Jobs are repeated and told from each other: whose request, what result, which figures

Nothing is computed for rows that are there: a job without a fingerprint is not taken for another, and a report without
an outline shows its verdict alone in lists.

Revision ID: 20261127_jobs
Revises: 20261126_parts
Create Date: 2026-11-27

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261127_jobs'
down_revision = '20261126_parts'
branch_labels = None
depends_on = None

_KNOWN = sa.text('fingerprint IS NOT NULL')


def upgrade() -> None:
    op.add_column('jobs', sa.Column('retry_of', sa.String(length=30), nullable=True))
    op.add_column('jobs', sa.Column('cloned_from', sa.String(length=30), nullable=True))
    op.add_column('jobs', sa.Column('fingerprint', sa.String(length=64), nullable=True))
    op.create_index(
        'ix_jobs_tenant_id_fingerprint', 'jobs', ['tenant_id', 'fingerprint'],
        sqlite_where=_KNOWN, postgresql_where=_KNOWN,
    )
    op.add_column('reports', sa.Column('outline', sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    op.drop_column('reports', 'outline')
    op.drop_index('ix_jobs_tenant_id_fingerprint', 'jobs')
    for name in ('fingerprint', 'cloned_from', 'retry_of'):
        op.drop_column('jobs', name)

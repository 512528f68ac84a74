"""An index of the messages that have to be sent, or sent again

Revision ID: 20261124_message
Revises: 20261123_deaf
Create Date: 2026-11-24

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261124_message'
down_revision = '20261123_deaf'
branch_labels = None
depends_on = None

_NAME = 'ix_jobs_message'
_QUEUED = sa.text("state = 'queued'")


def upgrade() -> None:
    if op.get_bind().dialect.name == 'postgresql':
        # Rows that an earlier migration of this transaction changed wait for deferred checks: no index is made before.
        op.execute('SET CONSTRAINTS ALL IMMEDIATE')
        op.execute('SET CONSTRAINTS ALL DEFERRED')
    columns = ['queue', 'dispatched_at', 'not_before', 'id', 'state']
    op.create_index(_NAME, 'jobs', columns, sqlite_where=_QUEUED, postgresql_where=_QUEUED)


def downgrade() -> None:
    op.drop_index(_NAME, 'jobs')

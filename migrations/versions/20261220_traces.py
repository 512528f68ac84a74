"""Jobs, and what is sent for them, remember the trace that they belong to

Revision ID: 20261220_traces
Revises: 20261215_audit_changes
Create Date: 2026-12-20

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261220_traces'
down_revision = '20261215_audit_changes'
branch_labels = None
depends_on = None

_TABLES = ('jobs', 'webhook_deliveries', 'hand_overs')


def upgrade() -> None:
    for table in _TABLES:  # no row is rewritten, on either database
        op.add_column(table, sa.Column('trace_context', sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, 'trace_context')

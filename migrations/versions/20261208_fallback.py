"""Which model a job has returned, where the planned one was too slow

Revision ID: 20261208_fallback
Revises: 20261207_schedule_names
Create Date: 2026-12-08

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261208_fallback'
down_revision = '20261207_schedule_names'
branch_labels = None
depends_on = None

_TABLES = ('reports', 'schedule_runs')


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column('fallback', sa.String(length=32), nullable=True))


def downgrade() -> None:
    for table in _TABLES:
        op.drop_column(table, 'fallback')

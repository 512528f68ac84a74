"""Workers that say that they are alive

Revision ID: 20261122_workers
Revises: 20261122_undecided_verdict
Create Date: 2026-11-22

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261122_workers'
down_revision = '20261122_undecided_verdict'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table('workers',
    sa.Column('id', sa.String(length=255), nullable=False),
    sa.Column('queue', sa.String(length=255), nullable=False),
    sa.Column('seen_at', sa.Double(), nullable=False),
    sa.PrimaryKeyConstraint('id', 'queue', name=op.f('pk_workers'))
    )


def downgrade() -> None:
    op.drop_table('workers')

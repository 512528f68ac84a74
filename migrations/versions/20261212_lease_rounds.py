"""Reconcilers know when leases were looked after last

Revision ID: 20261212_lease_rounds
Revises: 20261211_new_audit_events
Create Date: 2026-12-12

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261212_lease_rounds'
down_revision = '20261211_new_audit_events'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'lease_rounds',
        sa.Column('name', sa.String(length=32), nullable=False),
        sa.Column('served_at', sa.Double(), nullable=False),
        sa.Column('spared_at', sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint('name', name=op.f('pk_lease_rounds')),
    )


def downgrade() -> None:
    op.drop_table('lease_rounds')

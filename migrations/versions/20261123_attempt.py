"""Models in quarantine

Revision ID: 20261123_attempt
Revises: 20261123_state
Create Date: 2026-11-23

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261123_attempt'
down_revision = '20261123_state'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'quarantines',
        sa.Column('tenant_id', sa.String(64), nullable=False),
        sa.Column('digest', sa.String(64), nullable=False),
        sa.Column('crashes', sa.Integer(), nullable=False),
        sa.Column('reason', sa.String(255), nullable=False),
        sa.Column('model_id', sa.String(30), nullable=False),
        sa.Column('job_id', sa.String(30), nullable=False),
        sa.Column('quarantined_at', sa.Double(), nullable=True),
        sa.Column('updated_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('tenant_id', 'digest', name=op.f('pk_quarantines')),
    )


def downgrade() -> None:
    op.drop_table('quarantines')

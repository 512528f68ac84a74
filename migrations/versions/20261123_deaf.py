"""Workers that no message reaches say so

Revision ID: 20261123_deaf
Revises: 20261123_upkeep
Create Date: 2026-11-23

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261123_deaf'
down_revision = '20261123_upkeep'
branch_labels = None
depends_on = None


def upgrade() -> None:
    with op.batch_alter_table('workers') as batch_op:
        batch_op.add_column(sa.Column('deaf_since', sa.Double(), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table('workers') as batch_op:
        batch_op.drop_column('deaf_since')

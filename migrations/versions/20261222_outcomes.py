"""Reports tell by which word lists show them

Revision ID: 20261222_outcomes
Revises: 20261221_upload_parts
Create Date: 2026-12-22

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261222_outcomes'
down_revision = '20261221_upload_parts'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('reports', sa.Column('outcome', sa.String(32), nullable=True))


def downgrade() -> None:
    with op.batch_alter_table('reports') as batch_op:
        batch_op.drop_column('outcome')

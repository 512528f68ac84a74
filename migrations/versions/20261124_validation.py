"""Models and datasets say what keeps them in validation

Revision ID: 20261124_validation
Revises: 20261124_message
Create Date: 2026-11-24

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261124_validation'
down_revision = '20261124_message'
branch_labels = None
depends_on = None

_TABLES = ('models', 'datasets')


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column('waiting', sa.JSON(none_as_null=True), nullable=True))


def downgrade() -> None:
    for table in _TABLES:
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column('waiting')

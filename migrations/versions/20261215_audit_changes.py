"""The audit log tells what an action has changed

The hash of a row covers its changes where it has some: hashes of older rows stay as they are.

Revision ID: 20261215_audit_changes
Revises: 20261214_release
Create Date: 2026-12-15

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261215_audit_changes'
down_revision = '20261214_release'
branch_labels = None
depends_on = None

_TABLES = ('new_audit_events', 'audit_events')


def upgrade() -> None:
    for table in _TABLES:
        op.add_column(table, sa.Column('changes', sa.Text(), nullable=True))


def downgrade() -> None:
    # older code takes rows with changes for changed ones; hashes made anew would take the evidence from all others
    for table in _TABLES:
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column('changes')

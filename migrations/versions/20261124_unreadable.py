"""A stored file may be one that the disk cannot give

Revision ID: 20261124_unreadable
Revises: 20261124_validation
Create Date: 2026-11-24

"""
from __future__ import annotations

from alembic import op

revision = '20261124_unreadable'
down_revision = '20261124_validation'
branch_labels = None
depends_on = None

_NAME = 'ck_damaged_files_damage'


def _allow(words: str) -> None:
    with op.batch_alter_table('damaged_files') as batch_op:
        batch_op.drop_constraint(op.f(_NAME), type_='check')
        batch_op.create_check_constraint(op.f(_NAME), f'damage IN ({words})')


def upgrade() -> None:
    _allow("'missing', 'size', 'digest', 'unreadable'")


def downgrade() -> None:
    op.execute("DELETE FROM damaged_files WHERE damage = 'unreadable'")
    _allow("'missing', 'size', 'digest'")

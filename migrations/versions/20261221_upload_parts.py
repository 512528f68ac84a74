"""Uploads in progress in a bucket

Revision ID: 20261221_upload_parts
Revises: 20261220_traces
Create Date: 2026-12-21

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261221_upload_parts'
down_revision = '20261220_traces'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'upload_parts',
        sa.Column('upload_id', sa.String(length=30), nullable=False),
        sa.Column('begin_bytes', sa.BigInteger(), nullable=False),
        sa.Column('size_bytes', sa.BigInteger(), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.PrimaryKeyConstraint('upload_id', 'begin_bytes', name=op.f('pk_upload_parts')),
    )


def downgrade() -> None:
    op.drop_table('upload_parts')

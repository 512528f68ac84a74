"""What verification of stored files found, and an index for the retention of progress

Revision ID: 20261123_upkeep
Revises: 20261123_schedule
Create Date: 2026-11-23

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261123_upkeep'
down_revision = '20261123_schedule'
branch_labels = None
depends_on = None

_PROGRESS = sa.text("type = 'progress'")


def upgrade() -> None:
    op.create_table('damaged_files',
    sa.Column('sha256', sa.String(length=64), nullable=False),
    sa.Column('damage', sa.String(length=32), nullable=False),
    sa.Column('found_at', sa.Double(), nullable=False),
    sa.CheckConstraint("damage IN ('missing', 'size', 'digest')", name=op.f('ck_damaged_files_damage')),
    sa.PrimaryKeyConstraint('sha256', name=op.f('pk_damaged_files'))
    )
    op.create_table('scrub_passes',
    sa.Column('name', sa.String(length=32), nullable=False),
    sa.Column('position', sa.String(length=64), nullable=False),
    sa.Column('files', sa.Integer(), nullable=False),
    sa.Column('size_bytes', sa.BigInteger(), nullable=False),
    sa.Column('started_at', sa.Double(), nullable=False),
    sa.Column('finished_at', sa.Double(), nullable=True),
    sa.PrimaryKeyConstraint('name', name=op.f('pk_scrub_passes'))
    )
    with op.batch_alter_table('job_events') as batch_op:
        batch_op.create_index('ix_job_events_progress', ['job_id'], sqlite_where=_PROGRESS, postgresql_where=_PROGRESS)


def downgrade() -> None:
    with op.batch_alter_table('job_events') as batch_op:
        batch_op.drop_index('ix_job_events_progress')
    op.drop_table('scrub_passes')
    op.drop_table('damaged_files')

"""Batches: jobs that were asked for as one

Revision ID: 20261202_batches
Revises: 20261201_attestations
Create Date: 2026-12-02

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261202_batches'
down_revision = '20261201_attestations'
branch_labels = None
depends_on = None

_CURRENT = sa.text('superseded = false')


def upgrade() -> None:
    op.create_table(
        'batches',
        sa.Column('id', sa.String(length=30), nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=True),
        sa.Column('labels', sa.JSON(), nullable=False),
        sa.Column('grid', sa.JSON(), nullable=True),
        sa.Column('row_version', sa.Integer(), nullable=False),
        sa.Column('request_id', sa.String(length=255), nullable=True),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('updated_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_batches')),
        sa.UniqueConstraint('tenant_id', 'id', name=op.f('uq_batches_tenant_id_id')),
    )
    op.create_index('ix_batches_tenant_id_created_at_id', 'batches', ['tenant_id', 'created_at', 'id'])
    op.create_table(
        'batch_members',
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('batch_id', sa.String(length=30), nullable=False),
        sa.Column('position', sa.Integer(), autoincrement=False, nullable=False),
        sa.Column('member', sa.Integer(), nullable=False),
        sa.Column('job_id', sa.String(length=30), nullable=False),
        sa.Column('superseded', sa.Boolean(), nullable=False),
        sa.Column('reused', sa.Boolean(), nullable=False),
        sa.Column('model', sa.String(length=265), nullable=False),
        sa.Column('preset', sa.String(length=255), nullable=True),
        sa.Column('config', sa.Integer(), nullable=True),
        sa.CheckConstraint(
            'position >= 0 AND member >= 0 AND position >= member', name=op.f('ck_batch_members_numbers')
        ),
        sa.ForeignKeyConstraint(
            ['tenant_id', 'batch_id'],
            ['batches.tenant_id', 'batches.id'],
            name=op.f('fk_batch_members_tenant_batch_id_batches'),
        ),
        sa.PrimaryKeyConstraint('batch_id', 'position', name=op.f('pk_batch_members')),
    )
    op.create_index(
        'ix_batch_members_current',
        'batch_members',
        ['batch_id', 'member'],
        unique=True,
        sqlite_where=_CURRENT,
        postgresql_where=_CURRENT,
    )
    op.create_index('ix_batch_members_job_id', 'batch_members', ['job_id'])


def downgrade() -> None:
    op.drop_table('batch_members')
    op.drop_table('batches')

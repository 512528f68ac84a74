"""Hand-overs: which results of a job go where

Revision ID: 20261206_hand_overs
Revises: 20261205_estimates
Create Date: 2026-12-06

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261206_hand_overs'
down_revision = '20261205_estimates'
branch_labels = None
depends_on = None

_OPEN = "state IN ('waiting', 'pending')"
_PENDING = "state = 'pending'"
_LEASED = 'lease_until IS NOT NULL'


def upgrade() -> None:
    op.create_table(
        'hand_overs',
        sa.Column('id', sa.String(length=30), nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('job_id', sa.String(length=30), nullable=False),
        sa.Column('kind', sa.String(length=32), nullable=False),
        sa.Column('artifact', sa.String(length=32), nullable=True),
        sa.Column('condition', sa.String(length=32), nullable=False),
        sa.Column('host', sa.String(length=262), nullable=False),
        sa.Column('sealed', sa.Text(), nullable=True),
        sa.Column('pepper_id', sa.String(length=16), nullable=False),
        sa.Column('payload', sa.Text(), nullable=True),
        sa.Column('state', sa.String(length=32), nullable=False),
        sa.Column('reason', sa.String(length=32), nullable=True),
        sa.Column('detail', sa.String(length=255), nullable=True),
        sa.Column('attempts', sa.Integer(), nullable=False),
        sa.Column('next_attempt_at', sa.Double(), nullable=True),
        sa.Column('lease_until', sa.Double(), nullable=True),
        sa.Column('last_attempt_at', sa.Double(), nullable=True),
        sa.Column('last_status', sa.Integer(), nullable=True),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('finished_at', sa.Double(), nullable=True),
        sa.CheckConstraint("kind IN ('put', 'post')", name=op.f('ck_hand_overs_kind')),
        sa.CheckConstraint("condition IN ('pass', 'success')", name=op.f('ck_hand_overs_condition')),
        sa.CheckConstraint(
            "state IN ('waiting', 'pending', 'done', 'skipped', 'failed')", name=op.f('ck_hand_overs_state')
        ),
        sa.CheckConstraint("(kind = 'put') = (artifact IS NOT NULL)", name=op.f('ck_hand_overs_put_alone_has_artifact')),
        sa.CheckConstraint(f'({_OPEN}) = (sealed IS NOT NULL)', name=op.f('ck_hand_overs_open_alone_has_secret')),
        sa.CheckConstraint(f'({_OPEN}) = (finished_at IS NULL)', name=op.f('ck_hand_overs_finished_has_time')),
        sa.CheckConstraint(
            f'({_PENDING}) = (next_attempt_at IS NOT NULL)', name=op.f('ck_hand_overs_pending_is_due')
        ),
        sa.CheckConstraint(f'{_PENDING} OR lease_until IS NULL', name=op.f('ck_hand_overs_pending_alone_is_leased')),
        sa.ForeignKeyConstraint(
            ['tenant_id', 'job_id'], ['jobs.tenant_id', 'jobs.id'], name=op.f('fk_hand_overs_tenant_job_id_jobs')
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_hand_overs')),
        sa.UniqueConstraint('tenant_id', 'id', name=op.f('uq_hand_overs_tenant_id_id')),
    )
    op.create_index('ix_hand_overs_job_id_id', 'hand_overs', ['job_id', 'id'])
    for name, column, condition in (('due', 'next_attempt_at', _PENDING), ('leased', 'lease_until', _LEASED)):
        op.create_index(
            f'ix_hand_overs_{name}',
            'hand_overs',
            [column, 'tenant_id'],
            sqlite_where=sa.text(condition),
            postgresql_where=sa.text(condition),
        )


def downgrade() -> None:
    op.drop_table('hand_overs')

"""Jobs are attested: the installation's signing keys, and what they have signed

Nothing is signed here: the reconciler signs what has succeeded before, with what its rows say then.

Revision ID: 20261201_attestations
Revises: 20261130_schedules
Create Date: 2026-12-01

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261201_attestations'
down_revision = '20261130_schedules'
branch_labels = None
depends_on = None

_CURRENT = sa.text('retired_at IS NULL')
_UNATTESTED = sa.text('attested_at IS NULL')


def upgrade() -> None:
    op.create_table(
        'signing_keys',
        sa.Column('id', sa.String(length=32), nullable=False),
        sa.Column('algorithm', sa.String(length=32), nullable=False),
        sa.Column('public_key', sa.String(length=64), nullable=False),
        sa.Column('sealed', sa.String(length=255), nullable=False),
        sa.Column('pepper_id', sa.String(length=16), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('retired_at', sa.Double(), nullable=True),
        sa.CheckConstraint("algorithm = 'ed25519'", name=op.f('ck_signing_keys_algorithm')),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_signing_keys')),
    )
    op.create_index(
        'uq_signing_keys_current', 'signing_keys', ['algorithm'], unique=True,
        sqlite_where=_CURRENT, postgresql_where=_CURRENT,
    )
    op.create_table(
        'attestations',
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('job_id', sa.String(length=30), nullable=False),
        sa.Column('attempt', sa.Integer(), nullable=False),
        sa.Column('key_id', sa.String(length=32), nullable=False),
        sa.Column('envelope', sa.Text(), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ['tenant_id', 'job_id'], ['jobs.tenant_id', 'jobs.id'], name=op.f('fk_attestations_tenant_job_id_jobs')
        ),
        sa.PrimaryKeyConstraint('job_id', name=op.f('pk_attestations')),
    )
    op.add_column('reports', sa.Column('attested_at', sa.Double(), nullable=True))
    op.create_index(
        'ix_reports_unattested', 'reports', ['created_at', 'job_id'],
        sqlite_where=_UNATTESTED, postgresql_where=_UNATTESTED,
    )


def downgrade() -> None:
    op.drop_index('ix_reports_unattested', 'reports')
    op.drop_column('reports', 'attested_at')
    op.drop_table('attestations')
    op.drop_table('signing_keys')

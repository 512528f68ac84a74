"""Estimates of jobs: what they will take, what earlier ones took, what was learned

Revision ID: 20261205_estimates
Revises: 20261204_evaluations
Create Date: 2026-12-05

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261205_estimates'
down_revision = '20261204_evaluations'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        'job_estimates',
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('job_id', sa.String(length=30), nullable=False),
        sa.Column('model_sha256', sa.String(length=64), nullable=False),
        sa.Column('recipe', sa.String(length=32), nullable=False),
        sa.Column('seconds', sa.Double(), nullable=False),
        sa.Column('told', sa.JSON(none_as_null=True), nullable=False),
        sa.Column('prior', sa.JSON(none_as_null=True), nullable=False),
        sa.ForeignKeyConstraint(
            ['tenant_id', 'job_id'], ['jobs.tenant_id', 'jobs.id'], name=op.f('fk_job_estimates_tenant_job_id_jobs')
        ),
        sa.PrimaryKeyConstraint('job_id', name=op.f('pk_job_estimates')),
    )
    op.create_table(
        'job_timings',
        sa.Column('id', sa.String(length=30), nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('model_sha256', sa.String(length=64), nullable=False),
        sa.Column('recipe', sa.String(length=32), nullable=False),
        sa.Column('prior', sa.JSON(none_as_null=True), nullable=False),
        sa.Column('stages', sa.JSON(none_as_null=True), nullable=False),
        sa.Column('memory_bytes', sa.BigInteger(), nullable=False),
        sa.Column('size_bytes', sa.BigInteger(), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_job_timings')),
    )
    op.create_index(
        'ix_job_timings_tenant_id_model_sha256_id', 'job_timings', ['tenant_id', 'model_sha256', 'id'], unique=False
    )
    op.create_table(
        'estimate_fits',
        sa.Column('name', sa.String(length=32), nullable=False),
        sa.Column('fit', sa.JSON(none_as_null=True), nullable=False),
        sa.Column('newest_timing', sa.String(length=30), nullable=False),
        sa.Column('fitted_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('name', name=op.f('pk_estimate_fits')),
    )


def downgrade() -> None:
    op.drop_table('estimate_fits')
    op.drop_index('ix_job_timings_tenant_id_model_sha256_id', table_name='job_timings')
    op.drop_table('job_timings')
    op.drop_table('job_estimates')

"""Webhooks: endpoints, and the deliveries of events to them

Revision ID: 20261128_webhooks
Revises: 20261127_jobs
Create Date: 2026-11-28

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261128_webhooks'
down_revision = '20261127_jobs'
branch_labels = None
depends_on = None

_WAITING = sa.text("state = 'waiting'")
_LEASED = sa.text('lease_until IS NOT NULL')


def upgrade() -> None:
    op.create_table(
        'webhook_endpoints',
        sa.Column('id', sa.String(length=30), nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('url', sa.Text(), nullable=False),
        sa.Column('event_types', sa.JSON(), nullable=False),
        sa.Column('description', sa.String(length=255), nullable=True),
        sa.Column('enabled', sa.Boolean(), nullable=False),
        sa.Column('disabled_reason', sa.String(length=32), nullable=True),
        sa.Column('disabled_at', sa.Double(), nullable=True),
        sa.Column('failing_since', sa.Double(), nullable=True),
        sa.Column('dropped_events', sa.Integer(), nullable=False),
        sa.Column('sealed', sa.String(length=255), nullable=False),
        sa.Column('previous_sealed', sa.String(length=255), nullable=True),
        sa.Column('previous_ends_at', sa.Double(), nullable=True),
        sa.Column('pepper_id', sa.String(length=16), nullable=False),
        sa.Column('row_version', sa.Integer(), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('updated_at', sa.Double(), nullable=False),
        sa.CheckConstraint(
            "disabled_reason IN ('gone', 'failing', 'client')", name=op.f('ck_webhook_endpoints_disabled_reason')
        ),
        sa.CheckConstraint(
            'enabled = (disabled_reason IS NULL)', name=op.f('ck_webhook_endpoints_disabled_has_reason')
        ),
        sa.CheckConstraint('enabled = (disabled_at IS NULL)', name=op.f('ck_webhook_endpoints_disabled_has_time')),
        sa.CheckConstraint(
            '(previous_sealed IS NULL) = (previous_ends_at IS NULL)', name=op.f('ck_webhook_endpoints_previous_ends')
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_webhook_endpoints')),
        sa.UniqueConstraint('tenant_id', 'id', name=op.f('uq_webhook_endpoints_tenant_id_id')),
    )
    op.create_index(
        'ix_webhook_endpoints_tenant_id_created_at_id', 'webhook_endpoints', ['tenant_id', 'created_at', 'id']
    )
    op.create_table(
        'webhook_deliveries',
        sa.Column('id', sa.String(length=30), nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('endpoint_id', sa.String(length=30), nullable=False),
        sa.Column('event_id', sa.String(length=30), nullable=False),
        sa.Column('type', sa.String(length=32), nullable=False),
        sa.Column('payload', sa.Text(), nullable=False),
        sa.Column('state', sa.String(length=32), nullable=False),
        sa.Column('attempts', sa.Integer(), nullable=False),
        sa.Column('next_attempt_at', sa.Double(), nullable=True),
        sa.Column('lease_until', sa.Double(), nullable=True),
        sa.Column('last_attempt_at', sa.Double(), nullable=True),
        sa.Column('last_status', sa.Integer(), nullable=True),
        sa.Column('last_error', sa.String(length=255), nullable=True),
        sa.Column('response_excerpt', sa.String(length=1024), nullable=True),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('finished_at', sa.Double(), nullable=True),
        sa.CheckConstraint("state IN ('waiting', 'delivered', 'failed')", name=op.f('ck_webhook_deliveries_state')),
        sa.CheckConstraint(
            "(state = 'waiting') = (finished_at IS NULL)", name=op.f('ck_webhook_deliveries_finished_has_time')
        ),
        sa.CheckConstraint(
            "state = 'waiting' OR (lease_until IS NULL AND next_attempt_at IS NULL)",
            name=op.f('ck_webhook_deliveries_finished_rests'),
        ),
        sa.ForeignKeyConstraint(
            ['tenant_id', 'endpoint_id'],
            ['webhook_endpoints.tenant_id', 'webhook_endpoints.id'],
            name=op.f('fk_webhook_deliveries_tenant_endpoint_id_webhook_endpoints'),
        ),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_webhook_deliveries')),
        sa.UniqueConstraint('endpoint_id', 'event_id', name=op.f('uq_webhook_deliveries_endpoint_id_event_id')),
        sa.UniqueConstraint('tenant_id', 'id', name=op.f('uq_webhook_deliveries_tenant_id_id')),
    )
    op.create_index(
        'ix_webhook_deliveries_endpoint_id_created_at_id', 'webhook_deliveries', ['endpoint_id', 'created_at', 'id']
    )
    op.create_index('ix_webhook_deliveries_created_at', 'webhook_deliveries', ['created_at'])
    for name, columns, condition in (
        ('waiting', ['endpoint_id', 'next_attempt_at'], _WAITING),
        ('due', ['next_attempt_at', 'endpoint_id', 'tenant_id'], _WAITING),
        ('leased', ['lease_until', 'endpoint_id'], _LEASED),
    ):
        op.create_index(
            f'ix_webhook_deliveries_{name}',
            'webhook_deliveries',
            columns,
            sqlite_where=condition,
            postgresql_where=condition,
        )


def downgrade() -> None:
    op.drop_table('webhook_deliveries')
    op.drop_table('webhook_endpoints')

"""Keys, tenants, the audit; and whatever a row names must be of its own tenant

Revision ID: 20261125_tenants
Revises: 20261124_unreadable
Create Date: 2026-11-25

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261125_tenants'
down_revision = '20261124_unreadable'
branch_labels = None
depends_on = None

_NOUNS = ('models', 'datasets', 'jobs')
# Which column of which table names a row of which.
_NAMES = (
    ('models', 'skeleton_model_id', 'models'),
    ('jobs', 'model_id', 'models'),
    ('jobs', 'dataset_id', 'datasets'),
    ('jobs', 'calibration_dataset_id', 'datasets'),
    ('jobs', 'evaluation_dataset_id', 'datasets'),
    ('artifacts', 'job_id', 'jobs'),
    ('inspections', 'model_id', 'models'),
    ('inspections', 'job_id', 'jobs'),
)
_TABLES = ('models', 'jobs', 'artifacts', 'inspections')


def upgrade() -> None:
    _add_tables()
    for table in _NOUNS:
        with op.batch_alter_table(table) as batch_op:
            batch_op.create_unique_constraint(op.f(f'uq_{table}_tenant_id_id'), ['tenant_id', 'id'])
    for table in _TABLES:
        with op.batch_alter_table(table) as batch_op:
            for column, referred in _named_by(table):
                batch_op.drop_constraint(op.f(f'fk_{table}_{column}_{referred}'), type_='foreignkey')
                batch_op.create_foreign_key(
                    op.f(f'fk_{table}_tenant_{column}_{referred}'), referred, ['tenant_id', column], ['tenant_id', 'id']
                )


def downgrade() -> None:
    for table in _TABLES:
        with op.batch_alter_table(table) as batch_op:
            for column, referred in _named_by(table):
                batch_op.drop_constraint(op.f(f'fk_{table}_tenant_{column}_{referred}'), type_='foreignkey')
                batch_op.create_foreign_key(op.f(f'fk_{table}_{column}_{referred}'), referred, [column], ['id'])
    for table in _NOUNS:
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_constraint(op.f(f'uq_{table}_tenant_id_id'), type_='unique')
    for table in ('tenant_usage', 'tenants', 'audit_heads', 'audit_events', 'api_keys'):
        op.drop_table(table)


def _named_by(table: str) -> list[tuple[str, str]]:
    return [(column, referred) for named, column, referred in _NAMES if named == table]


def _add_tables() -> None:
    op.create_table(
        'api_keys',
        sa.Column('id', sa.String(length=30), nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('name', sa.String(length=255), nullable=False),
        sa.Column('scope', sa.String(length=32), nullable=False),
        sa.Column('secret_hash', sa.String(length=64), nullable=False),
        sa.Column('pepper_id', sa.String(length=16), nullable=False),
        sa.Column('last4', sa.String(length=4), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('expires_at', sa.Double(), nullable=True),
        sa.Column('last_used_at', sa.Double(), nullable=True),
        sa.Column('revoked_at', sa.Double(), nullable=True),
        sa.CheckConstraint("scope IN ('read', 'submit', 'manage', 'admin')", name=op.f('ck_api_keys_scope')),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_api_keys')),
    )
    op.create_index('ix_api_keys_tenant_id_created_at_id', 'api_keys', ['tenant_id', 'created_at', 'id'])
    op.create_table(
        'audit_events',
        sa.Column('seq', sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('actor', sa.String(length=255), nullable=False),
        sa.Column('action', sa.String(length=255), nullable=False),
        sa.Column('object', sa.String(length=255), nullable=False),
        sa.Column('request_id', sa.String(length=255), nullable=False),
        sa.Column('address', sa.String(length=255), nullable=False),
        sa.Column('at', sa.Double(), nullable=False),
        sa.Column('previous_hash', sa.String(length=64), nullable=False),
        sa.Column('hash', sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint('seq', name=op.f('pk_audit_events')),
    )
    op.create_index('ix_audit_events_tenant_id_seq', 'audit_events', ['tenant_id', 'seq'])
    op.create_table(
        'audit_heads',
        sa.Column('name', sa.String(length=32), nullable=False),
        sa.Column('seq', sa.BigInteger(), nullable=False),
        sa.Column('hash', sa.String(length=64), nullable=False),
        sa.CheckConstraint("name = 'audit'", name=op.f('ck_audit_heads_one')),
        sa.PrimaryKeyConstraint('name', name=op.f('pk_audit_heads')),
    )
    op.create_table(
        'tenants',
        sa.Column('id', sa.String(length=64), nullable=False),
        sa.Column('quota', sa.JSON(), nullable=False),
        sa.Column('created_at', sa.Double(), nullable=False),
        sa.Column('updated_at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_tenants')),
    )
    op.create_table(
        'tenant_usage',
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        sa.Column('day', sa.String(length=32), nullable=False),
        sa.Column('cpu_seconds', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('tenant_id', 'day', name=op.f('pk_tenant_usage')),
    )

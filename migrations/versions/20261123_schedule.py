"""Whose turn it is, on which device, and what lists tell

Revision ID: 20261123_schedule
Revises: 20261123_attempt
Create Date: 2026-11-23

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261123_schedule'
down_revision = '20261123_attempt'
branch_labels = None
depends_on = None

_TURN = ['queue', 'priority', 'tenant_id', 'not_before', 'id', 'deadline_at', 'state']
_QUEUED = "state = 'queued'"
_SHORT = "state = 'queued' AND size_class = 'short'"
_RUNNING = sa.text("state = 'running'")

# What lists tell is taken out of the documents here, so that they need not be read for it any more.
_SQLITE = (
    """UPDATE jobs SET preset = json_extract(config, '$.preset'),
       algorithms = (SELECT json_group_array(json_extract(entry.value, '$.method'))
                     FROM json_each(config, '$.algorithms') AS entry)
       WHERE config IS NOT NULL""",
    "UPDATE models SET outline = json_remove(summary, '$.node_names') WHERE summary IS NOT NULL",
    "UPDATE datasets SET outline = json_remove(summary, '$.media.classes') WHERE summary IS NOT NULL",
)
_POSTGRESQL = (
    """UPDATE jobs SET preset = config ->> 'preset',
       algorithms = (SELECT coalesce(json_agg(entry -> 'method'), '[]')
                     FROM json_array_elements(coalesce(config -> 'algorithms', '[]')) AS entry)
       WHERE config IS NOT NULL""",
    "UPDATE models SET outline = (summary::jsonb - 'node_names')::json WHERE summary IS NOT NULL",
    "UPDATE datasets SET outline = (summary::jsonb #- '{media,classes}')::json WHERE summary IS NOT NULL",
)


def upgrade() -> None:
    with op.batch_alter_table('jobs') as batch_op:
        batch_op.add_column(sa.Column('size_class', sa.String(length=32), server_default=sa.text("'long'"), nullable=False))
        batch_op.add_column(sa.Column('device', sa.String(length=32), server_default=sa.text("'auto'"), nullable=False))
        batch_op.add_column(sa.Column('preset', sa.String(length=255), nullable=True))
        batch_op.add_column(sa.Column('algorithms', sa.JSON(none_as_null=True), nullable=True))
        batch_op.create_check_constraint(op.f('ck_jobs_size_class'), "size_class IN ('short', 'long')")
        batch_op.create_check_constraint(op.f('ck_jobs_device'), "device IN ('auto', 'cpu', 'gpu')")
    for name, columns, condition in (
        ('ix_jobs_turn', _TURN, _QUEUED),
        ('ix_jobs_turn_short', [*_TURN, 'size_class'], _SHORT),
    ):
        where = sa.text(condition)
        op.create_index(name, 'jobs', columns, sqlite_where=where, postgresql_where=where)
    op.create_index(
        'ix_jobs_running', 'jobs', ['queue', 'tenant_id'], sqlite_where=_RUNNING, postgresql_where=_RUNNING
    )
    op.create_index('ix_jobs_tenant_id_queue_started_at', 'jobs', ['tenant_id', 'queue', 'started_at'])
    op.add_column('workers', sa.Column('slots', sa.Integer(), server_default=sa.text('1'), nullable=False))
    for table in ('models', 'datasets'):
        op.add_column(table, sa.Column('outline', sa.JSON(none_as_null=True), nullable=True))
    for statement in _SQLITE if op.get_bind().dialect.name == 'sqlite' else _POSTGRESQL:
        op.execute(statement)


def downgrade() -> None:
    for table in ('models', 'datasets'):
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_column('outline')
    with op.batch_alter_table('workers') as batch_op:
        batch_op.drop_column('slots')
    for name in ('ix_jobs_tenant_id_queue_started_at', 'ix_jobs_running', 'ix_jobs_turn_short', 'ix_jobs_turn'):
        op.drop_index(name, 'jobs')
    with op.batch_alter_table('jobs') as batch_op:
        for name in ('device', 'size_class'):
            batch_op.drop_constraint(op.f(f'ck_jobs_{name}'), type_='check')
        for name in ('algorithms', 'preset', 'device', 'size_class'):
            batch_op.drop_column(name)

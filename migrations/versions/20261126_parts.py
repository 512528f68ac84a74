"""Parts of nouns say whose they are: events and reports of jobs, files of models

Each gets ``tenant_id``, that of what it is a part of, and a key that allows no other.

job_events may have many millions of rows. No row is written twice for the column: it is added with the tenant that has
most of them as its default, which on both databases touches no row, and only rows of other tenants are updated. Then
PostgreSQL reads the table once, to see that the new key holds; SQLite copies it once, as for every new key, and needs
that much free disk. All of it is one transaction: who writes meanwhile waits, or tries again, as while the database is
away.

PostgreSQL may be migrated while API and workers of the version before run on. They do not know the column: a trigger
fills it for them. SQLite serves one host, which migrates before anything else starts.

Revision ID: 20261126_parts
Revises: 20261125_tenants
Create Date: 2026-11-26

"""
from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261126_parts'
down_revision = '20261125_tenants'
branch_labels = None
depends_on = None

# Which column of which table names what it is a part of.
_PARTS = (
    ('job_events', 'job_id', 'jobs'),
    ('reports', 'job_id', 'jobs'),
    ('model_files', 'model_id', 'models'),
)


def upgrade() -> None:
    for table, column, whole in _PARTS:
        _add_tenant(table, column, whole)
        with op.batch_alter_table(table) as batch_op:
            batch_op.alter_column('tenant_id', existing_type=sa.String(length=64), server_default=None)
            batch_op.drop_constraint(op.f(f'fk_{table}_{column}_{whole}'), type_='foreignkey')
            batch_op.create_foreign_key(
                op.f(f'fk_{table}_tenant_{column}_{whole}'), whole, ['tenant_id', column], ['tenant_id', 'id']
            )
        if _on_postgresql():
            _fill_for_older_code(table, column, whole)


def downgrade() -> None:
    for table, column, whole in _PARTS:
        if _on_postgresql():
            op.execute(f'DROP TRIGGER tenant_of_older_code ON {table}')
            op.execute(f'DROP FUNCTION {table}_tenant()')
        with op.batch_alter_table(table) as batch_op:
            batch_op.drop_constraint(op.f(f'fk_{table}_tenant_{column}_{whole}'), type_='foreignkey')
            batch_op.create_foreign_key(op.f(f'fk_{table}_{column}_{whole}'), whole, [column], ['id'])
            batch_op.drop_column('tenant_id')


def _on_postgresql() -> bool:
    return op.get_bind().dialect.name == 'postgresql'


def _add_tenant(table: str, column: str, whole: str) -> None:
    by_tenant = f'SELECT tenant_id FROM {whole} GROUP BY tenant_id ORDER BY count(*) DESC, tenant_id LIMIT 1'
    most = op.get_bind().execute(sa.text(by_tenant)).scalar() or 'default'
    op.add_column(table, sa.Column('tenant_id', sa.String(length=64), server_default=most, nullable=False))
    others = sa.text(
        f'UPDATE {table} SET tenant_id = (SELECT w.tenant_id FROM {whole} w WHERE w.id = {table}.{column})'
        f' WHERE {column} IN (SELECT id FROM {whole} WHERE tenant_id <> :most)'
    )
    op.get_bind().execute(others, {'most': most})


def _fill_for_older_code(table: str, column: str, whole: str) -> None:
    op.execute(
        f'CREATE FUNCTION {table}_tenant() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN'
        f' NEW.tenant_id := (SELECT w.tenant_id FROM {whole} w WHERE w.id = NEW.{column}); RETURN NEW; END $$'
    )
    op.execute(
        f'CREATE TRIGGER tenant_of_older_code BEFORE INSERT ON {table} FOR EACH ROW'
        f' WHEN (NEW.tenant_id IS NULL) EXECUTE FUNCTION {table}_tenant()'
    )

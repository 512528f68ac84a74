"""PostgreSQL tells who listens which rows have changed

Triggers, and no statements of the code: what older code writes during an update is told, too. Of rows that readers
wait for a new version is told, of workers all but that they are still there. SQLite has nothing like it.

Revision ID: 20261214_notices
Revises: 20261213_operators
Create Date: 2026-12-14

"""

from __future__ import annotations

from alembic import op

revision = '20261214_notices'
down_revision = '20261213_operators'
branch_labels = None
depends_on = None

_VERSION = 'OLD.row_version <> NEW.row_version'
# When an UPDATE is told; in the order in which everybody locks these tables.
_UPDATES = {
    'batches': _VERSION,
    'models': _VERSION,
    'datasets': _VERSION,
    # renewed leases and messages that were sent are no news
    'jobs': f'{_VERSION} OR OLD.last_seq <> NEW.last_seq',
    'inspections': _VERSION,
    'workers': "to_jsonb(OLD) - 'seen_at' <> to_jsonb(NEW) - 'seen_at'",
}
_FUNCTION = """
CREATE FUNCTION quantmill_tell() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('quantmill', TG_TABLE_NAME || ':' || COALESCE(NEW.id, OLD.id));
    RETURN NULL;
END
$$
"""


def upgrade() -> None:
    if op.get_bind().dialect.name != 'postgresql':
        return
    op.execute(_FUNCTION)
    for table, condition in _UPDATES.items():
        comes_or_goes = 'INSERT OR DELETE' if table == 'workers' else 'INSERT'
        for name, when in (
            ('tell', f'AFTER {comes_or_goes} ON {table} FOR EACH ROW'),
            ('tell_update', f'AFTER UPDATE ON {table} FOR EACH ROW WHEN ({condition})'),
        ):
            op.execute(f'CREATE TRIGGER {name} {when} EXECUTE FUNCTION quantmill_tell()')


def downgrade() -> None:
    if op.get_bind().dialect.name == 'postgresql':
        op.execute('DROP FUNCTION quantmill_tell() CASCADE')  # its triggers go with it

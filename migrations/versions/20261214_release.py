"""Jobs are released to workers one by one: workers say how many of their slots are kept, and nothing is released yet

Until now every queued job had a message with the broker, which only woke a worker.

Revision ID: 20261214_release
Revises: 20261214_notices
Create Date: 2026-12-14

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261214_release'
down_revision = '20261214_notices'
branch_labels = None
depends_on = None


# Told beside the rows themselves: where jobs come, end, or may start, which is what dispatchers wait for.
_FUNCTION = """
CREATE FUNCTION quantmill_tell_queue() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_notify('quantmill', 'queues:' || NEW.queue);
    RETURN NULL;
END
$$
"""
_WHEN = 'OLD.state <> NEW.state OR OLD.not_before <> NEW.not_before'


def upgrade() -> None:
    op.execute("UPDATE jobs SET dispatched_at = NULL WHERE state = 'queued' AND dispatched_at IS NOT NULL")
    with op.batch_alter_table('workers') as batch_op:
        batch_op.add_column(sa.Column('short_slots', sa.Integer(), server_default=sa.text('0'), nullable=False))
    if op.get_bind().dialect.name == 'postgresql':
        op.execute(_FUNCTION)
        for name, when in (('insert', 'AFTER INSERT ON jobs FOR EACH ROW'),
                           ('update', f'AFTER UPDATE ON jobs FOR EACH ROW WHEN ({_WHEN})')):
            op.execute(f'CREATE TRIGGER tell_queue_{name} {when} EXECUTE FUNCTION quantmill_tell_queue()')


def downgrade() -> None:
    if op.get_bind().dialect.name == 'postgresql':
        op.execute('DROP FUNCTION quantmill_tell_queue() CASCADE')  # its triggers go with it
    with op.batch_alter_table('workers') as batch_op:
        batch_op.drop_column('short_slots')

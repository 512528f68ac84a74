"""Deeds leave their rows of the audit unchained, and the oldest may be forgotten

Revision ID: 20261211_new_audit_events
Revises: 20261210_deleted_jobs
Create Date: 2026-12-11

"""

from __future__ import annotations

import hashlib
import json

import sqlalchemy as sa
from alembic import op

revision = '20261211_new_audit_events'
down_revision = '20261210_deleted_jobs'
branch_labels = None
depends_on = None

_TOLD = ('tenant_id', 'actor', 'action', 'object', 'request_id', 'address', 'at')


def upgrade() -> None:
    op.create_table(
        'new_audit_events',
        sa.Column('id', sa.String(length=30), nullable=False),
        sa.Column('tenant_id', sa.String(length=64), nullable=False),
        *(sa.Column(name, sa.String(length=255), nullable=False) for name in _TOLD[1:-1]),
        sa.Column('at', sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint('id', name=op.f('pk_new_audit_events')),
    )
    op.add_column('audit_heads', sa.Column('first_seq', sa.BigInteger(), nullable=True))
    op.add_column('audit_heads', sa.Column('first_hash', sa.String(length=64), nullable=True))
    _begin_where_it_does()


def downgrade() -> None:
    # older code takes rows that were forgotten for missing; hashes made anew would take the evidence from all others
    _chain()
    op.drop_column('audit_heads', 'first_hash')
    op.drop_column('audit_heads', 'first_seq')
    op.drop_table('new_audit_events')


def _begin_where_it_does() -> None:
    """Those before the first row that is there were forgotten for their age, by this version before it was left."""
    connection = op.get_bind()
    events = sa.table('audit_events', *map(sa.column, ('seq', 'previous_hash')))
    heads = sa.table('audit_heads', *map(sa.column, ('seq', 'hash', 'first_seq', 'first_hash')))
    first = sa.select(events.c.seq - 1, events.c.previous_hash).order_by(events.c.seq).limit(1)
    seq, previous = connection.execute(first).one_or_none() or (heads.c.seq, heads.c.hash)
    connection.execute(heads.update().values(first_seq=seq, first_hash=previous))


def _chain() -> None:
    """Append what is not chained yet, as older code appends it with each deed."""
    connection = op.get_bind()
    new = sa.table('new_audit_events', sa.column('id'), *map(sa.column, _TOLD))
    events = sa.table('audit_events', *map(sa.column, ('seq', *_TOLD, 'previous_hash', 'hash')))
    heads = sa.table('audit_heads', *map(sa.column, ('name', 'seq', 'hash')))
    head = connection.execute(sa.select(heads.c.seq, heads.c.hash)).one_or_none()
    if head is None:
        connection.execute(heads.insert().values(name='audit', seq=0, hash='0' * 64))
    seq, previous = (0, '0' * 64) if head is None else head
    for row in connection.execute(sa.select(*(new.c[name] for name in _TOLD)).order_by(new.c.id)).all():
        seq += 1
        digest = hashlib.sha256(json.dumps([seq, *row, previous]).encode()).hexdigest()
        values = dict(zip(_TOLD, row, strict=True))
        connection.execute(events.insert().values(seq=seq, **values, previous_hash=previous, hash=digest))
        previous = digest
    connection.execute(heads.update().values(seq=seq, hash=previous))

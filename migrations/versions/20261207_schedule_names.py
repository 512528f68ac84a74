"""Names of schedules: each once for a tenant

Revision ID: 20261207_schedule_names
Revises: 20261206_hand_overs
Create Date: 2026-12-07

"""

from __future__ import annotations

import re

import sqlalchemy as sa
from alembic import op

revision = '20261207_schedule_names'
down_revision = '20261206_hand_overs'
branch_labels = None
depends_on = None

_MOST_NAME_CHARS = 200
# What is spelled as an id would be taken for one.
_ID = re.compile(r'sch_[0-9a-hjkmnp-tv-z]{26}')
_schedules = sa.table(
    'schedules', sa.column('id', sa.String), sa.column('tenant_id', sa.String), sa.column('name', sa.String)
)


def upgrade() -> None:
    _part()
    with op.batch_alter_table('schedules') as batch_op:
        batch_op.create_unique_constraint(op.f('uq_schedules_tenant_id_name'), ['tenant_id', 'name'])


def downgrade() -> None:
    with op.batch_alter_table('schedules') as batch_op:
        batch_op.drop_constraint(op.f('uq_schedules_tenant_id_name'), type_='unique')


def _part() -> None:
    """The oldest of those of one name keeps it; the others become NAME-2, NAME-3 and so on."""
    connection = op.get_bind()
    rows = connection.execute(sa.select(_schedules).order_by(_schedules.c.id)).all()
    taken = {(row.tenant_id, row.name) for row in rows}
    kept: set[tuple[str, str]] = set()
    for row in rows:
        if (row.tenant_id, row.name) not in kept and not _ID.fullmatch(row.name):
            kept.add((row.tenant_id, row.name))
            continue
        number = 2
        while (row.tenant_id, _numbered(row.name, number)) in taken:
            number += 1
        name = _numbered(row.name, number)
        taken.add((row.tenant_id, name))
        connection.execute(sa.update(_schedules).where(_schedules.c.id == row.id).values(name=name))


def _numbered(name: str, number: int) -> str:
    suffix = f'-{number}'
    return name[: _MOST_NAME_CHARS - len(suffix)] + suffix

"""Operators of the installation, apart from admins of a tenant

Admin keys of the tenant ``default`` were those by which installations were run, and stay that, as operators. Those of
other tenants are admins of their own tenant.

Revision ID: 20261213_operators
Revises: 20261212_lease_rounds
Create Date: 2026-12-13

"""

from __future__ import annotations

from alembic import op

revision = '20261213_operators'
down_revision = '20261212_lease_rounds'
branch_labels = None
depends_on = None

_SCOPES = "scope IN ('read', 'submit', 'manage', 'admin'"


def _allow(condition: str) -> None:
    with op.batch_alter_table('api_keys') as batch_op:
        batch_op.drop_constraint(op.f('ck_api_keys_scope'), type_='check')
        batch_op.create_check_constraint(op.f('ck_api_keys_scope'), condition)


def upgrade() -> None:
    _allow(f"{_SCOPES}, 'operator')")
    op.execute("UPDATE api_keys SET scope = 'operator' WHERE scope = 'admin' AND tenant_id = 'default'")


def downgrade() -> None:
    op.execute("UPDATE api_keys SET scope = 'admin' WHERE scope = 'operator'")
    _allow(f"{_SCOPES})")

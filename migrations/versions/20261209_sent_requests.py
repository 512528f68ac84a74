"""Idempotency keys know requests by what was sent, besides by what that meant

Revision ID: 20261209_sent_requests
Revises: 20261208_fallback
Create Date: 2026-12-09

"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = '20261209_sent_requests'
down_revision = '20261208_fallback'
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.add_column('idempotency_keys', sa.Column('sent_sha256', sa.String(length=64), nullable=True))


def downgrade() -> None:
    op.drop_column('idempotency_keys', 'sent_sha256')

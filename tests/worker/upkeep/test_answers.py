"""Answers kept for repeated requests."""

from __future__ import annotations

from sqlalchemy import func, insert, select

from service.db import db_now
from service.tables import IdempotencyKey


def test_old_answers_are_forgotten(bench, collector):
    with bench.database.write() as session:
        for key, age in (("old", 10 * 86400.0), ("new", 60.0)):
            session.execute(
                insert(IdempotencyKey).values(
                    tenant_id="default", route="jobs", key=key, request_sha256="0" * 64, status=202, headers={},
                    body={}, created_at=db_now() - age,
                )
            )  # fmt: skip
    assert collector("answers").collect(100).items == 1
    with bench.database.read() as session:
        assert session.scalar(select(func.count()).select_from(IdempotencyKey)) == 1

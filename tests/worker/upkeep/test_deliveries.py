"""Deliveries of events are forgotten after their time, sent or not."""

from __future__ import annotations

from sqlalchemy import update

from service.db import db_now
from service.tables import WebhookDelivery
from service.webhooks import outbox
from tests.support.webhooks import TENANT, add_endpoint, deliveries, endpoint


def test_old_deliveries_are_forgotten(bench, collector):
    hook, _ = add_endpoint(bench.database, "https://hooks.example/")
    for number in range(3):
        with bench.database.write() as session:
            outbox.emit(session, TENANT, "job.queued", {"id": number})
    old, done, young = deliveries(bench.database)
    with bench.database.write() as session:
        for row in (old, done):
            aged = update(WebhookDelivery).where(WebhookDelivery.id == row.id)
            session.execute(aged.values(created_at=db_now() - bench.settings.webhook_retention_seconds - 60))
        ended = update(WebhookDelivery).where(WebhookDelivery.id == done.id)
        session.execute(ended.values(state="delivered", next_attempt_at=None, finished_at=1.0))
    assert collector("deliveries").count().items == 2
    assert collector("deliveries").collect(1).items == 1
    assert collector("deliveries").collect(100).items == 1
    assert [row.id for row in deliveries(bench.database)] == [young.id]
    assert endpoint(bench.database, hook).enabled

"""What the collectors of files, uploads, answers and deliveries take, and what they leave."""

from __future__ import annotations

import json

from sqlalchemy import func, insert, select, update
from typer.testing import CliRunner

from service.db import db_now
from service.resources import new_id
from service.tables import IdempotencyKey, WebhookDelivery
from service.webhooks import outbox
from tests.support.webhooks import TENANT, add_endpoint, deliveries, endpoint
from tests.worker.reconcile.rounds import add_upload, make_old
from tests.worker.workbench import Workbench
from worker.cli import app


def test_garbage_is_what_no_row_names_and_what_is_old(bench, collector):
    bench.add_model({"net.onnx": b"model"})
    bench.add_dataset(b"dataset")
    uploaded, garbage, fresh, again = (bench.put(data) for data in (b"upload", b"garbage", b"fresh garbage", b"again"))
    add_upload(bench.database, expires_in=60, sha256=uploaded)
    for path in bench.store.blobs.glob("*/*"):
        if path.name != fresh:
            make_old(path)
    assert bench.put(b"again") == again  # what is stored again is spared
    with bench.store.pinned():
        assert collector("files").collect(100).items == 0
    assert [collector("files").collect(100).items for _ in range(2)] == [1, 0]
    assert not bench.store.path(garbage).exists()
    assert len(list(bench.store.blobs.glob("*/*"))) == 5


def test_leftovers_of_uploads_are_garbage(bench, collector):
    known = add_upload(bench.database, expires_in=60)
    for name in (known, "tmpabc.copy", new_id("upl")):
        (bench.store.incoming / name).write_bytes(b"part")
        make_old(bench.store.incoming / name)
    assert collector("leftovers").collect(100).items == 2
    assert [path.name for path in bench.store.incoming.iterdir()] == [known]


def test_expired_uploads_go_with_their_bytes(bench, collector):
    old, young = add_upload(bench.database, expires_in=-1), add_upload(bench.database, expires_in=60)
    for upload_id in (old, young):
        (bench.store.incoming / upload_id).write_bytes(b"part")
    add_upload(bench.database, expires_in=-1)  # nothing was received yet
    assert [collector("uploads").collect(100).items for _ in range(2)] == [2, 0]
    assert [path.name for path in bench.store.incoming.iterdir()] == [young]


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


def test_old_deliveries_are_forgotten_sent_or_not(bench, collector):
    hook, _ = add_endpoint(bench.database, "https://hooks.example/")
    for number in range(3):
        with bench.database.write() as session:
            outbox.emit(session, TENANT, "job.queued", {"id": number})
    old, done, young = deliveries(bench.database)
    with bench.database.write() as session:
        aged = update(WebhookDelivery).where(WebhookDelivery.id.in_([old.id, done.id]))
        session.execute(aged.values(created_at=db_now() - bench.settings.webhook_retention_seconds - 60))
        ended = update(WebhookDelivery).where(WebhookDelivery.id == done.id)
        session.execute(ended.values(state="delivered", next_attempt_at=None, finished_at=1.0))
    found = collector("deliveries")
    assert (found.count().items, found.collect(1).items, found.collect(100).items) == (2, 1, 1)
    assert [row.id for row in deliveries(bench.database)] == [young.id]
    assert endpoint(bench.database, hook).enabled


# --- as commands -----------------------------------------------------------------------------------------------------


def command(bench: Workbench, *words: str) -> tuple[int, dict]:
    done = CliRunner().invoke(app, [*words, "--json", "--data-dir", str(bench.settings.data_dir)])
    return done.exit_code, json.loads(done.stdout)


def test_gc_counts_first_and_collects_then(bench: Workbench) -> None:
    garbage = bench.put(b"garbage")
    make_old(bench.store.path(garbage))
    for words, collected in (("--dry-run",), False), ((), True):
        code, lines = command(bench, "gc", *words)
        (files,) = [line for line in lines["items"] if line["name"] == "files"]
        assert (code, files["items"], files["size_bytes"], files["collected"]) == (0, 1, len(b"garbage"), collected)
        assert bench.store.path(garbage).exists() is not collected


def test_scrub_tells_what_is_damaged_and_who_names_it(bench: Workbench) -> None:
    dataset = bench.add_dataset(b"data")
    bench.add_model()
    assert command(bench, "scrub") == (0, {"files": 2, "size_bytes": 8, "damaged": []})
    path = bench.store.path(bench.put(b"data"))
    path.chmod(0o600)
    path.write_bytes(b"DATA")
    code, told = command(bench, "scrub", "--all")
    named = {"kind": "dataset", "id": dataset, "name": f"data {dataset}"}
    assert (code, told["damaged"]) == (1, [{"sha256": path.name, "damage": "digest", "named_by": [named]}])

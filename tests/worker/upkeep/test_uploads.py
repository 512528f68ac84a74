"""Uploads past their expiry."""

from __future__ import annotations

from tests.worker.reconcile.rounds import add_upload


def test_expired_uploads_go_with_their_bytes(bench, collector):
    old, young = add_upload(bench, expires_in=-1), add_upload(bench, expires_in=60)
    for upload_id in (old, young):
        (bench.store.incoming / upload_id).write_bytes(b"part")
    add_upload(bench, expires_in=-1)  # nothing was received yet
    assert collector("uploads").collect(100).items == 2
    assert collector("uploads").collect(100).items == 0
    assert [path.name for path in bench.store.incoming.iterdir()] == [young]

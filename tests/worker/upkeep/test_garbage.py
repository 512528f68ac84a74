"""Stored files that nobody names."""

from __future__ import annotations

from service.ids import new_id
from tests.worker.reconcile.rounds import add_upload, make_old


def test_garbage_is_what_no_row_names_and_what_is_old(bench, collector):
    bench.add_model({"net.onnx": b"model"})
    bench.add_dataset(b"dataset")
    uploaded, garbage, fresh = (bench.put(data) for data in (b"upload", b"garbage", b"fresh garbage"))
    add_upload(bench, expires_in=60, sha256=uploaded)
    for folder in bench.store.blobs.iterdir():
        for path in folder.iterdir():
            if path.name != fresh:
                make_old(path)
    assert collector("files").collect(100).items == 1
    assert collector("files").collect(100).items == 0
    assert not bench.store.path(garbage).exists()
    assert sum(len(list(folder.iterdir())) for folder in bench.store.blobs.iterdir()) == 4


def test_garbage_that_is_stored_again_is_spared(bench, collector):
    sha256 = bench.put(b"twice")
    make_old(bench.store.path(sha256))
    assert bench.put(b"twice") == sha256
    assert collector("files").collect(100).items == 0
    assert bench.store.path(sha256).exists()


def test_leftovers_of_uploads_are_garbage(bench, collector):
    known = add_upload(bench, expires_in=60)
    for name in (known, "tmpabc.copy", new_id("upl")):
        (bench.store.incoming / name).write_bytes(b"part")
        make_old(bench.store.incoming / name)
    assert collector("leftovers").collect(100).items == 2
    assert [path.name for path in bench.store.incoming.iterdir()] == [known]

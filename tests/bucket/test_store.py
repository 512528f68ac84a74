"""A store in a bucket: what a store in a folder does, and what a bucket does to it."""

from __future__ import annotations

import hashlib
import threading
import time
from pathlib import Path

import pytest

from service.storage import StorageAwayError, StoredFile, StoredFileCorruptError, StoredFileMissingError
from service.storage.base import file_name
from service.storage.bucket import MARK, BucketStore
from service.storage.objects import PART_BYTES
from tests.support.patience import PATIENCE_SECONDS
from tests.support.s3_faults import Fault, FaultyBucket
from tests.worker.workbench import finish

pytestmark = pytest.mark.slow  # needs a server
DATA = bytes(range(256)) * 40
LARGE = hashlib.sha256(b"seed").digest() * ((2 * PART_BYTES + 1000) // 32)


def put(store: BucketStore, data: bytes, tmp_path: Path) -> str:
    path = tmp_path / "file"
    path.write_bytes(data)
    stored = store.put_file(path)
    assert stored == StoredFile(hashlib.sha256(data).hexdigest(), len(data))
    assert not path.exists()
    return stored.sha256


def test_a_large_file_is_read_whole_in_ranges_and_through(store: BucketStore, tmp_path: Path) -> None:
    sha256 = put(store, LARGE, tmp_path)
    with store.open(sha256, len(LARGE)) as stream:
        stream.seek(PART_BYTES - 10)
        assert stream.read(30) == LARGE[PART_BYTES - 10 : PART_BYTES + 20]
        stream.seek(-5, 2)
        assert stream.read() == LARGE[-5:]
        stream.seek(0)
        assert stream.read() == LARGE
    read = store.read_through(sha256, lambda block: None)
    assert (read.damage, read.size_bytes, read.identity) == (None, len(LARGE), store.identity(sha256))
    with store.lend(sha256) as path:
        assert path.read_bytes() == LARGE


def test_what_is_not_there_damaged_or_of_another_size_is_told(store: BucketStore, tmp_path: Path) -> None:
    sha256 = put(store, DATA, tmp_path)
    with pytest.raises(StoredFileCorruptError):
        store.open(sha256, len(DATA) + 1)
    store.objects.put(file_name(sha256), b"other bytes")
    assert store.read_through(sha256, lambda block: None).damage == "digest"
    with pytest.raises(StoredFileCorruptError), store.lend(sha256):
        pass
    assert not list((tmp_path / "copies" / "sha256").rglob("*.part")), "half a copy was left"
    before = store.identity(sha256)
    put(store, DATA, tmp_path)  # stored again, it is whole again
    assert store.read_through(sha256, lambda block: None).damage is None
    assert store.identity(sha256) != before
    store.objects.delete(file_name(sha256))
    assert store.read_through(sha256, lambda block: None).damage == "missing"
    with pytest.raises(StoredFileMissingError):
        store.ensure(sha256)
    assert store.identity(sha256) is None


def test_another_bucket_is_no_store_that_lost_all_its_files(
    store: BucketStore, bucket_url: str, tmp_path: Path
) -> None:
    """Jobs wait for it, and do not fail."""
    sha256 = put(store, DATA, tmp_path)
    store.objects.delete(MARK, file_name(sha256))
    used = BucketStore(bucket_url, tmp_path / "others", cache_bytes=0)  # by an installation that has files
    (tmp_path / "file").write_bytes(DATA)
    for use in (lambda: used.open(sha256), used.probe, lambda: used.put_file(tmp_path / "file")):
        with pytest.raises(StorageAwayError, match="mark is missing"):
            use()
    assert store.probe() == "reachable", "of an installation without files"
    with pytest.raises(StoredFileMissingError):
        used.open(sha256)


def test_the_trash_gives_back_and_keeps_what_was_stored_anew(store: BucketStore, tmp_path: Path) -> None:
    first, second = put(store, b"first", tmp_path), put(store, b"second", tmp_path)
    old = {file.sha256 for files in store.old_files(-1) for file in files}
    assert old == {first, second}
    assert not store.discard(first, age_seconds=3600), "it is young"
    assert store.discard(first, age_seconds=-1)
    assert store.discard(second, age_seconds=-1)
    assert not list(store.old_files(-1)), "they would be discarded again and again"
    assert {file.sha256: file.size_bytes for file in store.old_trash(-1)} == {first: 5, second: 6}
    store.ensure(first)  # who names it takes it back
    assert not store.take_back(first)
    assert store.discard(first, age_seconds=-1)
    assert store.take_back(first)
    time.sleep(1.1)  # a bucket's clock shows whole seconds
    put(store, b"second", tmp_path)
    store.purge(second)
    store.ensure(second)
    assert store.discard(first, age_seconds=-1)
    time.sleep(1.1)
    store.objects.put(f"trash/{first}", b"")
    store.purge(first)
    with pytest.raises(StoredFileMissingError):
        store.ensure(first)
    assert not list(store.old_trash(-1))


@pytest.mark.parametrize("fault", ["unavailable", "reset", "truncate"])
def test_a_fault_that_passes_is_not_seen_and_one_that_stays_is_the_stores(
    fault: Fault, store: BucketStore, proxy: FaultyBucket, tmp_path: Path
) -> None:
    sha256 = put(store, LARGE, tmp_path)
    with proxy.broken(fault, method="GET", times=2):
        assert store.read_through(sha256, lambda block: None).damage is None
    with proxy.broken(fault), pytest.raises(StorageAwayError):
        store.read_through(sha256, lambda block: None)
    with proxy.broken(fault, method="GET"), pytest.raises(StorageAwayError), store.lend(sha256):
        pass
    if fault != "truncate":
        (tmp_path / "file").write_bytes(LARGE)
        with proxy.broken(fault), pytest.raises(StorageAwayError):
            store.put_file(tmp_path / "file")
        assert (tmp_path / "file").read_bytes() == LARGE, "what was not stored is gone"


@pytest.mark.long
def test_a_server_that_does_not_answer_is_away(store: BucketStore, proxy: FaultyBucket, tmp_path: Path) -> None:
    sha256 = put(store, DATA, tmp_path)
    with proxy.broken("hang"):
        with pytest.raises(StorageAwayError):
            store.ensure(sha256)
        (tmp_path / "file").write_bytes(LARGE)
        with pytest.raises(StorageAwayError):
            store.put_file(tmp_path / "file")
    store.ensure(sha256)


def test_who_has_patience_waits_for_a_bucket_that_is_away(
    store: BucketStore, proxy: FaultyBucket, bucket_url: str, tmp_path: Path
) -> None:
    sha256 = put(store, DATA, tmp_path)
    patient = BucketStore(bucket_url, tmp_path / "others", cache_bytes=0, patience_seconds=600)
    checks: list[str] = []
    came = threading.Event()

    def check() -> None:
        checks.append("again")
        if len(checks) == 4:
            came.set()

    def use() -> None:
        with patient.lend(sha256, check) as path:
            assert path.read_bytes() == DATA

    with proxy.broken("unavailable"):
        thread = threading.Thread(target=use)
        thread.start()
        assert came.wait(PATIENCE_SECONDS)
    finish(thread)

    class EndedError(Exception):
        pass

    def end() -> None:
        raise EndedError

    with proxy.broken("unavailable"), pytest.raises(EndedError), patient.lend(sha256, end):
        pass


def test_slow_listing_is_one_request_a_page(store: BucketStore, proxy: FaultyBucket, tmp_path: Path) -> None:
    for number in range(5):
        put(store, str(number).encode(), tmp_path)
    proxy.seen.clear()
    with proxy.broken("slow"):
        assert sum(map(len, store.old_files(-1))) == 5
    assert len(proxy.seen) == 2, "the trash, and the files"


def test_copies_go_by_their_last_use_and_never_while_they_are_used(bucket_url: str, tmp_path: Path) -> None:
    store = BucketStore(bucket_url, tmp_path / "copies", cache_bytes=2500, may_begin=lambda: True)
    names = [put(store, bytes([number]) * 1000, tmp_path) for number in range(4)]
    with store.lend(names[0]) as first:
        for name in names[1:3]:
            with store.lend(name):
                pass
        assert first.exists()
        assert store.copies.size_bytes() == 2000, "the second had to go"
    with store.lend(names[3]):
        there = {path.name for path in (tmp_path / "copies" / "sha256").glob("??/*")}
    assert there == {names[2], names[3]}


def test_a_copy_that_a_disk_has_damaged_is_fetched_again(store: BucketStore, tmp_path: Path) -> None:
    sha256 = put(store, DATA, tmp_path)
    with store.lend(sha256) as path:
        path.chmod(0o600)
        path.write_bytes(DATA[:-1] + b"?")
    store.copy_to(sha256, tmp_path / "copy")
    assert (tmp_path / "copy").read_bytes() == DATA

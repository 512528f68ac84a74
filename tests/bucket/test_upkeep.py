"""Verification, collection and backups of an installation whose files are in a bucket."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import delete

from service.db import Database
from service.files import repository as files
from service.settings import Settings
from service.storage import StorageAwayError
from service.storage.base import file_name
from service.storage.bucket import BucketStore
from service.tables import Upload
from tests.bucket.test_store import put
from tests.support.s3_faults import FaultyBucket
from tests.support.s3_server import Bucket
from tests.worker.reconcile.rounds import add_upload
from tests.worker.upkeep.yard import ANY_AGE
from worker.upkeep import garbage
from worker.upkeep.backup import make_backup
from worker.upkeep.restore import restore_backup
from worker.upkeep.scrub import Scrubber

pytestmark = pytest.mark.slow  # needs a server


@pytest.fixture
def settings(bucket_url: str, sqlite_url: str, tmp_path: Path) -> Settings:
    home = tmp_path / "home"
    home.mkdir()
    shutil.copyfile(sqlite_url.removeprefix("sqlite:///"), home / "service.db")
    return Settings(data_dir=home, storage_url=bucket_url)


@pytest.fixture
def database(settings: Settings) -> Iterator[Database]:
    with closing(Database(settings.database_url)) as found:
        yield found


def scrub(database: Database, store: BucketStore) -> dict[str, str]:
    """What a whole pass finds damaged."""
    scrubber = Scrubber(database, store, period_seconds=3600)
    scrubber.begin_anew()
    while scrubber.step() is not None:
        pass
    with database.read() as session:
        return {found.sha256: found.damage for found in files.damaged(session)}


def test_what_no_row_names_goes_in_two_steps(store: BucketStore, database: Database, tmp_path: Path) -> None:
    kept, gone, named_late = (put(store, data, tmp_path) for data in (b"kept", b"gone", b"late"))
    add_upload(database, expires_in=3600, sha256=kept)
    assert garbage.discard_garbage(database, store, 10, age_seconds=3600).items == 0, "they are young"
    time.sleep(1.1)  # a bucket's clock shows whole seconds
    assert garbage.discard_garbage(database, store, 10, age_seconds=ANY_AGE).items == 2
    assert garbage.discard_garbage(database, store, 10, age_seconds=ANY_AGE).items == 0
    add_upload(database, expires_in=3600, sha256=named_late)
    assert garbage.empty_trash(database, store, 10, age_seconds=ANY_AGE).items == 1
    assert [store.identity(sha256) is not None for sha256 in (kept, gone, named_late)] == [True, False, True]
    assert not list(store.old_trash(ANY_AGE))


def test_verification_tells_damage_and_nothing_while_the_bucket_is_away(
    store: BucketStore, database: Database, proxy: FaultyBucket, tmp_path: Path
) -> None:
    whole, damaged, gone = (put(store, data, tmp_path) for data in (b"whole", b"damaged", b"gone"))
    for sha256 in (whole, damaged, gone):
        add_upload(database, expires_in=3600, sha256=sha256)
    assert scrub(database, store) == {}
    store.objects.put(file_name(damaged), b"d?maged")
    store.objects.delete(file_name(gone))
    with proxy.broken("unavailable"), pytest.raises(StorageAwayError):
        scrub(database, store)
    assert scrub(database, store) == {damaged: "digest", gone: "missing"}
    put(store, b"damaged", tmp_path)
    assert scrub(database, store) == {gone: "missing"}


def test_a_backup_is_restored_into_another_bucket(
    settings: Settings, store: BucketStore, database: Database, s3: Bucket, tmp_path: Path
) -> None:
    kept, gone = put(store, b"kept", tmp_path), put(store, b"gone", tmp_path)
    for sha256 in (kept, gone):
        add_upload(database, expires_in=3600, sha256=sha256)
    store.objects.delete(file_name(gone))
    done = make_backup(settings, tmp_path / "backup")
    assert [file.sha256 for file in done.manifest.files] == [kept]
    assert [(file.sha256, file.damage) for file in done.manifest.missing] == [(gone, "missing")]
    with database.write() as session:
        session.execute(delete(Upload))
    other = Settings(data_dir=tmp_path / "other", storage_url=s3.make())
    restore_backup(other, tmp_path / "backup")
    found = BucketStore(other.storage_url, tmp_path / "copies-of-other", cache_bytes=0)
    assert found.read_through(kept, lambda block: None).damage is None
    with closing(Database(other.database_url)) as restored, restored.read() as session:
        assert {file.sha256 for file in files.list_named(session)} == {kept, gone}

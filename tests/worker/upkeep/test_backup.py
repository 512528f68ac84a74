"""``quantmill backup`` and ``quantmill restore``: while jobs come in, and step by step."""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import delete
from typer.testing import CliRunner

from service.contracts.command_errors import (
    BackupDamagedError,
    BackupPlaceError,
    BackupUnsupportedError,
    BackupVersionError,
    DataDirInUseError,
    DataDirNotEmptyError,
    FileAccessError,
)
from service.contracts.errors import QuantmillError
from service.db import Database, current_revision, head_revision, migrate
from service.jobs import transitions
from service.settings import Settings
from service.storage import FileStore, file_sha256
from service.tables import Dataset, Job, Model, ModelFile
from tests.worker.reconcile.rounds import add_upload, claim
from tests.worker.upkeep.yard import ANY_AGE
from tests.worker.workbench import Workbench, finish, wait_for
from worker.cli import app
from worker.embedded import LOCK_FILE, lock_data_dir
from worker.upkeep import garbage
from worker.upkeep.backup import (
    MANIFEST_FILE,
    CopiedFile,
    database_path,
    held,
    make_backup,
    read_manifest,
    stored_path,
)
from worker.upkeep.restore import restore_backup

BEFORE_WAITING = "20261122_workers"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return tmp_path / "copy"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Iterator[Settings]:
    """Settings of a data directory that is not there; whatever comes of it, nothing is left beside it."""
    home = tmp_path / "elsewhere"
    home.mkdir()
    yield Settings(data_dir=home / "data", threads=1)
    assert {path.name for path in home.iterdir()} <= {"data"}


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def rows_of(settings: Settings, table: type) -> list:
    database = Database(settings.database_url)
    with database.read() as session:
        found = list(session.query(table))
    database.close()
    return found


def refused(error: type[QuantmillError], settings: Settings, source: Path) -> str:
    """Restoring is refused, and leaves everything as it was; what was said."""
    home = settings.data_dir.parent
    before = files_of(home)
    with pytest.raises(error) as caught:
        restore_backup(settings, source)
    assert files_of(home) == before
    assert caught.value.hint
    return caught.value.detail


def forget_datasets(bench: Workbench) -> None:
    with bench.database.write() as session:
        session.execute(delete(Dataset))


def test_nothing_is_collected_beside_a_backup(bench: Workbench, copy: Path, elsewhere: Settings) -> None:
    models = [bench.add_model({"net.onnx": bytes([number])}) for number in range(3)]
    bench.add_dataset(b"data")

    def forget_and_collect(sha256: str) -> None:
        forget_datasets(bench)
        assert garbage.discard_garbage(bench.database, bench.store, 100, age_seconds=ANY_AGE).items == 0
        garbage.empty_trash(bench.database, bench.store, 100, age_seconds=ANY_AGE)

    done = make_backup(bench.settings, copy, on_file=forget_and_collect)
    assert (done.copied, done.manifest.missing) == (4, [])
    assert garbage.discard_garbage(bench.database, bench.store, 100, age_seconds=ANY_AGE).items == 1
    restore_backup(elsewhere, copy)
    assert len(rows_of(elsewhere, Dataset)) == 1
    assert {model.id for model in rows_of(elsewhere, Model)} == set(models)


def test_what_comes_in_meanwhile_is_whole_or_not_there(bench: Workbench, copy: Path, elsewhere: Settings) -> None:
    before, over, meanwhile = bench.submit(), threading.Event(), list[str]()

    def submit() -> None:
        while not over.is_set():
            meanwhile.append(bench.submit(model_id=bench.add_model({"net.onnx": len(meanwhile).to_bytes(8)})))

    thread = threading.Thread(target=submit)
    thread.start()
    wait_for(lambda: meanwhile)
    for _ in range(2):
        make_backup(bench.settings, copy)
    over.set()
    finish(thread)
    restore_backup(elsewhere, copy)
    there, store = {job.id for job in rows_of(elsewhere, Job)}, FileStore(elsewhere.storage_dir)
    assert {before} < there <= {before, *meanwhile}
    for file in rows_of(elsewhere, ModelFile):
        assert file_sha256(store.path(file.sha256)) == file.sha256


def test_the_second_backup_copies_what_is_new_and_forgets_what_is_gone(bench: Workbench, copy: Path) -> None:
    kept, gone, new = b"kept", b"gone", b"new one"
    bench.add_model({"net.onnx": kept})
    bench.add_dataset(gone)
    bench.put(b"no row names this")
    first = make_backup(bench.settings, copy)
    assert (first.copied, first.copied_bytes, len(first.manifest.files)) == (2, 8, 2)
    forget_datasets(bench)
    bench.add_dataset(new)
    second = make_backup(bench.settings, copy)
    assert (second.copied, second.copied_bytes, len(second.manifest.files)) == (1, 7, 2)
    assert read_manifest(copy) == second.manifest
    found = files_of(copy)
    blobs = {name: data for name, data in found.items() if name.startswith("store")}
    assert sorted(blobs.values()) == sorted([kept, new])
    assert set(found) - set(blobs) == {MANIFEST_FILE, "backup.lock", f"database/{second.manifest.database.sha256}.db"}


def test_a_backup_that_is_cut_off_leaves_the_one_before(bench: Workbench, copy: Path, elsewhere: Settings) -> None:
    def cut_off(sha256: str) -> None:
        raise KeyboardInterrupt

    dataset = bench.add_dataset(b"first")
    with pytest.raises(KeyboardInterrupt):
        make_backup(bench.settings, copy, on_file=cut_off)
    refused(BackupPlaceError, elsewhere, copy)  # there was none, and it can be made again
    done = make_backup(bench.settings, copy)
    assert done.copied == 1
    forget_datasets(bench)
    bench.add_dataset(b"second")
    with pytest.raises(KeyboardInterrupt):
        make_backup(bench.settings, copy, on_file=cut_off)
    assert restore_backup(elsewhere, copy) == done.manifest
    assert [found.id for found in rows_of(elsewhere, Dataset)] == [dataset]


def test_jobs_stay_as_they_were_and_those_that_ran_are_not_charged(bench, copy, elsewhere):
    queued, ran, stopped = (bench.submit(deadline_seconds=3600.0) for _ in range(3))
    claim(bench, ran)
    claim(bench, stopped)
    bench.cancel(stopped)
    before = bench.job(queued)
    make_backup(bench.settings, copy)
    restore_backup(elsewhere, copy)
    restored = Database(elsewhere.database_url)
    with restored.write() as session:
        assert transitions.expire_leases(session) == []
    restored.close()
    jobs = {job.id: job for job in rows_of(elsewhere, Job)}
    same = ("state", "attempt", "not_before", "created_at", "dispatched_at", "interruptions", "last_seq")
    assert [getattr(jobs[queued], name) for name in same] == [getattr(before, name) for name in same]
    assert jobs[queued].deadline_at > before.deadline_at
    assert jobs[ran].deadline_at > bench.job(ran).deadline_at
    assert (jobs[ran].state, jobs[ran].attempt, jobs[ran].interruptions) == ("queued", 1, 1)
    assert jobs[ran].waiting["code"] == "restored"
    assert jobs[stopped].state == "canceled"
    assert bench.states(queued, ran, stopped) == ["queued", "running", "running"]


def test_every_flipped_byte_is_refused(bench: Workbench, copy: Path, elsewhere: Settings) -> None:
    bench.add_dataset(b"some data")
    done = make_backup(bench.settings, copy)
    (stored,) = (stored_path(copy, file.sha256) for file in done.manifest.files)
    for path in (stored, copy / "database" / f"{done.manifest.database.sha256}.db", copy / MANIFEST_FILE):
        path.chmod(0o600)
        data = path.read_bytes()
        for position in (0, len(data) // 2, len(data) - 1):
            path.write_bytes(data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :])
            assert str(path) in refused(BackupDamagedError, elsewhere, copy)
        path.write_bytes(data)
    stored.write_bytes(b"SOME DATA")
    assert make_backup(bench.settings, copy).copied == 0
    refused(BackupDamagedError, elsewhere, copy)
    assert make_backup(bench.settings, copy, verify=True).copied == 1, "it mends a copy, and nothing less does"
    stored.unlink()
    assert str(stored) in refused(BackupDamagedError, elsewhere, copy)
    assert make_backup(bench.settings, copy, verify=True).copied == 1
    restore_backup(elsewhere, copy)
    assert FileStore(elsewhere.storage_dir).path(stored.name).read_bytes() == b"some data"


def test_restoring_reads_each_file_once(bench: Workbench, copy: Path, elsewhere: Settings) -> None:
    size_bytes = 16 * 1024 * 1024
    bench.add_dataset(bytes(size_bytes))
    make_backup(bench.settings, copy)

    def read_bytes() -> int:
        return int(Path("/proc/self/io").read_text().split()[1])

    before = read_bytes()
    restore_backup(elsewhere, copy)
    assert size_bytes <= read_bytes() - before < 1.5 * size_bytes


def test_damaged_and_missing_files_are_told_and_the_rest_is_copied(bench, copy, elsewhere):
    for data in (b"whole", b"damaged", b"missing", b"unreadable"):
        bench.add_dataset(data)
    upload = add_upload(bench.database, expires_in=3600.0)
    (bench.store.incoming / upload).write_bytes(b"the beginning")
    paths = {path.read_bytes(): path for path in bench.store.blobs.rglob("*") if path.is_file()}
    paths[b"damaged"].chmod(0o600)
    paths[b"damaged"].write_bytes(b"DAMAGED")
    paths[b"missing"].unlink()
    paths[b"unreadable"].unlink()
    paths[b"unreadable"].symlink_to("/proc/self/mem")  # reading it fails with EIO
    done = CliRunner().invoke(app, ["backup", str(copy), "--json", "--data-dir", str(bench.settings.data_dir)])
    told = json.loads(done.stdout)
    kinds = {b"damaged": "digest", b"missing": "missing", b"unreadable": "unreadable"}
    expected = {paths[data].name: kind for data, kind in kinds.items()}
    assert (done.exit_code, told["copied"], told["open_uploads"]) == (1, 1, 1)
    assert {file["sha256"]: file["damage"] for file in told["missing"]} == expected
    done = CliRunner().invoke(app, ["restore", str(copy), "--data-dir", str(elsewhere.data_dir)])
    assert done.exit_code == 0
    assert all(f"{sha256}  {damage}: not in the backup" in done.stdout for sha256, damage in expected.items())
    assert [path.read_bytes() for path in (elsewhere.storage_dir / "sha256").rglob("*") if path.is_file()] == [b"whole"]


def test_only_an_empty_place_is_restored_into(bench: Workbench, copy: Path, elsewhere: Settings) -> None:
    make_backup(bench.settings, copy)
    with held(copy, writing=True):
        refused(BackupPlaceError, elsewhere, copy)
        with pytest.raises(BackupPlaceError):
            make_backup(bench.settings, copy)
    elsewhere.data_dir.write_text("no folder")
    refused(DataDirNotEmptyError, elsewhere, copy)
    elsewhere.data_dir.unlink()
    elsewhere.data_dir.mkdir()
    with lock_data_dir(elsewhere.data_dir):
        refused(DataDirInUseError, elsewhere, copy)
    (elsewhere.data_dir / "notes.txt").write_text("mine")
    refused(DataDirNotEmptyError, elsewhere, copy)


def test_an_empty_folder_is_replaced_and_can_be_backed_up_in_turn(bench, copy, elsewhere, tmp_path):
    bench.add_dataset(b"data")
    first = make_backup(bench.settings, copy).manifest
    elsewhere.data_dir.mkdir()
    left = elsewhere.data_dir.with_name(".data.restoring")
    (left / "store").mkdir(parents=True)
    (left / "service.db").write_bytes(b"half")
    with held(copy, writing=False):
        restore_backup(elsewhere, copy)
    assert {path.name for path in elsewhere.data_dir.iterdir()} == {"service.db", "store", LOCK_FILE}
    # nobody has the database open: it has no log beside it
    second = make_backup(elsewhere, tmp_path / "second").manifest
    assert (second.files, second.revision) == (first.files, first.revision)
    stored = FileStore(elsewhere.storage_dir).path(first.files[0].sha256)
    assert file_sha256(stored) == stored.name


def test_what_is_not_in_the_data_directory_is_refused(bench, copy, elsewhere, tmp_path):
    with pytest.raises(FileAccessError):
        make_backup(elsewhere, copy)
    assert not copy.exists(), "no service, no backup"
    make_backup(bench.settings, copy)
    for url in ("postgresql://127.0.0.1/quantmill", f"sqlite:///{tmp_path / 'other.db'}"):
        settings = Settings(data_dir=elsewhere.data_dir, database_url=url)
        with pytest.raises(BackupUnsupportedError) as caught:
            make_backup(settings, tmp_path / "other")
        assert "pg_dump" in caught.value.hint
        assert str(settings.storage_dir) in caught.value.hint
        refused(BackupUnsupportedError, settings, copy)
    refused(BackupUnsupportedError, Settings(data_dir=elsewhere.data_dir, storage_dir=tmp_path / "store"), copy)


def test_a_backup_takes_no_place_of_others_nor_what_only_looks_like_one(bench: Workbench, tmp_path: Path) -> None:
    """Others have a manifest.json, too, and a folder called database."""
    mine, theirs, beside = (tmp_path / name for name in ("mine", "theirs", "beside"))
    mine.mkdir()
    (theirs / "database").mkdir(parents=True)
    (theirs / "database" / "customers.db").write_text("theirs")
    (theirs / MANIFEST_FILE).write_text('{"name": "a web page"}')
    make_backup(bench.settings, beside)
    for folder in (mine, beside):
        (folder / "notes.txt").write_text("mine")
    taken = (mine, beside, bench.settings.data_dir / "copy", bench.settings.storage_dir)
    for folder, error in ((theirs, BackupDamagedError), *((folder, BackupPlaceError) for folder in taken)):
        before = files_of(tmp_path)
        with pytest.raises(error):
            make_backup(bench.settings, folder)
        assert files_of(tmp_path) == before
    (beside / "notes.txt").unlink()
    (beside / "database" / "older.sql").write_text("mine")
    make_backup(bench.settings, beside)
    assert (beside / "database" / "older.sql").read_text() == "mine"


def test_a_backup_of_a_newer_version_is_refused(bench: Workbench, copy: Path, elsewhere: Settings) -> None:
    manifest = make_backup(bench.settings, copy).manifest
    manifest.model_copy(update={"revision": "30000101_future"}).write(copy)
    assert "30000101_future" in refused(BackupVersionError, elsewhere, copy)
    manifest.model_copy(update={"format": 2}).write(copy)
    assert "format 2" in refused(BackupVersionError, elsewhere, copy)


def test_a_backup_of_an_older_version_is_brought_up_to_date(tmp_path: Path, copy: Path, elsewhere: Settings) -> None:
    old = Settings(data_dir=tmp_path / "old", threads=1)
    old.make_folders()
    migrate(old.database_url)
    manifest = make_backup(old, copy).manifest
    path = database_path(copy, manifest.database.sha256)
    migrate(f"sqlite:///{path}", BEFORE_WAITING)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA journal_mode=DELETE")
    database = CopiedFile(sha256=file_sha256(path), size_bytes=path.stat().st_size)
    path.replace(database_path(copy, database.sha256))
    manifest.model_copy(update={"database": database, "revision": BEFORE_WAITING}).write(copy)
    restore_backup(elsewhere, copy)
    restored = Database(elsewhere.database_url)
    assert current_revision(restored) == head_revision()
    restored.close()

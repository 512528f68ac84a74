"""Small parts of the API server: ids, settings, store, cursors, ranges, names, problems."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from service.artifacts.content import Content, content_disposition, content_range
from service.artifacts.schemas import RangeNotSatisfiableError
from service.client import ApiError
from service.contracts.errors import QuantmillError
from service.http import etag_matches
from service.ids import is_id, new_id
from service.pagination import CursorCodec, InvalidCursorError, Position
from service.problems.router import problem_types
from service.server_urls import driver_url
from service.settings import Settings
from service.storage import FileStore, StoredFileCorruptError, StoredFileMissingError, file_sha256
from tests.support.each import each
from tests.support.patience import PATIENCE_SECONDS
from tests.support.source import files


def test_ids_sort_by_time_and_have_a_form(monkeypatch: pytest.MonkeyPatch) -> None:
    assert len({new_id("job") for _ in range(1000)}) == 1000
    clock = count(1_790_000_000_000_000_000, 1_000_000)
    monkeypatch.setattr("service.ids.time", SimpleNamespace(time_ns=lambda: next(clock)))
    ids = [new_id("mdl") for _ in range(50)]
    assert ids == sorted(ids)
    value = ids[0]
    assert len(value) == 30 and is_id(value, "mdl")
    assert not is_id(value, "job")
    for other in ("", "mdl_", value[:-1], value + "0", value.upper(), value.replace("_", "-"), value[:-1] + "\n"):
        assert not is_id(other, "mdl")


def test_settings_fill_in_everything_from_the_data_folder(tmp_path: Path) -> None:
    settings = Settings(data_dir=tmp_path)
    assert settings.database_url == f"sqlite:///{tmp_path}/service.db"
    folders = {"store": settings.storage_dir, "scratch": settings.scratch_dir}
    assert folders == {name: tmp_path / name for name in folders} and settings.threads >= 1
    settings.make_folders()
    assert {path.name for path in tmp_path.iterdir()} == set(folders)


def test_settings_come_from_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("QUANTMILL_DATABASE_URL", "postgresql://user@db/quantmill")
    monkeypatch.setenv("QUANTMILL_BROKER_URL", "redis://cache/3")
    monkeypatch.setenv("QUANTMILL_API_KEY", "secret-word")
    monkeypatch.setenv("QUANTMILL_PORT", "")
    settings = Settings()
    assert settings.database_url == "postgresql+psycopg://user@db/quantmill"
    assert settings.broker_url == "redis://cache/3"
    assert settings.port == 8000
    assert settings.data_dir == tmp_path / ".quantmill"
    assert "secret-word" not in repr(settings)


def test_settings_that_do_not_fit_or_are_spelled_otherwise(tmp_path: Path) -> None:
    assert Settings(data_dir=tmp_path, broker_url=f"filesystem://{tmp_path}/q").broker_url == "", "as it was called"
    with pytest.raises(ValidationError, match="renew_seconds"):
        Settings(lease_seconds=5, renew_seconds=5)
    for url in ("postgres://h/d", "postgresql://h/d", "postgresql+psycopg://h/d"):
        assert driver_url(url) == "postgresql+psycopg://h/d"
    assert driver_url("sqlite:///x") == "sqlite:///x"


def write(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.fixture
def store(tmp_path: Path) -> FileStore:
    return FileStore(tmp_path / "store")


def test_a_stored_file_is_named_by_its_digest_and_equal_ones_are_stored_once(store: FileStore, tmp_path: Path) -> None:
    source = write(tmp_path / "a", b"data")
    stored = store.put_file(source)
    assert (stored.sha256, stored.size_bytes) == (hashlib.sha256(b"data").hexdigest(), 4)
    assert not source.exists()
    path = store.path(stored.sha256)
    assert path.read_bytes() == b"data" and path.stat().st_mode & 0o222 == 0
    with store.open(stored.sha256, 4) as stream:
        assert stream.read() == b"data"
    with pytest.raises(StoredFileCorruptError):
        store.open(stored.sha256, 5)
    with pytest.raises(StoredFileMissingError):
        store.open("0" * 64)
    os.utime(path, (1.0, 1.0))
    assert store.put_file(write(tmp_path / "b", b"data"), sha256=stored.sha256) == stored
    assert path.stat().st_mtime > 1000, "it stays young"
    assert not (tmp_path / "b").exists()
    for damaged in (b"da", b"dat4"):
        path.chmod(0o600)
        path.write_bytes(damaged)
        store.put_file(write(tmp_path / "b", b"data"))
        assert path.read_bytes() == b"data"
    assert list(store.incoming.iterdir()) == []


def test_whoever_stores_a_file_does_not_learn_whether_somebody_has_it(store: FileStore) -> None:
    """The service reads as much of new bytes as of known ones: nothing."""
    read = []
    for _ in range(2):
        source = write(store.incoming / "a", bytes(2**22))
        before = int(Path("/proc/self/io").read_text().split()[1])
        store.put_file(source, sha256=hashlib.sha256(bytes(2**22)).hexdigest(), keep=True)
        read.append(int(Path("/proc/self/io").read_text().split()[1]) - before)
    assert max(read) < 2**16, read


def test_a_kept_file_lies_in_both_places_until_it_is_forgotten(store: FileStore) -> None:
    source = write(store.incoming / "a", b"data")
    for _ in range(2):
        stored = store.put_file(source, keep=True)
        assert source.read_bytes() == store.path(stored.sha256).read_bytes() == b"data"
    store.forget_source(source, stored.sha256)
    path = store.path(stored.sha256)
    assert path.read_bytes() == b"data" and path.stat().st_mode & 0o222 == 0
    assert list(store.incoming.iterdir()) == []


@each("name", ["", "..", "../" * 20 + "etc/passwd", "A" * 64, "0" * 63, "0" * 65, "0" * 63 + "\n"])
def test_only_digests_become_paths(store: FileStore, name: str) -> None:
    with pytest.raises(ValueError, match="sha256"):
        store.path(name)


def test_a_file_from_another_disk_is_copied(store: FileStore) -> None:
    others = [place for place in map(Path, ("/dev/shm", "/tmp")) if place.is_dir()]
    others = [place for place in others if place.stat().st_dev != store.root.stat().st_dev]
    if not others:
        pytest.skip("there is no second file system here")
    source = write(others[0] / f"quantmill-{os.getpid()}", b"data")
    stored = store.put_file(source)
    assert file_sha256(store.path(stored.sha256)) == stored.sha256
    assert not source.exists()
    assert list(store.incoming.iterdir()) == []


CODEC = CursorCodec(Settings(), "jobs")


@given(st.floats(min_value=0, max_value=4e9), st.text(min_size=1, max_size=30), st.text(max_size=200))
def test_cursors_come_back_exactly_and_made_up_ones_are_refused(created_at: float, noun_id: str, made_up: str) -> None:
    position = Position(created_at, noun_id)
    assert CODEC.decode(CODEC.encode(position)) == position
    with pytest.raises(InvalidCursorError):
        CODEC.decode(made_up)


def test_cursors_are_bound_to_scope_and_key() -> None:
    cursor = CODEC.encode(Position(1.5, "job_x"))
    for other in (CursorCodec(Settings(), "models"), CursorCodec(Settings(api_key="k"), "jobs")):
        with pytest.raises(InvalidCursorError):
            other.decode(cursor)


@given(st.text(max_size=300))
def test_any_name_is_safe_in_a_header(name: str) -> None:
    header = content_disposition(name)
    assert header.startswith('attachment; filename="')
    assert all(32 <= ord(character) < 127 for character in header)
    plain = header.removeprefix('attachment; filename="').partition('"')[0]
    assert plain
    assert not set(plain) & set('/\\"\r\n')
    assert plain not in (".", "..")


def test_names_keep_what_they_can() -> None:
    for name, header in (
        ("model.int8.onnx", 'attachment; filename="model.int8.onnx"'),
        ("../../etc/passwd", 'attachment; filename="_.._etc_passwd"'),
        ("modèle.onnx", "attachment; filename=\"modele.onnx\"; filename*=UTF-8''mod%C3%A8le.onnx"),
    ):
        assert content_disposition(name) == header


@given(st.binary(min_size=1, max_size=50), st.text(alphabet="bytes=-0123456789, ", max_size=20))
def test_a_range_is_within_the_file_or_refused(data: bytes, header: str) -> None:
    content = Content("f", "x/y", len(data), hashlib.sha256(data).hexdigest())
    try:
        part = content_range(content, {"range": header})
    except RangeNotSatisfiableError:
        return
    if part is not None:
        assert 0 <= part[0] <= part[1] < len(data)


@each(
    ("header", "matches"),
    [(None, False), ('"1"', True), ('W/"1"', True), ('"2", "1"', True), ("*", True), ('"11"', False), ("1", False)],
)
def test_entity_tags(header: str | None, matches: bool) -> None:
    assert etag_matches(header, '"1"') is matches


def tree(root: type[QuantmillError]) -> list[type[QuantmillError]]:
    return [root, *(kind for child in root.__subclasses__() for kind in tree(child))]


def test_every_error_has_a_code_of_its_own() -> None:
    kinds = [kind for kind in tree(QuantmillError) if kind.__module__.startswith("service.")]
    owners: dict[str, type[QuantmillError]] = {}
    for kind in kinds:
        assert kind.__doc__, kind
        if "code" not in vars(kind):
            if issubclass(kind, ApiError):  # carries the code that the service sent
                continue
            assert kind.__subclasses__(), f"{kind} borrows the code of its base"
            continue
        assert owners.setdefault(kind.code, kind) is kind, f"{kind} and {owners[kind.code]} share {kind.code}"
        assert kind.code == kind.code.lower()
        assert 400 <= kind.status < 600
    assert {problem.code for problem in problem_types()} == set(owners)


@pytest.mark.slow
def test_the_catalog_lists_every_error_of_service_and_worker() -> None:
    """In the process of the API, which imports no worker; the errors are read off the sources."""
    texts = [path.read_text(encoding="utf-8") for path in files("service", "worker").values()]
    said = [code for text in texts for code in re.findall(r'^class \w+\([^)]*\bcode="([\w-]+)"', text, re.MULTILINE)]
    codes = {QuantmillError.code, *said}
    assert {"poison", "stalled", "data-dir-in-use", "download-corrupt"} <= codes
    code = "import service.app, json; from service.problems.router import problem_types as p\n"
    code += "print(json.dumps([item.code for item in p()]))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=True
    )
    assert codes == set(json.loads(done.stdout))

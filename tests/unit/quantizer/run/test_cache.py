"""The cache: the right bytes or none, for one scope alone, within its limit, with many processes at once."""

from __future__ import annotations

import errno
import hashlib
import multiprocessing
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.patience import PATIENCE_SECONDS
from tests.unit.quantizer.run.test_checkpoint import Listener, damage, files, refusing
from worker.quantizer.run import cache as module
from worker.quantizer.run.cache import HEADER_BYTES, LOCK_FILE, Cache


def key_of(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


def entries(folder: Path) -> list[Path]:
    return [path for path in files(folder) if path.name != LOCK_FILE]


@given(st.dictionaries(st.text(max_size=5), st.binary(max_size=200), max_size=5))
def test_another_run_finds_what_was_put(tmp_path_factory, contents):
    folder = tmp_path_factory.mktemp("cache") / "made"
    for name, data in contents.items():
        Cache(folder).put(key_of(name), data)
    again = Cache(folder)
    assert {name: again.get(key_of(name)) for name in contents} == contents
    assert again.get(key_of("never put there")) is None
    nowhere = Cache(None)
    nowhere.put(key_of("a"), b"1")
    assert nowhere.get(key_of("a")) is None


def test_scopes_see_nothing_of_each_other(tmp_path):
    Cache(tmp_path, scope="one").put(key_of("a"), b"of one")
    other = Cache(tmp_path, scope="other")
    assert other.get(key_of("a")) is None
    other.put(key_of("a"), b"of the other")
    assert Cache(tmp_path, scope="one").get(key_of("a")) == b"of one"
    # even if somebody moves the files
    mine, theirs = entries(tmp_path)
    theirs.write_bytes(mine.read_bytes())
    assert {Cache(tmp_path, scope=scope).get(key_of("a")) is None for scope in ("one", "other")} == {True, False}


@pytest.mark.parametrize("how", ["cut off", "changed", "a link"])
def test_a_damaged_entry_is_dropped_and_told(tmp_path, how):
    Cache(tmp_path).put(key_of("a"), b"data")
    (entry,) = entries(tmp_path)
    damage(entry, how)
    listener = Listener()
    cache = Cache(tmp_path, run=listener)
    assert cache.get(key_of("a")) is None
    assert not os.path.lexists(entry)
    assert [level for level, message in listener.said if str(entry) in message] == ["warning"]
    cache.put(key_of("a"), b"anew")
    assert cache.get(key_of("a")) == b"anew"


def test_the_least_recently_used_go_first_whosever_they_are(tmp_path):
    room = HEADER_BYTES + 1000
    caches = [Cache(tmp_path, scope=scope, limit_bytes=4 * room) for scope in ("one", "other")]
    for number in range(4):
        caches[number % 2].put(key_of(str(number)), bytes(1000))
    for age, entry in enumerate(sorted(entries(tmp_path), key=lambda path: path.stat().st_mtime_ns, reverse=True)):
        os.utime(entry, (1e9 - age, 1e9 - age))
    assert caches[0].get(key_of("0")) is not None
    caches[0].put(key_of("4"), bytes(1000))
    assert len(entries(tmp_path)) == 5, "a run reaches no scope but its own"
    module.evict(tmp_path, 4 * room)
    there = [number for number in range(5) if caches[number % 2].get(key_of(str(number))) is not None]
    assert there == [0, 3, 4]
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 4 * room


def test_what_is_larger_than_the_cache_evicts_nothing(tmp_path):
    listener = Listener()
    cache = Cache(tmp_path, limit_bytes=500, run=listener)
    cache.put(key_of("a"), bytes(100))
    cache.put(key_of("b"), bytes(500))
    assert (cache.get(key_of("a")), cache.get(key_of("b"))) == (bytes(100), None)
    assert [level for level, message in listener.said if "500" in message] == ["info"]


def test_an_eviction_that_another_process_does_is_left_to_it(tmp_path):
    cache = Cache(tmp_path, limit_bytes=1000)
    folder = module.scope_folder(tmp_path, "")
    folder.mkdir()
    with module._lock(folder / module.LOCK_FILE) as ours:
        assert ours
        for number in range(3):
            cache.put(key_of(str(number)), bytes(500))
    assert len(entries(tmp_path)) == 3
    cache.put(key_of("3"), bytes(500))
    assert [path.name for path in entries(tmp_path)] == [key_of("3")]


def test_a_folder_that_knows_no_locks_keeps_its_limit(tmp_path, monkeypatch):
    monkeypatch.setattr(module.fcntl, "flock", refusing(errno.ENOLCK))
    listener = Listener()
    cache = Cache(tmp_path, limit_bytes=1500, run=listener)
    for number in range(5):
        cache.put(key_of(str(number)), bytes(500))
    assert sum(path.stat().st_size for path in entries(tmp_path)) <= 1500
    assert listener.said == []


def test_a_disk_that_refuses_does_not_end_the_run(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "write_sealed", refusing(errno.ENOSPC))
    listener = Listener()
    cache = Cache(tmp_path, run=listener)
    cache.put(key_of("a"), b"1")
    cache.put(key_of("b"), b"1")
    assert cache.get(key_of("a")) is None
    assert [(level, "No space left" in message) for level, message in listener.said] == [("warning", True)]


def test_a_key_that_is_no_digest_is_a_mistake(tmp_path):
    for key in ("", "a", "../" + "0" * 61, "0" * 63 + "/", "A" * 64):
        for use in (Cache(tmp_path).get, lambda name: Cache(tmp_path).put(name, b"")):
            with pytest.raises(ValueError, match="sha256"):
                use(key)


def _hammer(folder: str, seed: int, wrong: multiprocessing.Queue) -> None:
    listener = Listener()
    cache = Cache(Path(folder), limit_bytes=30_000, run=listener)
    names = [str((seed + step * 7) % 12) for step in range(300)]
    found = 0
    for name in names:
        data = cache.get(key_of(name))
        if data is None:
            cache.put(key_of(name), name.encode() * 2000)
        else:
            found += 1
            if data != name.encode() * 2000:
                wrong.put(f"{name}: other bytes")
    if listener.said or not found:
        wrong.put(f"{found} found, said {listener.said[:2]}")


@pytest.mark.slow  # starts processes
def test_many_processes_at_once_see_whole_entries_only(tmp_path):
    context = multiprocessing.get_context("fork")
    wrong = context.Queue()
    workers = [context.Process(target=_hammer, args=(str(tmp_path), seed, wrong)) for seed in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(PATIENCE_SECONDS)
    assert [worker.exitcode for worker in workers] == [0] * 4
    assert wrong.empty(), wrong.get()
    assert not [path for path in files(tmp_path) if path.name.startswith(".part-")]

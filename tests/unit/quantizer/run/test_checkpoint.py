"""Checkpoints: found again by the same run alone, never trusted when damaged, never in the way of the run."""

from __future__ import annotations

import errno
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contracts.config import parse_config
from worker.quantizer.run import checkpoint, sealed
from worker.quantizer.run.cache import Cache
from worker.quantizer.run.checkpoint import CheckpointStore, Pace, ScopedCheckpoints
from worker.quantizer.run.identity import content_key, run_identity
from worker.quantizer.run.interface import SilentRun

ONE, OTHER = "1" * 64, "2" * 64


class Listener(SilentRun):
    """Remembers what is said."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def log(self, message: str, level: str = "info") -> None:
        self.said.append((level, message))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
@settings(max_examples=30)
@given(st.dictionaries(st.text(max_size=20), st.binary(max_size=200), max_size=5))
def test_another_attempt_finds_what_was_saved(tmp_path_factory, saved):
    folder = tmp_path_factory.mktemp("checkpoints")
    store = CheckpointStore(folder, ONE)
    for key, data in saved.items():
        store.save(key, b"replaced below")
        store.save(key, data)
    again = CheckpointStore(folder, ONE)
    assert {key: again.load(key) for key in saved} == saved
    assert again.load("never saved") is None
    assert len(files(folder)) == len(saved)


def test_keys_are_no_paths(tmp_path):
    store = CheckpointStore(tmp_path / ".", ONE)
    for key in ("../outside", "/etc/passwd", "a\0b", "x" * 5000, "layer/1:weight"):
        store.save(key, key.encode())
        assert store.load(key) == key.encode()
    assert [path.name for path in tmp_path.iterdir()] == [ONE]


def test_another_run_finds_nothing_and_is_told(tmp_path):
    CheckpointStore(tmp_path, ONE).save("layer", b"of one")
    listener = Listener()
    store = CheckpointStore(tmp_path, OTHER, run=listener)
    assert store.load("layer") is None
    store.save("layer", b"of another")
    assert CheckpointStore(tmp_path, ONE).load("layer") == b"of one"
    assert [level for level, message in listener.said if "another config" in message] == ["info"]


def test_the_identity_depends_on_config_model_and_data():
    origin = {"model": "a", "calibration": "b", "engine": "0.1.0", "threads": 2}
    config = parse_config({"preset": "int8"})
    same = run_identity(parse_config({"preset": "int8"}), dict(reversed(origin.items())))
    assert run_identity(config, origin) == same
    others = [run_identity(parse_config({"preset": "int8", "seed": 5}), origin)]
    others += [run_identity(config, origin | {name: "changed"}) for name in origin]
    assert len({same, *others}) == len(others) + 1


def test_content_keys_keep_parts_apart():
    keys = [
        content_key("a"), content_key("a", ""), content_key("a", b""), content_key("a", "", ""), content_key("a", "b"),
        content_key("a", b"b"), content_key("ab"), content_key("a", ["b"]), content_key("a", b"b", b""),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert content_key("a", {"x": 1, "y": [2.5, None]}) == content_key("a", {"y": [2.5, None], "x": 1})
    with pytest.raises(ValueError, match="JSON"):
        content_key("a", float("nan"))


def damage(path: Path, how: str) -> None:
    data = path.read_bytes()
    if how == "cut off":
        path.write_bytes(data[:-1])
    elif how == "cut off in its header":
        path.write_bytes(data[:20])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "changed":
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    elif how == "longer":
        path.write_bytes(data + b"x")
    elif how == "of another program":
        path.write_bytes(b"\x93NUMPY" + bytes(200))
    elif how == "a link":
        path.rename(path.with_name("aside"))
        path.symlink_to(path.with_name("aside"))
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "renamed":
        path.replace(path.with_name(sealed._digest(b"other").hex()))


@pytest.mark.parametrize(
    "how",
    ["cut off", "cut off in its header", "empty", "changed", "longer", "of another program", "a link", "a folder"],
)
def test_a_damaged_or_foreign_file_is_not_used_and_told(tmp_path, how):
    CheckpointStore(tmp_path, ONE).save("layer", b"data")
    damage(files(tmp_path)[0], how)
    listener = Listener()
    store = CheckpointStore(tmp_path, ONE, run=listener)
    assert store.load("layer") is None
    assert [level for level, message in listener.said] == ["warning"]
    assert "'layer'" in listener.said[0][1]
    if how != "a folder":
        store.save("layer", b"anew")
        assert CheckpointStore(tmp_path, ONE).load("layer") == b"anew"


def test_a_file_under_the_name_of_another_key_is_not_used(tmp_path):
    store = CheckpointStore(tmp_path, ONE)
    store.save("layer", b"data")
    damage(files(tmp_path)[0], "renamed")
    assert store.load("other") is None


def test_the_limit_holds_over_attempts_and_counts_replacements_once(tmp_path):
    room = 2 * (100 + sealed.HEADER_BYTES)
    store = CheckpointStore(tmp_path, ONE, limit_bytes=room)
    for _ in range(3):
        store.save("a", bytes(100))
    listener = Listener()
    again = CheckpointStore(tmp_path, ONE, limit_bytes=room, run=listener)
    again.save("b", bytes(100))
    again.save("c", b"1")
    again.save("d", b"1")
    assert [again.load(key) is None for key in "abcd"] == [False, False, True, True]
    assert [level for level, message in listener.said if str(room) in message] == ["warning"]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= room


def test_two_attempts_at_once_keep_the_limit_together(tmp_path):
    """One that lost its job goes on for a while beside its successor."""
    room = 4 * (100 + sealed.HEADER_BYTES)
    zombie, successor = (CheckpointStore(tmp_path, ONE, limit_bytes=room) for _ in range(2))
    for number in range(4):
        zombie.save(f"z{number}", bytes(100))
        successor.save(f"s{number}", bytes(100))
    assert sum(path.stat().st_size for path in files(tmp_path)) == room
    assert [successor.load(key) is None for key in ("z0", "s0", "z1", "s1", "z2")] == [False] * 4 + [True]


def test_two_attempts_that_write_one_entry_at_once_leave_it_whole(tmp_path):
    stores = [CheckpointStore(tmp_path, ONE) for _ in range(2)]

    def write(store: CheckpointStore) -> None:
        for _ in range(50):
            store.save("layer", b"the same" * 1000)
            assert store.load("layer") == b"the same" * 1000

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write, store) for store in stores]:
            done.result()
    assert len(files(tmp_path)) == 1


def test_what_is_shared_is_found_by_other_jobs_of_the_tenant_and_the_rest_is_not(tmp_path):
    (tmp_path / "first").mkdir()
    (tmp_path / "second").mkdir()

    def store(folder: str | None, identity: str = ONE, scope: str = "tenant") -> CheckpointStore:
        place = None if folder is None else tmp_path / folder
        return CheckpointStore(place, identity, shared=Cache(tmp_path / "cache", scope=scope))

    content = content_key("ranking", "of a network")
    first = store("first")
    first.save("layer", b"integers", shared=True)
    first.save("epoch 3", b"weights")
    first.keep(content, b"ranking")
    first.keep(content_key("half a pass"), b"half", shared=False)
    for other in (store("second"), store(None)):
        assert (other.load("layer"), other.load("epoch 3")) == (b"integers", None)
        assert (other.find(content), other.find(content_key("half a pass"))) == (b"ranking", None)
    assert (store("second", OTHER).load("layer"), store("second", OTHER).find(content)) == (None, b"ranking")
    stranger = store("second", scope="another tenant")
    assert (stranger.load("layer"), stranger.find(content)) == (None, None)
    assert [path.name for path in (tmp_path / "second").rglob("*") if path.is_file()] == []
    scoped = ScopedCheckpoints(first, "recipe ")
    assert (scoped.load("layer"), scoped.find(content)) == (None, b"ranking")


def test_what_cannot_be_decoded_is_told_and_not_used(tmp_path):
    listener = Listener()
    store = CheckpointStore(tmp_path, ONE, run=listener)
    store.save("facts", b"[1")
    assert store.load_as("facts", json.loads) is None
    assert [level for level, message in listener.said if "'facts'" in message] == ["warning"]
    store.save("facts", b"[1]")
    assert store.load_as("facts", json.loads) == [1]


def test_saving_takes_no_more_than_its_share_of_the_time():
    now = [100.0]
    pace = Pace(0.1, first_seconds=5.0, clock=lambda: now[0])
    assert not pace.is_due
    now[0] = 105.0
    assert pace.is_due
    now[0] = 107.0
    pace.spent(105.0)
    now[0] = 124.9
    assert not pace.is_due, "two seconds are a tenth of twenty"
    now[0] = 125.0
    assert pace.is_due


def test_a_disk_that_refuses_does_not_end_the_run(tmp_path, monkeypatch):
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    listener = Listener()
    store = CheckpointStore(tmp_path, ONE, run=listener)
    monkeypatch.setattr(sealed.os, "fsync", full)
    store.save("a", b"1")
    store.save("b", b"1")
    assert store.load("a") is None
    assert listener.said == [("warning", "checkpoints cannot be kept: No space left on device")]
    assert files(tmp_path) == []
    words = "pieces of finished work that could not be kept for another attempt"
    assert store.notes == (f"{words}: 2 (No space left on device)",)
    monkeypatch.undo()
    ScopedCheckpoints(store, "a").save("", b"1")
    assert store.notes == (f"{words}: 1 (No space left on device)",)
    store.save("b", b"1")
    assert store.notes == ScopedCheckpoints(store, "scope").notes == ()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_with_no_room_for_the_run_itself_ends_it_at_once(tmp_path, monkeypatch, number):
    """What it finished from then on could be kept nowhere, and its result could not be written."""

    def full(*_: object) -> None:
        raise OSError(number, "No space left on device")

    listener = Listener()
    store = CheckpointStore(tmp_path, ONE, run=listener)
    store.save("a", b"1")
    with monkeypatch.context() as context:
        context.setattr(sealed.os, "fsync", full)
        context.setattr(checkpoint, "_ROOM_BYTES", 2**80)
        with pytest.raises(OSError, match="No space left"):
            store.save("b", b"1")
        with pytest.raises(OSError, match="No space left"):
            store.keep(content_key("b"), b"1")
    assert listener.said == []
    assert (store.load("a"), store.load("b")) == (b"1", None)


def test_another_fault_of_the_checkpoints_disk_never_ends_the_run(tmp_path, monkeypatch):
    def broken(*_: object) -> None:
        raise OSError(errno.EIO, "Input/output error")

    store = CheckpointStore(tmp_path, ONE)
    monkeypatch.setattr(checkpoint, "_ROOM_BYTES", 2**80)
    monkeypatch.setattr(sealed.os, "fsync", broken)
    store.save("a", b"1")
    assert "Input/output error" in store.notes[0]


def test_without_a_folder_nothing_is_kept():
    store = CheckpointStore(None)
    store.save("a", b"1")
    assert store.load("a") is None


def test_a_folder_that_is_gone_does_not_end_the_run(tmp_path):
    listener = Listener()
    store = CheckpointStore(tmp_path / "gone", ONE, run=listener)
    store.save("a", b"1")
    assert store.load("a") is None
    assert [level for level, message in listener.said] == ["warning"]
    assert "No such file" in store.notes[0]


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path, monkeypatch):
    CheckpointStore(tmp_path, ONE).save("a", b"1")
    part = tmp_path / ONE / (sealed.PART_PREFIX + "x")
    part.write_bytes(b"half")
    CheckpointStore(tmp_path, ONE)
    assert part.exists()
    monkeypatch.setattr(checkpoint, "_PART_AGE_SECONDS", -1.0)
    assert CheckpointStore(tmp_path, ONE).load("a") == b"1"
    assert not part.exists()

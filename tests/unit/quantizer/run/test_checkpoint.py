"""Checkpoints: found again by the same run alone, never trusted when damaged, never in the way of the run."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import onnx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts import config
from service.contracts.config import parse_config
from tests.unit.quantizer.toolbox import data, network, write_npz
from worker.quantizer import emit
from worker.quantizer.data import open_dataset
from worker.quantizer.intake.inspect import inspect_model
from worker.quantizer.modes.planning import devices_of
from worker.quantizer.run import cache, checkpoint, identity
from worker.quantizer.run.cache import Cache
from worker.quantizer.run.checkpoint import CheckpointStore, Pace
from worker.quantizer.run.identity import content_key, run_identity
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.runtime.host import cpu_kind

ONE, OTHER = "1" * 64, "2" * 64


class Listener(SilentRun):
    def __init__(self) -> None:
        self.said: list[tuple[str, str]] = []

    def log(self, message: str, level: str = "info") -> None:
        self.said.append((level, message))


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.slow
@given(st.dictionaries(st.text(max_size=20), st.binary(max_size=200), max_size=5))
def test_another_attempt_finds_what_was_saved_and_another_run_nothing(tmp_path_factory, saved):
    folder = tmp_path_factory.mktemp("checkpoints")
    store = CheckpointStore(folder, ONE)
    for key, content in saved.items():
        store.save(key, b"replaced below")
        store.save(key, content)
    again = CheckpointStore(folder, ONE)
    assert {key: again.load(key) for key in saved} == saved
    assert again.load("never saved") is None
    assert len(files(folder)) == len(saved)
    listener = Listener()
    stranger = CheckpointStore(folder, OTHER, run=listener)
    assert [stranger.load(key) for key in saved] == [None] * len(saved)
    stranger.save("layer", b"of another")
    assert CheckpointStore(folder, ONE).load("layer") == saved.get("layer")
    if saved:
        assert [level for level, message in listener.said if "another config" in message] == ["info"]


def test_keys_are_no_paths_and_a_file_under_the_name_of_another_is_not_used(tmp_path):
    store = CheckpointStore(tmp_path / ".", ONE)
    for key in ("../outside", "/etc/passwd", "a\0b", "x" * 5000, "layer/1:weight"):
        store.save(key, key.encode())
        assert store.load(key) == key.encode()
    assert [path.name for path in tmp_path.iterdir()] == [ONE]
    alone = CheckpointStore(tmp_path, OTHER)
    alone.save("layer", b"data")
    damage(files(tmp_path / OTHER)[0], "renamed")
    assert alone.load("other") is None
    nowhere = CheckpointStore(None)
    nowhere.save("a", b"1")
    assert nowhere.load("a") is None


def test_identities_and_content_keys_keep_parts_apart():
    origin = {"model": "a", "calibration": "b", "engine": "0.1.0", "threads": 2}
    config = parse_config({"preset": "int8"})
    same = run_identity(parse_config({"preset": "int8"}), dict(reversed(origin.items())))
    assert run_identity(config, origin) == same
    others = [run_identity(parse_config({"preset": "int8", "seed": 5}), origin)]
    others += [run_identity(config, origin | {name: "changed"}) for name in origin]
    assert len({same, *others}) == len(others) + 1
    keys = [
        content_key("a"), content_key("a", ""), content_key("a", b""), content_key("a", "", ""), content_key("a", "b"),
        content_key("a", b"b"), content_key("ab"), content_key("a", ["b"]), content_key("a", b"b", b""),
    ]  # fmt: skip
    assert len(set(keys)) == len(keys)
    assert content_key("a", {"x": 1, "y": [2.5, None]}) == content_key("a", {"y": [2.5, None], "x": 1})
    with pytest.raises(ValueError, match="JSON"):
        content_key("a", float("nan"))


def damage(path: Path, how: str) -> None:
    content = path.read_bytes()
    if how in ("a link", "renamed"):
        path.rename(path.with_name("aside" if how == "a link" else hashlib.sha256(b"other").hexdigest()))
        if how == "a link":
            path.symlink_to(path.with_name("aside"))
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    else:
        changed = content[:-1] + bytes([content[-1] ^ 1])
        foreign = b"\x93NUMPY" + bytes(200)
        path.write_bytes(
            {"cut off": content[:20], "changed": changed, "longer": content + b"x", "foreign": foreign}[how]
        )


@pytest.mark.parametrize("how", ["cut off", "changed", "longer", "foreign", "a link", "a folder"])
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


def test_the_limit_holds_over_attempts_and_counts_replacements_once(tmp_path):
    room = 2 * (100 + cache.HEADER_BYTES)
    (tmp_path / "a").mkdir()
    store = CheckpointStore(tmp_path / "a", ONE, limit_bytes=room)
    for _ in range(3):
        store.save("a", bytes(100))
    listener = Listener()
    again = CheckpointStore(tmp_path / "a", ONE, limit_bytes=room, run=listener)
    again.save("b", bytes(100))
    again.save("c", b"1")
    again.save("d", b"1")
    assert [again.load(key) is None for key in "abcd"] == [False, False, True, True]
    assert [level for level, message in listener.said if str(room) in message] == ["warning"]
    assert sum(path.stat().st_size for path in files(tmp_path)) <= room
    # one that lost its job goes on for a while beside its successor
    (tmp_path / "b").mkdir()
    zombie, successor = (CheckpointStore(tmp_path / "b", ONE, limit_bytes=2 * room) for _ in range(2))
    for number in range(4):
        zombie.save(f"z{number}", bytes(100))
        successor.save(f"s{number}", bytes(100))
    assert sum(path.stat().st_size for path in files(tmp_path / "b")) == 2 * room
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
    scoped = first.scoped("recipe ")
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


def refusing(number: int) -> Callable[..., None]:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    return refuse


def test_a_disk_that_refuses_does_not_end_the_run(tmp_path, monkeypatch):
    listener = Listener()
    store = CheckpointStore(tmp_path, ONE, run=listener)
    monkeypatch.setattr(cache.os, "fsync", refusing(errno.ENOSPC))
    store.save("a", b"1")
    store.save("b", b"1")
    assert store.load("a") is None
    assert listener.said == [("warning", "checkpoints cannot be kept: No space left on device")]
    assert files(tmp_path) == []
    words = "pieces of finished work that could not be kept for another attempt"
    assert store.notes == (f"{words}: 2 (No space left on device)",)
    monkeypatch.undo()
    store.scoped("a").save("", b"1")
    assert store.notes == (f"{words}: 1 (No space left on device)",)
    store.save("b", b"1")
    assert store.notes == store.scoped("scope").notes == ()
    listener = Listener()
    gone = CheckpointStore(tmp_path / "gone", ONE, run=listener)
    gone.save("a", b"1")
    assert gone.load("a") is None
    assert [level for level, message in listener.said] == ["warning"]
    assert "No such file" in gone.notes[0]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_with_no_room_for_the_run_itself_ends_it_at_once(tmp_path, monkeypatch, number):
    """What it finished from then on could be kept nowhere, and its result could not be written."""
    listener = Listener()
    store = CheckpointStore(tmp_path, ONE, run=listener)
    store.save("a", b"1")
    monkeypatch.setattr(checkpoint, "_ROOM_BYTES", 2**80)
    with monkeypatch.context() as context:
        context.setattr(cache.os, "fsync", refusing(number))
        for keep in (lambda: store.save("b", b"1"), lambda: store.keep(content_key("b"), b"1")):
            with pytest.raises(OSError, match=os.strerror(number)):
                keep()
    assert listener.said == []
    assert (store.load("a"), store.load("b")) == (b"1", None)
    monkeypatch.setattr(cache.os, "fsync", refusing(errno.EIO))  # another fault never ends the run
    store.save("a", b"1")
    assert "Input/output error" in store.notes[0]


def test_what_killed_writers_left_is_removed_once_it_is_old(tmp_path, monkeypatch):
    CheckpointStore(tmp_path, ONE).save("a", b"1")
    part = tmp_path / ONE / (cache.PART_PREFIX + "x")
    part.write_bytes(b"half")
    CheckpointStore(tmp_path, ONE)
    assert part.exists()
    monkeypatch.setattr(cache, "_PART_AGE_SECONDS", -1.0)
    assert CheckpointStore(tmp_path, ONE).load("a") == b"1"
    assert not part.exists()


def test_the_fingerprint_covers_the_whole_engine_and_its_contracts(monkeypatch) -> None:
    read: set[Path] = set()
    original = Path.read_bytes

    def noted(self: Path) -> bytes:
        read.add(self)
        return original(self)

    monkeypatch.setattr(Path, "read_bytes", noted)
    identity.engine_fingerprint.__wrapped__()
    assert {Path(module.__file__ or "") for module in (emit, identity, config)} <= read


X86 = """processor : 0
vendor_id : AuthenticAMD
cpu family : 25
model : 17
cpu MHz : 2400.000
flags : fpu sse4_1 avx2 fma avx512f rdtscp

processor : 1
cpu MHz : 3100.000
"""
ARM = """processor : 0
Features : fp asimd asimddp i8mm crc32
CPU implementer : 0x41
CPU part : 0xd40
"""


def test_two_kinds_of_cpu_are_told_apart_and_two_hosts_of_one_are_not() -> None:
    kinds = [
        cpu_kind(text)
        for text in (
            X86, ARM, "", X86.replace("avx512f", ""), X86.replace("AuthenticAMD", "GenuineIntel"),
            X86.replace("model : 17", "model : 1"), ARM.replace("i8mm", ""), ARM.replace("0xd40", "0xd0c"),
        )
    ]  # fmt: skip
    assert len({json.dumps(kind) for kind in kinds}) == len(kinds)
    # clocks, and features that no product of matrices depends on
    assert cpu_kind(X86) == cpu_kind(X86.replace("2400.000", "1800.000").replace(" rdtscp", " ht"))


def test_work_of_another_kind_of_host_is_not_taken_over(monkeypatch, tmp_path) -> None:
    """In a folder that hosts share: the same model, data and config on another CPU or device is another run."""
    onnx.save(network(), tmp_path / "net.onnx")
    source = write_npz(tmp_path / "data.npz", **data())
    inspected = inspect_model(tmp_path / "net.onnx", threads=1)
    given = (inspected, open_dataset(Path(source.path), source.preprocessing), None, {})
    here = identity.origin(*given, threads=2)
    assert identity.origin(*given, threads=2) == here
    monkeypatch.setattr(identity, "cpu_kind", lambda: cpu_kind(ARM))
    there = identity.origin(*given, threads=2)
    adaround = parse_config({"preset": "int8", "algorithms": [{"method": "adaround"}]})
    devices = [devices_of(adaround), ["cuda:0 NVIDIA H100", "cpu"]]
    assert len(devices[0]) == 2
    found = {run_identity(adaround, origin, devices=some) for origin in (here, there) for some in devices}
    assert len(found) == 4

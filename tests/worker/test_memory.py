"""Memory: a job's share, the watch that ends a runner at it, and what is told of a kill from elsewhere."""

from __future__ import annotations

import itertools
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from service.quarantine import repository
from service.quarantine.suspects import digest_of
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import WRITE_PID, Workbench, finish, process_gone, wait_for
from worker import memory
from worker.memory import (
    MemoryWatch,
    as_one_job,
    group_bytes,
    group_cpu_seconds,
    has_room_for_spares,
    inspection_slots,
    job_memory_bytes,
    machine_memory_bytes,
    oom_kills,
    share_bytes,
)
from worker.sandbox import OOM_SCORE_ADJUSTMENT

MIB = 1024**2
LIMIT = 256 * MIB


@pytest.mark.parametrize(
    ("total_mib", "slots", "share_mib"),
    [
        (16384, 1, 16384 - 1638),
        (16384, 2, (16384 - 1638) // 2),
        (131072, 1, 131072 - 4096),
        (1024, 1, 512),
        (128, 8, 64),
    ],
)
def test_a_share_leaves_a_reserve_and_is_divided_by_the_slots(total_mib, slots, share_mib):
    assert share_bytes(slots, total_mib * MIB) // MIB == pytest.approx(share_mib, abs=1)
    assert 2**27 < share_bytes(2) < machine_memory_bytes() // 2 < 2**49


def test_workers_that_know_of_each_other_share_the_machine(tmp_path):
    alone = Settings(data_dir=tmp_path, worker_slots=2)
    assert job_memory_bytes(alone) == share_bytes(2)
    assert job_memory_bytes(alone.model_copy(update={"host_slots": 5})) == share_bytes(5)
    assert job_memory_bytes(alone.model_copy(update={"host_slots": 1})) == share_bytes(2), "it has two itself"
    assert job_memory_bytes(alone.model_copy(update={"host_slots": 5, "job_memory_bytes": LIMIT})) == LIMIT
    assert job_memory_bytes(alone.model_copy(update={"job_memory_bytes": 2**60})) == machine_memory_bytes()


def test_inspections_share_what_one_job_may_take(tmp_path):
    settings = Settings(data_dir=tmp_path, worker_slots=3, host_slots=2)
    assert job_memory_bytes(as_one_job(settings)) == share_bytes(2) // 3
    assert job_memory_bytes(as_one_job(settings.model_copy(update={"job_memory_bytes": LIMIT}))) == LIMIT
    assert inspection_slots(settings) <= settings.inspection_slots
    assert inspection_slots(settings.model_copy(update={"worker_slots": 10_000})) == 1


@pytest.mark.parametrize(
    ("total_mib", "changed", "kept"),
    [
        (8192, {}, True),
        (2048, {}, False),
        (8192, {"host_slots": 4}, False),
        (8192, {"worker_slots": 4}, False),
        (8192, {"job_memory_bytes": 2**30}, False),
        (2048, {"job_memory_bytes": 2**33}, False),
        (8192, {"spare_runners": False}, False),
    ],
)
def test_spare_runners_are_kept_where_a_slot_has_many_times_their_memory(
    tmp_path, monkeypatch, total_mib, changed, kept
):
    monkeypatch.setattr(memory, "machine_memory_bytes", lambda: total_mib * MIB)
    assert has_room_for_spares(Settings(data_dir=tmp_path, **changed)) is kept


def test_the_kernels_limit_of_a_container_counts(tmp_path, monkeypatch):
    """Both versions of control groups, at any depth; the smallest limit around this process holds."""
    for version, name, line in (("v1", "memory.limit_in_bytes", "4:memory:/a/b"), ("v2", "memory.max", "0::/a/b")):
        root, proc = tmp_path / version, tmp_path / f"proc-{version}" / "self"
        (root / "a" / "b").mkdir(parents=True)
        proc.mkdir(parents=True)
        (proc / "cgroup").write_text(f"7:cpu:/elsewhere\n{line}\n")
        (root / "a" / "b" / name).write_text("max\n" if version == "v2" else f"{2**63 - 4096}\n")
        (root / "a" / name).write_text(f"{512 * MIB}\n")
        monkeypatch.setattr(memory, "_PROC", proc.parent)
        monkeypatch.setattr(memory, "_V1" if version == "v1" else "_V2", root)
        assert machine_memory_bytes() == 512 * MIB
        counted = root / "a" / "b" / ("memory.events" if version == "v2" else "memory.oom_control")
        counted.write_text("under_oom 0\noom_kill 7\n")
        assert oom_kills() == 7, "its kills, too"


def test_the_memory_of_a_group_is_that_of_all_its_processes():
    hold = f"import sys, time\nheld = bytearray({64 * MIB})\nprint(flush=True)\ntime.sleep(600)"
    both = f"import subprocess, sys\nchild = subprocess.Popen([sys.executable, '-c', {hold!r}])\n{hold}"
    process = subprocess.Popen([sys.executable, "-c", both], start_new_session=True, stdout=subprocess.PIPE)
    try:
        wait_for(lambda: group_bytes(process.pid) >= 128 * MIB, message="not all of it was counted")
        assert group_bytes(process.pid) < 300 * MIB
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()
    wait_for(lambda: group_bytes(process.pid) == 0)


def test_cpu_time_before_the_watch_is_not_the_jobs():
    with subprocess.Popen([sys.executable, "-c", "while True: pass"], start_new_session=True) as process:
        wait_for(lambda: group_cpu_seconds(process.pid) >= 0.1)
        watch = MemoryWatch(lambda: [process.pid], LIMIT)
        wait_for(lambda: not watch.look() and watch.cpu_seconds > 0)
        assert watch.cpu_seconds <= group_cpu_seconds(process.pid) - 0.1
        process.kill()


@pytest.fixture
def small(tmp_path: Path):
    bench = Workbench(tmp_path, job_memory_bytes=LIMIT)
    yield bench
    bench.close()


KILL = "os.kill(os.getpid(), signal.SIGKILL)\n"
# Seen by the watch before it is killed.
MODEST = "time.sleep(0.5)\n" + KILL
NEAR_SHARE = f"held = b'x' * {230 * MIB}\ntime.sleep(1)\n" + KILL
GREEDY = WRITE_PID + "held = []\nwhile True:\n    held.append(b'x' * (1 << 20)); time.sleep(0.002)\n"


def test_a_runner_is_ended_at_its_share_and_told_so_in_bytes(small):
    job_id, thread, pid = small.begin(GREEDY)
    finish(thread)
    assert process_gone(pid)
    job = small.job(job_id)
    assert (job.state, job.attempt, job.error["code"]) == ("failed", 1, "resource-limit")
    where = job.error["where"]
    assert (where["resource"], where["limit_bytes"]) == ("memory", LIMIT)
    assert where["used_bytes"] > LIMIT
    assert str(LIMIT) in job.error["detail"]


def test_a_kill_from_elsewhere_is_for_memory_near_the_share_alone(small):
    near = small.submit()
    small.supervisor(NEAR_SHARE).run(near)
    assert small.failure(near) == ("failed", "resource-limit")
    assert small.job(near).error["where"]["used_bytes"] >= 0.8 * LIMIT
    digest = digest_of(small.model(small.job(near).model_id).files)
    with small.database.read() as session:
        assert repository.held(session, "default", digest) is None, "one such end is no proof"
    again = small.submit()
    small.supervisor(NEAR_SHARE).run(again)
    with small.database.read() as session:
        assert repository.held(session, "default", digest).crashes == 2
    assert digest in small.job(again).error["hint"]
    far = small.submit(model_id=small.add_model({"net.onnx": b"another"}))
    small.supervisor(MODEST).run(far)
    assert small.standing(far) == ("queued", 1, 0), "a crash as any"


def test_a_kill_that_the_kernel_counts_is_for_memory(monkeypatch):
    watch = MemoryWatch(lambda: [2**22 + 1], LIMIT)
    assert not watch.explains_kill()
    before = oom_kills()
    assert before >= 0
    monkeypatch.setattr(memory, "oom_kills", lambda: before + 1)
    assert watch.explains_kill()


@pytest.fixture
def counting(monkeypatch):
    """The kernel counts one more such end whenever somebody asks."""
    kills = itertools.count()
    monkeypatch.setattr(memory, "oom_kills", lambda: next(kills))


@pytest.mark.long
def test_a_kill_for_the_memory_of_others_is_tried_again_and_told_in_the_end(small, counting):
    job_id, other = small.submit(), small.submit()
    supervisor = small.supervisor(MODEST)
    for attempt in (1, 2):
        for one in (job_id, other):
            supervisor.run(one)
            assert small.standing(one) == ("queued", attempt, 0)
    assert small.supervisor("succeed()").run(job_id)
    assert small.job(job_id).state == "succeeded", "the model is not suspected"
    supervisor.run(other)
    job = small.job(other)
    assert (job.state, job.attempt, job.error["code"]) == ("failed", 3, "resource-limit")
    assert "the kernel" in job.error["detail"]
    assert job.error["where"]["used_bytes"] < 0.8 * LIMIT


def test_a_kill_near_the_share_that_the_kernel_counts_fails_at_once(small, counting):
    job_id = small.submit()
    small.supervisor(NEAR_SHARE).run(job_id)
    assert small.standing(job_id) == ("failed", 1, 0)


def test_the_kernel_would_take_a_runner_first(bench):
    job_id = bench.submit()
    bench.supervisor("log(open('/proc/self/oom_score_adj').read().strip())\nsucceed()").run(job_id)
    assert int(*bench.logged(job_id)) >= OOM_SCORE_ADJUSTMENT
    assert int(Path("/proc/self/oom_score_adj").read_text()) < OOM_SCORE_ADJUSTMENT

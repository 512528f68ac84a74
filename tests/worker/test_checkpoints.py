"""What is kept between the attempts of a job, and what one job keeps for others."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest
from sqlalchemy import update

from service.db import db_now
from service.jobs import transitions
from service.storage import file_sha256
from service.tables import Job
from tests.support.tiny import make_tiny
from tests.worker.workbench import UNTIL_ASKED, Workbench, finish
from worker.materials import checkpoint_folder, collect_checkpoints, open_checkpoints, settled_checkpoints

# Finds what the attempt before left, leaves something itself.
ATTEMPT = """
folder = task["checkpoint_dir"]
log(json.dumps(sorted(os.listdir(folder))))
open(os.path.join(folder, "layer-%d" % len(os.listdir(folder))), "w").write("done")
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)\n"
FAIL = """
say(line="error", problem=dict(type="", title="t", status=422, detail="no", code="engine-error"))
sys.exit(10)
"""


def found(bench: Workbench, job_id: str) -> list:
    return [json.loads(message) for message in bench.logged(job_id)]


def told(bench: Workbench, *names: str) -> list:
    """What the task of an attempt says of these."""
    job_id = bench.quantize()
    bench.supervisor(f"log(json.dumps([task[name] for name in {names}]))\n{FAIL}").run(job_id)
    return json.loads(bench.logged(job_id)[-1])


def keep(folder: Path, *job_ids: str) -> None:
    for job_id in job_ids:
        (open_checkpoints(folder, job_id, limit_bytes=100) / "layer").write_bytes(b"x")


@pytest.mark.parametrize("end", ["killed", "interrupted"])
def test_an_attempt_leaves_its_checkpoints_to_the_next_one(bench, end):
    job_id, stop = bench.quantize(), threading.Event()
    if end == "killed":
        bench.supervisor(ATTEMPT + KILL).run(job_id)
    else:
        _, thread, _ = bench.begin(ATTEMPT + UNTIL_ASKED, job_id, stopping=stop.is_set)
        stop.set()
        finish(thread)
    assert bench.standing(job_id) == ("queued", 1, 1 if end == "interrupted" else 0)
    assert bench.scratch_folders() == [f"{job_id}.checkpoints"]
    bench.supervisor(ATTEMPT + FAIL).run(job_id)
    assert found(bench, job_id) == [[], ["layer-0"]]
    assert bench.job(job_id).state == "failed"
    assert bench.scratch_folders() == [], "the job has ended"


# The real runner and engine; only that a step saves a checkpoint, and that it is killed after it, is added.
SAVING = """
from worker import runner
from worker.quantizer import pipeline
original = pipeline._fill
def fill(model, origin, case, services):
    finished = services.checkpoint.load("layer conv")
    if finished is None and not os.path.exists(os.environ["BENCH"] + "/calm"):
        services.checkpoint.save("layer conv", b"its weights")
        os.kill(os.getpid(), signal.SIGKILL)
    services.run.log("found: %r" % finished)
    return original(model, origin, case, services)
pipeline._fill = fill
sys.exit(runner.main([task_file]))
"""


@pytest.mark.slow
def test_what_is_killed_goes_on_where_it_was_and_gives_the_same_bytes(bench, tmp_path):
    tiny = make_tiny(tmp_path)
    files = (tiny.model.read_bytes(), tiny.calibration.read_bytes())
    killed, calm = (bench.quantize(*files, evaluation={"latency_runs": 1, "layer_samples": 1}) for _ in range(2))
    for state in ("queued", "succeeded"):
        bench.supervisor(SAVING).run(killed)
        assert bench.job(killed).state == state, bench.job(killed).error
    (bench.folder / "calm").touch()
    bench.supervisor(SAVING).run(calm)
    for job_id, found in ((killed, "found: b'its weights'"), (calm, "found: None")):
        messages = bench.logged(job_id)
        assert [words for words in messages if words.startswith("found")] == [found]
        assert sum("earlier attempt" in words for words in messages) == (job_id == killed)
    first, second = (bench.artifacts(job_id)["model"].sha256 for job_id in (killed, calm))
    assert first == second == file_sha256(bench.store.path(first))
    assert bench.scratch_folders() == []


def test_checkpoints_go_once_the_job_was_settled_by_somebody_else(bench):
    """Canceled while it was queued, or out of time: no attempt of it ends on this host any more."""
    ended, queued, running = (bench.quantize() for _ in range(3))
    keep(bench.settings.scratch_dir, ended, queued, running)
    bench.cancel(ended)
    with bench.database.write() as session:
        transitions.claim(session, running, worker_id="w", lease_seconds=60)
        session.execute(update(Job).where(Job.id == running).values(lease_until=db_now() - 5))
    assert collect_checkpoints(bench.settings, bench.database) == 1
    assert bench.scratch_folders() == sorted(f"{job_id}.checkpoints" for job_id in (queued, running))
    assert collect_checkpoints(bench.settings, bench.database) == 0
    bench.cancel(queued)
    bench.supervisor("succeed()").run(bench.submit())
    assert bench.scratch_folders() == [f"{running}.checkpoints"], "the next attempt on this host sweeps"


def test_more_than_the_limit_is_not_given_on(bench):
    bench.settings = bench.settings.model_copy(update={"checkpoint_bytes": 10})
    job_id = bench.quantize()
    big = "open(task['checkpoint_dir'] + '/big', 'w').write('x' * 11)\nlog(json.dumps(task['checkpoint_bytes']))\n"
    bench.supervisor(big + KILL).run(job_id)
    bench.supervisor(ATTEMPT + FAIL).run(job_id)
    assert found(bench, job_id) == [10, []]


def test_the_oldest_go_first_where_attempts_left_too_much(tmp_path):
    (tmp_path / "big").write_bytes(bytes(1000))
    folder = open_checkpoints(tmp_path, "job_x", limit_bytes=100)
    for age in range(4):
        (folder / f"layer-{age}").write_bytes(bytes(40))
        os.utime(folder / f"layer-{age}", (1e9 - age, 1e9 - age))
    (folder / "link").symlink_to("../big")  # what it points to does not count
    open_checkpoints(tmp_path, "job_x", limit_bytes=100)
    assert sorted(path.name for path in folder.iterdir()) == ["layer-0", "layer-1", "link"]


def test_a_folder_of_its_own_serves_every_host_and_is_swept_by_any(bench, tmp_path):
    shared = tmp_path / "shared"
    shared.mkdir()
    own = bench.settings
    hosts = [own.model_copy(update={"scratch_dir": tmp_path / name, "checkpoint_dir": shared}) for name in "ab"]
    for host in hosts:
        host.scratch_dir.mkdir()
    ended, running = bench.quantize(), bench.quantize()
    keep(hosts[0].checkpoint_dir, ended, running)
    # left there before the setting was made
    open_checkpoints(hosts[1].scratch_dir, ended, limit_bytes=100)
    bench.cancel(ended)
    assert settled_checkpoints(hosts[0], bench.database) == [checkpoint_folder(shared, ended)]
    assert collect_checkpoints(hosts[1], bench.database) == 2
    assert [path.name for path in shared.iterdir()] == [f"{running}.checkpoints"]
    assert (open_checkpoints(hosts[1].checkpoint_dir, running, limit_bytes=100) / "layer").read_bytes() == b"x"


def test_a_job_runs_without_checkpoints_while_their_storage_is_away(bench, tmp_path):
    bench.settings = bench.settings.model_copy(update={"checkpoint_dir": tmp_path / "not-mounted"})
    job_id = bench.quantize()
    bench.supervisor("log(json.dumps(task['checkpoint_dir']))\n" + FAIL).run(job_id)
    told, given = bench.logged(job_id)
    assert told.startswith("checkpoints cannot be saved")
    assert json.loads(given) is None
    assert not (tmp_path / "not-mounted").exists()


@pytest.mark.parametrize("kind", ["file", "link"])
def test_only_a_folder_of_our_own_is_given(tmp_path, kind):
    path, outside = checkpoint_folder(tmp_path, "job_x"), tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").touch()
    path.symlink_to(outside) if kind == "link" else path.write_bytes(b"")
    folder = open_checkpoints(tmp_path, "job_x", limit_bytes=100)
    assert not folder.is_symlink()
    assert list(folder.iterdir()) == []
    assert (outside / "kept").exists()
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_task_names_its_tenants_cache_and_nothing_is_kept_where_the_settings_say_so(bench, tmp_path):
    bench.settings = bench.settings.model_copy(update={"cache_dir": tmp_path / "kept", "cache_bytes": 77})
    assert told(bench, "cache_dir", "cache_bytes", "cache_scope") == [str(tmp_path / "kept"), 77, "default"]
    bench.settings = bench.settings.model_copy(
        update={"cache_dir": tmp_path / "no", "cache_bytes": 0, "checkpoint_bytes": 0}
    )
    assert told(bench, "cache_dir", "checkpoint_dir") == [None, None]
    assert not (tmp_path / "no").exists()

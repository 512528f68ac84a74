"""Scratch folders and checkpoints that nobody needs."""

from __future__ import annotations

from pathlib import Path

from service.resources import new_id
from tests.worker.reconcile.rounds import claim, make_old
from worker.materials import open_checkpoints
from worker.supervisor import scratch_name
from worker.upkeep.collector import STRANGE_SECONDS
from worker.upkeep.garbage import attempt_of, collect_scratch

# What a folder that is shared with others may hold beside ours.
FOREIGN = ("models", "job_x.1", "job.1", "important.checkpoints", "job_x.checkpoints", "tmp.2", "mnt.checkpoints.1")


def put(bench, name: str, age_seconds: float) -> Path:
    folder = bench.settings.scratch_dir / name
    (folder / "model").mkdir(parents=True)
    make_old(folder, age_seconds)
    return folder


def test_what_attempts_that_do_not_run_have_left_is_removed(bench, collector):
    queued, running, ended = bench.submit(), bench.submit(), bench.submit()
    claim(bench, running)
    bench.cancel(ended)
    for name in (scratch_name(running, 1), scratch_name(running, 0), scratch_name(ended, 1)):
        put(bench, name, 3600)
    put(bench, scratch_name(ended, 2), 0)
    for job_id in (queued, running, ended):
        make_old(open_checkpoints(bench.settings.scratch_dir, job_id, limit_bytes=0), 3600)
    assert collector("scratch").collect(100).items == 2
    assert collector("checkpoints").collect(100).items == 1
    kept = [f"{job_id}.checkpoints" for job_id in (queued, running)]  # of jobs that may run again
    assert bench.scratch_folders() == sorted([scratch_name(running, 1), scratch_name(ended, 2), *kept])


def test_what_others_have_in_the_same_folder_is_left_alone(bench, collector):
    """However old: a collector, and a worker that starts, know their own folders by name."""
    for name in FOREIGN:
        put(bench, name, 100 * STRANGE_SECONDS)
    assert collector("scratch").count().items == collector("checkpoints").count().items == 0
    assert collect_scratch(bench.settings, bench.database) == 0
    assert bench.scratch_folders() == sorted(FOREIGN)
    assert all((bench.settings.scratch_dir / name / "model").is_dir() for name in FOREIGN)


def test_folders_of_another_installation_stay_until_nobody_can_be_using_them(bench):
    theirs, gone = new_id("job"), new_id("job")
    mine = [scratch_name(theirs, 3), f"{theirs}.checkpoints"]
    for name in mine:
        put(bench, name, STRANGE_SECONDS - 3600)
    for name in (scratch_name(gone, 1), f"{gone}.checkpoints"):
        put(bench, name, STRANGE_SECONDS + 3600)
    assert collect_scratch(bench.settings, bench.database) == 2
    assert bench.scratch_folders() == sorted(mine)


def test_the_name_of_a_scratch_folder_tells_whose_it_is_and_no_other_name_does():
    job_id = new_id("job")
    assert [attempt_of(scratch_name(job_id, attempt)) for attempt in (1, 12)] == [(job_id, 1), (job_id, 12)]
    for rest in ("", ".", ".x", ".-1", ".1.2", ".\u0661", ".checkpoints"):
        assert attempt_of(job_id + rest) is None, rest

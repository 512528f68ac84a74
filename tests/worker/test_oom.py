"""The kernel's OOM killer, real: workers in a control group with little memory, whose runners want more of it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from service.quarantine import repository
from service.quarantine.suspects import digest_of
from service.tables import Job, Quarantine
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.memory_group import memory_group
from tests.worker.running import environment
from tests.worker.workbench import Workbench

pytestmark = [pytest.mark.slow, pytest.mark.long]

MIB = 1024**2
GROUP_MIB = 768
# A job may take more than is left beside its worker: the watch, which would end it at its share, never sees it there.
SHARE_MIB = 740
NEAR_MIB = 610
# Joins the group and runs one job; its runner is in the group, too.
WORKER = f"""
import os, sys
from pathlib import Path
Path(sys.argv[1]).write_text(str(os.getpid()))
from tests.worker.workbench import Workbench
bench = Workbench(Path(sys.argv[2]), job_memory_bytes={SHARE_MIB} << 20)
bench.supervisor(sys.argv[4]).run(sys.argv[3])
bench.close()
"""
# Seen with most of its share, and then killed for the rest of it.
GREEDY = f"""
held = []
while True:
    held.append(b"x" * (1 << 20))
    time.sleep(1.0 if len(held) == {NEAR_MIB} else 0.0)
"""
# It holds a quarter of its share; what is beside it takes all the rest.
MODEST = f"""
held = b"x" * ({SHARE_MIB // 4} << 20)
open(os.environ["BENCH"] + "/holds", "w").close()
time.sleep({PATIENCE_SECONDS})
"""
HOG = """
import os, sys, time
from pathlib import Path
Path(sys.argv[1]).write_text(str(os.getpid()))
while not os.path.exists(sys.argv[2]): time.sleep(0.02)
held = []
while True:
    held.append(b"x" * (1 << 20))
    time.sleep(0.001)
"""


def work(bench: Workbench, members: Path, job_id: str, runner: str) -> Job:
    """Let a worker in the group run the job; the job afterwards."""
    done = subprocess.run(
        [sys.executable, "-c", WORKER, str(members), str(bench.folder), job_id, runner],
        env=environment(), capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return bench.job(job_id)


def held(bench: Workbench, job: Job) -> Quarantine | None:
    with bench.database.read() as session:
        return repository.held(session, "default", digest_of(bench.model(job.model_id).files))


def test_a_model_that_the_kernel_ends_twice_is_told_so_and_quarantined(bench: Workbench) -> None:
    ended, refused = [bench.submit(), bench.submit()], bench.submit()
    with memory_group(GROUP_MIB * MIB) as members:
        jobs = [work(bench, members, job_id, GREEDY) for job_id in ended]
    for job in jobs:
        assert (job.state, job.attempt, job.error["code"]) == ("failed", 1, "resource-limit"), job.error
        assert job.error["where"]["resource"] == "memory"
        assert 0.8 * SHARE_MIB * MIB <= job.error["where"]["used_bytes"] <= SHARE_MIB * MIB
    assert bench.model(jobs[0].model_id).status == "rejected"
    found = held(bench, jobs[1])
    assert found is not None
    assert (found.crashes, found.job_id) == (2, ended[1])
    assert "kernel" in found.reason
    assert found.digest in jobs[1].error["hint"]
    bench.supervisor("open(os.environ['BENCH'] + '/ran', 'w'); succeed()").run(refused)
    assert bench.job(refused).error["code"] == "model-quarantined"
    assert not (bench.folder / "ran").exists()


def test_a_runner_that_the_kernel_ends_for_the_memory_of_others_is_tried_again(bench: Workbench) -> None:
    job_id = bench.submit()
    with memory_group(GROUP_MIB * MIB) as members:
        with subprocess.Popen([sys.executable, "-c", HOG, str(members), str(bench.folder / "holds")]) as hog:
            try:
                job = work(bench, members, job_id, MODEST)
            finally:
                hog.kill()
        assert (job.state, job.attempt, job.interruptions) == ("queued", 1, 0), job.error
        assert "memory" in str(bench.events(job_id, "state")[-1].data)
        assert work(bench, members, job_id, "succeed()").state == "succeeded"
    assert held(bench, job) is None

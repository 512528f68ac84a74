"""GPU memory of a job: what the driver tells of it, and that too little of it is told once and not tried again."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from tests.worker.workbench import WRITE_PID, Workbench
from worker.gpu_memory import GpuWatch, bytes_of

MIB = 1024**2


def test_the_table_tells_what_the_processes_hold_together() -> None:
    table = "11, 512\n12, 100\n11, 256\n13, [N/A]\nNo running processes found\n"
    assert bytes_of(table, {11, 13}) == 768 * MIB
    assert bytes_of(table, {12}) == 100 * MIB
    assert bytes_of(table, {13, 99}) is None, "a process that nobody knows holds an unknown amount, not nothing"


@pytest.fixture
def driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder at the head of PATH for a program that is called nvidia-smi."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder), prepend=":")
    monkeypatch.setattr("worker.supervisor.GpuWatch", partial(GpuWatch, period_seconds=0.02))
    return folder


def install(folder: Path, script: str) -> None:
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


# Ends once the driver was asked a second time after the job's process was there.
AFTER_TWO_LOOKS = (
    WRITE_PID
    + """
while len(glob.glob(os.environ["BENCH"] + "/looked-*")) < 2: time.sleep(0.01)
"""
)


def test_the_peak_is_an_event_of_the_job(bench: Workbench, driver: Path) -> None:
    pids = bench.folder / "pid"
    install(driver, f'if [ -e {pids} ]; then echo "$(cat {pids}), 300"; touch {bench.folder}/looked-$$; fi')
    job = bench.submit(queue="gpu")
    bench.supervisor("import glob\n" + AFTER_TWO_LOOKS + "succeed()").run(job)
    (event,) = bench.events(job, "metric")
    assert event.data == {"stage": "gpu", "step": 1, "peak_memory_bytes": 300 * MIB}
    assert bench.states(job) == ["succeeded"]


@pytest.mark.parametrize("script", ["exit 9", "echo 'Failed to initialize NVML'"])
def test_a_driver_that_tells_nothing_harms_no_job(bench: Workbench, driver: Path, script: str) -> None:
    install(driver, f"touch {bench.folder}/looked\n{script}")
    job = bench.submit(queue="gpu")
    bench.supervisor('while not os.path.exists(os.environ["BENCH"] + "/looked"): time.sleep(0.01)\nsucceed()').run(job)
    assert (bench.states(job), bench.events(job, "metric")) == (["succeeded"], [])


def test_jobs_of_other_queues_do_not_ask_the_driver(bench: Workbench, driver: Path) -> None:
    install(driver, f"touch {bench.folder}/looked")
    job = bench.submit()
    bench.supervisor("time.sleep(0.2)\nsucceed()").run(job)
    assert bench.states(job) == ["succeeded"]
    assert not (bench.folder / "looked").exists()

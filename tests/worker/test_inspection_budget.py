"""An inspection has a budget of its own: what breaks it is told with the number, what lacked the machine goes on."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worker.test_slots import pool
from tests.worker.workbench import WAIT, Workbench, wait_for
from worker.sandbox import InspectionBudget, budget_of

MIB = 1 << 20


def test_the_budget_grows_with_the_files_and_with_each_try_that_lacked_the_machine(bench, tmp_path):
    jobs = {"inspect_model": bench.job(bench.submit()), "inspect_dataset": bench.job(bench.inspect_dataset())}

    def budget(size: int, kind: str = "inspect_model", name: str = "net.onnx", tries: int = 0) -> InspectionBudget:
        folder = tmp_path / f"{kind}-{size}-{name}"
        folder.mkdir(exist_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(size)
        jobs[kind].interruptions = tries
        found = budget_of(jobs[kind], folder, bench.settings, share_bytes=64 << 30)
        assert found is not None
        return found

    hundred = 100 * 10**6
    assert budget(0).cpu_seconds == budget(0).wall_seconds == 60.0
    assert budget(3 * hundred).wall_seconds == pytest.approx(90.0)
    assert budget(3 * hundred, "inspect_dataset").wall_seconds == pytest.approx(150.0)
    assert budget(3 * hundred).memory_bytes == (2 << 30) + 24 * hundred
    assert (budget(0, tries=2).cpu_seconds, budget(0, tries=2).wall_seconds) == (60.0, 240.0)
    assert budget(0, tries=99).wall_seconds == 60.0 * 64
    assert budget(0, name="net.pt2").cpu_seconds == 600.0
    small = budget_of(jobs["inspect_model"], tmp_path, bench.settings, share_bytes=64 * MIB)
    assert small is not None
    assert (small.memory_bytes, small.memory_is_own) == (64 * MIB, False)
    jobs["inspect_model"].kind = "quantize"
    assert budget_of(jobs["inspect_model"], tmp_path, bench.settings, share_bytes=1) is None


# --- with real runners -----------------------------------------------------------------------------------------------

SPIN = "while True: pass\n"
SLEEP = "time.sleep(1000)\n"
EAT = "held = [b'x' * (8 << 20) for _ in range(20)]\n"


@pytest.fixture
def hasty(tmp_path: Path) -> Iterator[Workbench]:
    workbench = Workbench(tmp_path / "hasty", inspection_seconds=1.0)
    yield workbench
    workbench.close()


def rejected(bench: Workbench, job_id: str) -> dict:
    model = bench.model(bench.job(job_id).model_id)
    assert model.status == "rejected"
    (problem,) = model.problems
    return problem


def test_a_model_that_burns_a_cpu_is_rejected_with_the_number(hasty: Workbench) -> None:
    job = hasty.submit()
    supervisor = hasty.supervisor(SPIN)
    for _ in range(5):  # where others have the CPU, its time on the clock is over first, and doubled
        supervisor.run(job)
        if hasty.job(job).state == "failed":
            break
    problem = rejected(hasty, job)
    assert (problem["code"], problem["where"]["limit"]) == ("too-complex", "cpu_seconds")
    assert problem["where"]["most"] == pytest.approx(1.0, abs=0.1)


def test_a_model_that_only_waits_is_tried_again(hasty: Workbench) -> None:
    job = hasty.submit()
    hasty.supervisor(SLEEP).run(job)
    assert hasty.standing(job) == ("queued", 1, 1)
    assert hasty.job(job).waiting["code"] == "validation-overdue"
    model_id = hasty.job(job).model_id
    assert hasty.model(model_id).status == "validating"
    hasty.supervisor("succeed()").run(job)
    assert hasty.model(model_id).status == "ready"


def test_a_model_that_eats_memory_is_rejected_with_the_number(bench, monkeypatch):
    monkeypatch.setattr("worker.sandbox._FREE_BYTES", 64 * MIB)
    job = bench.submit()
    bench.supervisor(EAT + SLEEP).run(job)
    problem = rejected(bench, job)
    assert (problem["code"], problem["where"]["limit"]) == ("too-complex", "memory_bytes")
    assert problem["where"]["found"] > problem["where"]["most"] >= 64 * MIB


def test_one_slow_file_holds_up_nobody(bench: Workbench) -> None:
    """Two files are looked into for as long as they like; others become ready meanwhile, in the slot that is left."""
    supervisor = bench.supervisor("if open(task['model_path'], 'rb').read() == b'slow':\n    " + WAIT + "succeed()")
    slow = [bench.submit(model_id=bench.add_model({"net.onnx": b"slow"})) for _ in range(2)]
    with pool(bench, *[supervisor] * bench.settings.inspection_slots) as worker:
        worker.dispatcher.wake()
        wait_for(lambda: bench.states(*slow) == ["running"] * 2)
        quick = [bench.submit("other") for _ in range(3)]
        wait_for(lambda: bench.states(*quick) == ["succeeded"] * 3)
        assert bench.states(*slow) == ["running"] * 2

"""An inspection has a budget of its own: what breaks it is told with the number, what lacked the machine goes on."""

from __future__ import annotations

import signal
import threading
from pathlib import Path

import pytest

from service.contracts.errors import NotOnnxError, ResourceLimitError
from service.contracts.runner import EXIT_RESOURCE_LIMIT, ErrorLine
from tests.security.corpus import models
from tests.worker.workbench import QUICK, Workbench, finish, run_in_thread, wait_for
from worker.inspection_budget import InspectionBudget, budget_of
from worker.outcome import Ending, Failed, Interrupted, StopReason, classify
from worker.slots import Slot, Slots
from worker.supervisor import Supervisor

MIB = 1 << 20
BUDGET = InspectionBudget(cpu_seconds=60.0, wall_seconds=60.0, memory_bytes=2 << 30, memory_is_own=True)
NO_MEMORY = ResourceLimitError("no memory", resource="memory", used_bytes=7).problem()
NO_DISK = ResourceLimitError("no disk", resource="disk").problem()


def ending(returncode: int = -signal.SIGKILL, **circumstances: object) -> Ending:
    circumstances.setdefault("budget", BUDGET)
    last = circumstances.pop("last", None)
    return Ending(returncode, last, circumstances.pop("stopped", None), "", 1, 3, **circumstances)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("what", "limit", "found", "most"),
    [
        (ending(stopped=StopReason.BUDGET, cpu_seconds=59.0), "cpu_seconds", 59.0, 60.0),
        (ending(-signal.SIGXCPU), "cpu_seconds", 60.0, 60.0),
        (ending(stopped=StopReason.MEMORY, memory=NO_MEMORY), "memory_bytes", 7, 2 << 30),
        (ending(memory=NO_MEMORY), "memory_bytes", 7, 2 << 30),
        (ending(EXIT_RESOURCE_LIMIT, last=ErrorLine(problem=NO_MEMORY)), "memory_bytes", 7, 2 << 30),
    ],
)
def test_what_breaks_the_budget_is_too_complex(what: Ending, limit: str, found: float, most: float) -> None:
    outcome = classify(what)
    assert isinstance(outcome, Failed)
    assert outcome.problem.code == "too-complex"
    assert outcome.problem.where == {"limit": limit, "found": found, "most": most}
    assert str(most) in outcome.problem.detail
    assert outcome.problem.hint


SHARE = InspectionBudget(cpu_seconds=60.0, wall_seconds=60.0, memory_bytes=2 << 30, memory_is_own=False)


@pytest.mark.parametrize(
    "what",
    [
        ending(stopped=StopReason.MEMORY, memory=NO_MEMORY, budget=SHARE),
        ending(EXIT_RESOURCE_LIMIT, last=ErrorLine(problem=NO_MEMORY), budget=SHARE),
        ending(EXIT_RESOURCE_LIMIT, last=ErrorLine(problem=NO_DISK)),
        ending(-signal.SIGXCPU, budget=None),
    ],
)
def test_limits_of_the_machine_are_told_as_such(what: Ending) -> None:
    outcome = classify(what)
    assert isinstance(outcome, Failed)
    assert outcome.problem.code == "resource-limit"


def test_time_that_ran_out_without_a_cpu_is_no_fault_of_the_file() -> None:
    outcome = classify(ending(stopped=StopReason.BUDGET, cpu_seconds=30.0))
    assert isinstance(outcome, Interrupted)
    assert outcome.waiting is not None
    assert outcome.waiting.code == "validation-overdue"


def test_the_budget_grows_with_the_files_and_with_each_try_that_lacked_the_machine(
    bench: Workbench, tmp_path: Path
) -> None:
    def budget(size: int, kind: str = "inspect_model", name: str = "net.onnx", tries: int = 0) -> InspectionBudget:
        folder = tmp_path / f"{kind}-{size}-{name}"
        folder.mkdir(exist_ok=True)
        with (folder / name).open("wb") as file:
            file.truncate(size)
        job = bench.job(bench.submit(kind=kind, **({} if kind == "inspect_model" else {"dataset_id": dataset})))
        job.interruptions = tries
        found = budget_of(job, folder, bench.settings, share_bytes=64 << 30)
        assert found is not None
        return found

    dataset = bench.add_dataset()
    hundred = 100 * 10**6
    assert budget(0).cpu_seconds == budget(0).wall_seconds == 60.0
    assert budget(3 * hundred).wall_seconds == pytest.approx(90.0)
    assert budget(3 * hundred, "inspect_dataset").wall_seconds == pytest.approx(150.0)
    assert budget(3 * hundred).memory_bytes == (2 << 30) + 24 * hundred
    assert (budget(0, tries=2).cpu_seconds, budget(0, tries=2).wall_seconds) == (60.0, 240.0)
    assert budget(0, tries=99).wall_seconds == 60.0 * 64
    assert budget(0, name="net.pt2").cpu_seconds == 600.0
    small = budget_of(bench.job(bench.submit()), tmp_path, bench.settings, share_bytes=64 * MIB)
    assert small is not None
    assert (small.memory_bytes, small.memory_is_own) == (64 * MIB, False)


def test_other_jobs_have_none(bench: Workbench, tmp_path: Path) -> None:
    job = bench.job(bench.submit())
    job.kind = "quantize"
    assert budget_of(job, tmp_path, bench.settings, share_bytes=1) is None


# --- with real runners -----------------------------------------------------------------------------------------------

SPIN = "while True: pass\n"
SLEEP = "time.sleep(1000)\n"
EAT = "held = [b'x' * (8 << 20) for _ in range(20)]\n"


@pytest.fixture
def hasty(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A service that gives an inspection one second."""
    workbench = Workbench(tmp_path / "hasty", inspection_seconds=1.0)
    yield workbench
    workbench.close()


def test_a_model_that_burns_a_cpu_is_rejected_with_the_number(hasty: Workbench) -> None:
    job = hasty.submit()
    supervisor = hasty.supervisor(SPIN)
    for _ in range(5):  # where others have the CPU, its time on the clock is over first, and doubled
        supervisor.run(job)
        if hasty.job(job).state == "failed":
            break
    model = hasty.model(hasty.job(job).model_id)
    assert model.status == "rejected"
    (problem,) = model.problems
    assert problem["code"] == "too-complex"
    assert problem["where"]["limit"] == "cpu_seconds"
    assert problem["where"]["most"] == pytest.approx(1.0, abs=0.1)


def test_a_model_that_only_waits_is_tried_again(hasty: Workbench) -> None:
    job = hasty.submit()
    hasty.supervisor(SLEEP).run(job)
    found = hasty.job(job)
    assert (found.state, found.interruptions) == ("queued", 1)
    assert found.waiting is not None
    assert found.waiting["code"] == "validation-overdue"
    assert hasty.model(found.model_id).status == "validating"
    hasty.supervisor("succeed()").run(job)
    assert hasty.model(found.model_id).status == "ready"


def test_a_model_that_eats_memory_is_rejected_with_the_number(
    bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("worker.inspection_budget._FREE_BYTES", 64 * MIB)
    job = bench.submit()
    bench.supervisor(EAT + SLEEP).run(job)
    model = bench.model(bench.job(job).model_id)
    assert model.status == "rejected"
    (problem,) = model.problems
    assert problem["code"] == "too-complex"
    assert problem["where"]["limit"] == "memory_bytes"
    assert problem["where"]["found"] > problem["where"]["most"] >= 64 * MIB


def test_another_error_stays_what_it_is(hasty: Workbench) -> None:
    problem = NotOnnxError("no model").problem().model_dump_json()
    job = hasty.submit()
    hasty.supervisor(f"say(line='error', problem=json.loads({problem!r}))\nsys.exit(10)").run(job)
    (problem_found,) = hasty.model(hasty.job(job).model_id).problems
    assert problem_found["code"] == "not-onnx"


@pytest.mark.parametrize(
    ("data", "code", "limit"),
    [
        (models.fan(16), "too-complex", "unfolded_nodes"),
        (models.nests(9), "too-complex", "subgraph_depth"),
        (models.circle(2), "unsupported-model", None),
    ],
)
def test_a_bomb_is_rejected_by_a_real_runner(bench: Workbench, data: bytes, code: str, limit: str | None) -> None:
    job = bench.submit(model_id=bench.add_model({"net.onnx": data}))
    Supervisor(bench.settings, bench.database, bench.store, timing=QUICK).run(job)
    model = bench.model(bench.job(job).model_id)
    assert model.status == "rejected"
    (problem,) = model.problems
    assert problem["code"] == code
    assert problem["where"].get("limit") == limit
    assert problem["hint"]


def test_one_slow_file_holds_up_nobody(bench: Workbench) -> None:
    """Two files are looked into for as long as they like; others become ready meanwhile, in the slot that is left."""
    supervisor = bench.supervisor(
        """
        if open(task["model_path"], "rb").read() == b"slow":
            while not os.path.exists(os.environ["BENCH"] + "/go"): time.sleep(0.02)
        succeed()
        """
    )
    slow = [bench.submit(model_id=bench.add_model({"net.onnx": b"slow"})) for _ in range(2)]
    slots = Slots([Slot(supervisor) for _ in range(bench.settings.inspection_slots)], bench.database, ("inspect",))
    threads = [threading.Thread(target=slots.work) for _ in range(3)]
    for thread in threads:
        thread.start()
    wait_for(lambda: all(bench.job(job).state == "running" for job in slow))
    quick = [bench.submit() for _ in range(5)]
    slots.work()
    wait_for(lambda: all(bench.job(job).state == "succeeded" for job in quick))
    assert [bench.job(job).state for job in slow] == ["running"] * 2
    (bench.folder / "go").touch()
    for thread in threads:
        finish(thread)


def test_a_stopped_inspection_is_not_held_against_its_time(bench: Workbench) -> None:
    """A cancel comes before the budget."""
    job = bench.submit()
    thread = run_in_thread(bench.supervisor(SLEEP), job)
    wait_for(lambda: bench.job(job).state == "running")
    bench.cancel(job)
    finish(thread)
    assert bench.job(job).state == "canceled"

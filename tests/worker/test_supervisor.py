"""The supervisor on a real database with real child processes: every way in which an attempt can end."""

from __future__ import annotations

import json
import threading

import pytest
from sqlalchemy import update

from service.db import db_now
from service.jobs import transitions
from service.tables import Job
from tests.worker.workbench import (
    UNTIL_ASKED,
    UNTIL_GO,
    WRITE_PID,
    finish,
    process_gone,
    run_in_thread,
    runner_pid,
    wait_for,
)
from worker.lease import Timing


def test_success_makes_the_job_succeed_and_its_model_ready(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor(
        """
        for done in range(3):
            say(line="progress", stage="parse", done=done, total=2, unit="nodes")
        log("all is well")
        succeed()
        """
    )
    assert supervisor.run(job_id) is not None
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.worker_id is not None) == ("succeeded", 1, True)
    model = bench.model(job.model_id)
    assert (model.status, model.summary["producer"]) == ("ready", "test")
    assert bench.names(job_id) == ["job.queued", "job.claimed", "job.succeeded"]
    assert bench.logged(job_id) == ["all is well"]
    assert bench.events(job_id, "progress")[-1].data == {
        "stage": "parse", "done": 2, "total": 2, "unit": "nodes", "message": "",
        "share": None, "seconds_left": None,
    }  # fmt: skip
    assert bench.scratch_folders() == []


def test_a_job_is_run_once_however_often_it_is_announced(bench):
    job_id = bench.submit()
    code = "open(os.environ['BENCH'] + '/runs', 'a').write('x')\n" + UNTIL_GO
    supervisor = bench.supervisor(code)
    threads = [run_in_thread(supervisor, job_id) for _ in range(5)]
    runner_pid(bench)
    wait_for(lambda: sum(thread.is_alive() for thread in threads) == 1)
    bench.go()
    for thread in threads:
        finish(thread)
    assert supervisor.run(job_id) is None
    assert (bench.folder / "runs").read_text() == "x"
    assert bench.standing(job_id) == ("succeeded", 1, 0)
    assert supervisor.run("job_00000000000000000000000000") is None


def test_progress_is_seen_and_the_lease_renewed_however_long_the_runner_is_silent(bench):
    code = "say(line='progress', stage='wait', done=1, total=2)\n" + UNTIL_GO
    job_id, thread, _ = bench.begin(code, timing=Timing(lease=30, renew=0.2, look=0.1))
    wait_for(lambda: bench.job(job_id).stage == "wait")
    assert (bench.job(job_id).progress["done"], bench.job(job_id).state) == (1, "running")
    for _ in range(3):
        before = bench.job(job_id).lease_until
        wait_for(lambda until=before: bench.job(job_id).lease_until > until, message="the lease was not renewed")
    bench.go()
    finish(thread)
    assert bench.job(job_id).state == "succeeded"


@pytest.mark.parametrize(("code", "exit_code"), [("not-onnx", 10), ("resource-limit", 12)])
def test_a_typed_error_fails_the_job_at_once_and_rejects_the_model(bench, code, exit_code):
    job_id = bench.submit()
    problem = {"type": "", "title": "t", "status": 422, "detail": "no model", "code": code, "hint": "send a model"}
    bench.supervisor(f"say(line='error', problem={problem})\nsys.exit({exit_code})").run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.error["code"]) == ("failed", 1, code)
    model = bench.model(job.model_id)
    assert (model.status, [problem["code"] for problem in model.problems]) == ("rejected", [code])


def test_a_crash_is_retried_until_the_attempts_are_used_up_then_poison(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor(
        "say(line='metric', stage='qat', step=2, values=dict(loss=1.0))\n"
        "sys.stderr.write('about to fault\\n'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    for attempt in (1, 2):
        assert supervisor.run(job_id)
        assert bench.standing(job_id) == ("queued", attempt, 0)
    assert supervisor.run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.error["code"]) == ("failed", 3, "poison")
    assert "SIGKILL" in job.error["detail"]
    assert job.error["where"]["stderr"].strip() == "about to fault"
    assert bench.model(job.model_id).status == "rejected"
    assert supervisor.run(job_id) is None
    assert [event.attempt for event in bench.events(job_id, "metric")] == [1, 2, 3]


def test_a_retry_waits_for_its_backoff(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor("sys.exit(15)", timing=Timing(backoff=lambda attempt: 100.0 * attempt))
    supervisor.run(job_id)
    job = bench.job(job_id)
    assert job.state == "queued"
    assert 90 < (job.not_before - job.updated_at).total_seconds() < 110
    assert job.dispatched_at is None
    assert supervisor.run(job_id) is None


METRIC = '{"line": "metric", "stage": "qat", "step": 1, "values": {"a": "x"}}'


@pytest.mark.parametrize(
    "code",
    ["sys.exit(0)", "os.write(3, b'garbage\\n'); time.sleep(600)", f"os.write(3, b'{METRIC}\\n'); time.sleep(600)"],
    ids=["no result", "garbage", "no metric"],
)
def test_what_says_nothing_that_can_be_read_is_a_crash(bench, code):
    job_id = bench.submit()
    bench.supervisor(code).run(job_id)
    assert bench.standing(job_id) == ("queued", 1, 0)
    assert bench.events(job_id, "metric") == []


def test_cancel_stops_the_runner_which_finds_the_flag(bench):
    code = (
        """
def stop(*_):
    flag = os.path.exists(os.path.join(os.path.dirname(task_file), "canceled"))
    open(os.environ["BENCH"] + "/flag", "w").write(str(flag))
    sys.exit(11)
signal.signal(signal.SIGTERM, stop)
"""
        + UNTIL_GO
    )
    job_id, thread, pid = bench.begin(code)
    bench.cancel(job_id)
    finish(thread)
    assert bench.job(job_id).state == "canceled"
    assert (bench.folder / "flag").read_text() == "True"
    assert process_gone(pid)


def test_a_runner_that_ignores_the_cancel_is_killed(bench):
    job_id, thread, pid = bench.begin("signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + UNTIL_GO)
    bench.cancel(job_id)
    finish(thread)
    assert bench.job(job_id).state == "canceled"
    assert process_gone(pid)


def test_a_cancel_that_comes_with_the_result_wins(bench):
    job_id, thread, _ = bench.begin(timing=Timing(lease=5, renew=2, look=60, flush=60, flush_max=60))
    bench.cancel(job_id)
    bench.go()
    finish(thread)
    job = bench.job(job_id)
    assert job.state == "canceled"
    assert bench.model(job.model_id).status == "rejected"


def test_shutdown_puts_the_job_back_uncharged(bench):
    stop = threading.Event()
    supervisor = bench.supervisor(UNTIL_ASKED, stopping=stop.is_set)
    job_id = bench.submit()
    thread = run_in_thread(supervisor, job_id)
    pid = runner_pid(bench)
    stop.set()
    finish(thread)
    assert bench.standing(job_id) == ("queued", 1, 1)
    assert process_gone(pid)
    assert supervisor.run(job_id) is None, "nothing is claimed during a shutdown"
    bench.supervisor("succeed()").run(job_id)
    assert bench.standing(job_id) == ("succeeded", 2, 1)


def test_a_runner_that_loses_its_lease_is_killed_and_nothing_is_written(bench):
    code = WRITE_PID + "while True: say(line='progress', stage='work', done=int(time.time())); time.sleep(0.02)\n"
    job_id, thread, pid = bench.begin(code)
    with bench.database.write() as session:
        session.execute(
            update(Job).where(Job.id == job_id).values(attempt=7, lease_until=db_now() + 600, worker_id="other")
        )
        before = session.get(Job, job_id, populate_existing=True).last_seq
    finish(thread)
    assert process_gone(pid)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.worker_id, job.last_seq) == ("running", 7, "other", before)
    assert bench.scratch_folders() == []


def test_the_deadline_ends_the_runner_and_silence_does(bench):
    given = {"kind": "inspect_target", "config": {"target": "qnn"}}
    late = bench.submit(**given, model_id=bench.add_model(), deadline_seconds=0.7)
    silent = bench.submit(**given, model_id=bench.add_model())
    code, timing = "while True: time.sleep(0.1)", Timing(lease=5, renew=0.2, look=0.1, stall=0.7)
    bench.supervisor(code).run(late)
    bench.supervisor(code, timing=timing).run(silent)
    assert bench.failure(late) == ("failed", "deadline-exceeded")
    assert bench.failure(silent) == ("failed", "stalled")


def test_the_deadline_of_a_validation_rejects_nothing(bench):
    """The runner is ended and the job queued; the reconciler gives it more time, and the next attempt is as any."""
    job_id = bench.submit(deadline_seconds=0.7)
    bench.supervisor("while True: time.sleep(0.1)").run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.waiting["code"], job.interruptions) == ("queued", "validation-overdue", 1)
    model = bench.model(job.model_id)
    assert (model.status, model.waiting["code"]) == ("validating", "validation-overdue")
    with bench.database.write() as session:
        assert [moved.id for moved in transitions.expire_deadlines(session)] == [job_id]
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(not_before=db_now()))
    assert bench.supervisor("succeed()").run(job_id)
    assert bench.model(job.model_id).status == "ready"


def test_a_task_names_model_config_and_data_which_are_copies(bench):
    job_id = bench.submit(
        kind="quantize",
        model_id=bench.add_model({"net.onnx": b"graph", "weights.bin": b"weights"}),
        calibration_dataset_id=bench.add_dataset(b"calibration"),
        evaluation_dataset_id=bench.add_dataset(b"evaluation", {"inputs": {"x": {"scale": 0.5}}}),
        config={"preset": "int8_per_tensor", "seed": 3},
    )
    bench.supervisor(
        """
        folder, main = os.path.split(task["model_path"])
        names = sorted(os.listdir(folder))
        log(json.dumps([
            main, names, [os.stat(os.path.join(folder, name)).st_nlink for name in names],
            open(os.path.join(folder, "weights.bin")).read(), os.getcwd() == os.path.dirname(task_file),
            task["config"]["seed"], task["config"]["weight"]["granularity"],
            open(task["calibration"]["path"]).read(), open(task["evaluation"]["path"]).read(),
            task["evaluation"]["preprocessing"]["inputs"]["x"]["scale"], os.listdir(task["output_dir"]),
            task["threads"],
        ]))
        sys.exit(15)
        """
    ).run(job_id)
    assert json.loads(*bench.logged(job_id)) == [
        "net.onnx", ["net.onnx", "weights.bin"], [1, 1], "weights", True,
        3, "per_tensor", "calibration", "evaluation", 0.5, [], 1,
    ]  # fmt: skip


def test_every_metric_is_an_event_however_quickly_they_come(bench):
    job_id = bench.submit()
    bench.supervisor(
        """
        for step in range(200):
            say(line="progress", stage="qat", done=step, total=200)
            say(line="metric", stage="qat", step=step, values=dict(train_loss=step / 4, metric=None))
        os.write(3, b'{"line":"metric","stage":"qat","step":200,"values":{"train_loss":NaN,"metric":Infinity}}\\n')
        log("trained")
        succeed()
        """,
        timing=Timing(flush=0.3, flush_max=0.3),
    ).run(job_id)
    assert bench.job(job_id).state == "succeeded"
    assert [event.data for event in bench.events(job_id, "metric")] == [
        *({"stage": "qat", "step": step, "train_loss": step / 4, "metric": None} for step in range(200)),
        {"stage": "qat", "step": 200, "train_loss": None, "metric": None},
    ]
    assert len(bench.events(job_id, "progress")) < 40
    assert [event.type for event in bench.events(job_id)][-2:] == ["log", "state"]

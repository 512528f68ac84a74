"""The supervisor on a real database with real child processes: every way in which an attempt can end."""

from __future__ import annotations

import json
import threading
import time

from sqlalchemy import update

from service.db import db_now
from service.jobs import transitions
from service.tables import Job
from tests.worker.workbench import (
    WRITE_PID,
    database_away,
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
    assert supervisor.run(job_id) is True
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.worker_id is not None) == ("succeeded", 1, True)
    model = bench.model(job.model_id)
    assert model.status == "ready"
    assert model.summary["producer"] == "test"
    assert [event.data["name"] for event in bench.events(job_id, "state")] == [
        "job.queued", "job.claimed", "job.succeeded",
    ]  # fmt: skip
    assert [event.data["message"] for event in bench.events(job_id, "log")] == ["all is well"]
    assert bench.events(job_id, "progress")[-1].data == {
        "stage": "parse", "done": 2, "total": 2, "unit": "nodes", "message": "",
        "share": None, "seconds_left": None,
    }  # fmt: skip
    assert bench.scratch_folders() == []


def test_a_job_is_run_once_however_often_it_is_announced(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor(
        """
        open(os.environ["BENCH"] + "/runs", "a").write("x")
        time.sleep(0.5)
        succeed()
        """
    )
    threads = [run_in_thread(supervisor, job_id) for _ in range(5)]
    for thread in threads:
        finish(thread)
    assert supervisor.run(job_id) is False
    assert (bench.folder / "runs").read_text() == "x"
    assert bench.job(job_id).attempt == 1


def test_progress_is_seen_while_the_job_runs(bench):
    job_id = bench.submit()
    thread = run_in_thread(
        bench.supervisor(
            """
            say(line="progress", stage="wait", done=1, total=2)
            while not os.path.exists(os.environ["BENCH"] + "/go"): time.sleep(0.02)
            succeed()
            """
        ),
        job_id,
    )
    wait_for(lambda: bench.job(job_id).stage == "wait")
    assert bench.job(job_id).progress["done"] == 1
    assert bench.job(job_id).state == "running"
    (bench.folder / "go").touch()
    finish(thread)
    assert bench.job(job_id).state == "succeeded"


def test_a_typed_error_fails_the_job_at_once_and_rejects_the_model(bench):
    job_id = bench.submit()
    bench.supervisor(
        """
        say(line="error", problem=dict(type="/v1/problems#not-onnx", title="t", status=422, detail="no model",
                                       code="not-onnx", hint="send a model"))
        sys.exit(10)
        """
    ).run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.error["code"]) == ("failed", 1, "not-onnx")
    model = bench.model(job.model_id)
    assert model.status == "rejected"
    assert [problem["code"] for problem in model.problems] == ["not-onnx"]


def test_a_crash_is_retried_until_the_attempts_are_used_up_then_poison(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor("sys.stderr.write('about to fault\\n'); os.kill(os.getpid(), signal.SIGKILL)")
    for attempt in (1, 2):
        assert supervisor.run(job_id)
        job = bench.job(job_id)
        assert (job.state, job.attempt) == ("queued", attempt)
    assert supervisor.run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.error["code"]) == ("failed", 3, "poison")
    assert "SIGKILL" in job.error["detail"]
    assert job.error["where"]["stderr"].strip() == "about to fault"
    assert bench.model(job.model_id).status == "rejected"
    assert supervisor.run(job_id) is False


def test_a_retry_waits_for_its_backoff(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor("sys.exit(15)", backoff_seconds=lambda attempt: 100.0 * attempt)
    supervisor.run(job_id)
    job = bench.job(job_id)
    assert job.state == "queued"
    assert 90 < (job.not_before - job.updated_at).total_seconds() < 110
    assert job.dispatched_at is None
    assert supervisor.run(job_id) is False


def test_an_end_without_a_result_is_a_crash(bench):
    job_id = bench.submit()
    bench.supervisor("sys.exit(0)").run(job_id)
    assert bench.job(job_id).state == "queued"


def test_garbage_on_the_line_channel_is_a_crash(bench):
    job_id = bench.submit()
    bench.supervisor("os.write(3, b'garbage\\n'); time.sleep(600)").run(job_id)
    assert bench.job(job_id).state == "queued"


def test_a_resource_limit_fails_the_job(bench):
    job_id = bench.submit()
    bench.supervisor(
        """
        say(line="error", problem=dict(type="", title="t", status=413, detail="too much", code="resource-limit"))
        sys.exit(12)
        """
    ).run(job_id)
    assert (bench.job(job_id).state, bench.job(job_id).error["code"]) == ("failed", "resource-limit")


def test_cancel_stops_the_runner_which_finds_the_flag(bench):
    job_id = bench.submit()
    thread = run_in_thread(
        bench.supervisor(
            WRITE_PID
            + """
def stop(*_):
    flag = os.path.exists(os.path.join(os.path.dirname(task_file), "canceled"))
    open(os.environ["BENCH"] + "/flag", "w").write(str(flag))
    sys.exit(11)
signal.signal(signal.SIGTERM, stop)
while True: time.sleep(0.02)
"""
        ),
        job_id,
    )
    pid = runner_pid(bench)
    bench.cancel(job_id)
    finish(thread)
    assert bench.job(job_id).state == "canceled"
    assert (bench.folder / "flag").read_text() == "True"
    assert process_gone(pid)


def test_a_runner_that_ignores_the_cancel_is_killed(bench):
    job_id = bench.submit()
    thread = run_in_thread(
        bench.supervisor(
            "signal.signal(signal.SIGTERM, signal.SIG_IGN)\n" + WRITE_PID + "while True: time.sleep(0.1)\n"
        ),
        job_id,
    )
    pid = runner_pid(bench)
    bench.cancel(job_id)
    finish(thread)
    assert bench.job(job_id).state == "canceled"
    assert process_gone(pid)


def test_a_cancel_that_comes_with_the_result_wins(bench):
    """The runner is done, but its result was not published when the owner canceled."""
    job_id = bench.submit()
    slow = Timing(lease=5, renew=2, look=60, flush=60, flush_max=60)
    thread = run_in_thread(
        bench.supervisor(
            WRITE_PID + "while not os.path.exists(os.environ['BENCH'] + '/go'): time.sleep(0.02)\nsucceed()\n",
            timing=slow,
        ),
        job_id,
    )
    runner_pid(bench)
    bench.cancel(job_id)
    (bench.folder / "go").touch()
    finish(thread)
    job = bench.job(job_id)
    assert job.state == "canceled"
    assert bench.model(job.model_id).status == "rejected"


def test_shutdown_puts_the_job_back_uncharged(bench):
    job_id = bench.submit()
    stop = threading.Event()
    supervisor = bench.supervisor(
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(13))\n" + WRITE_PID + "while True: time.sleep(0.02)\n",
        stopping=stop.is_set,
    )
    thread = run_in_thread(supervisor, job_id)
    pid = runner_pid(bench)
    stop.set()
    finish(thread)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.interruptions) == ("queued", 1, 1)
    assert process_gone(pid)
    assert supervisor.run(job_id) is False, "nothing is claimed during a shutdown"
    bench.supervisor("succeed()").run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 2)


def test_a_runner_that_loses_its_lease_is_killed_and_nothing_is_written(bench):
    job_id = bench.submit()
    thread = run_in_thread(
        bench.supervisor(
            WRITE_PID + "while True: say(line='progress', stage='work', done=int(time.time())); time.sleep(0.02)\n"
        ),
        job_id,
    )
    pid = runner_pid(bench)
    with bench.database.write() as session:
        session.execute(
            update(Job).where(Job.id == job_id).values(attempt=7, lease_until=db_now() + 600, worker_id="other")
        )
        before = session.get(Job, job_id, populate_existing=True).last_seq
    finish(thread)
    assert process_gone(pid)
    job = bench.job(job_id)
    assert (job.state, job.attempt, job.worker_id) == ("running", 7, "other")
    assert job.last_seq == before
    assert bench.scratch_folders() == []


def test_the_deadline_ends_the_runner(bench):
    config = {"target": "qnn"}
    job_id = bench.submit(kind="inspect_target", model_id=bench.add_model(), config=config, deadline_seconds=0.7)
    bench.supervisor("while True: time.sleep(0.1)").run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.error["code"]) == ("failed", "deadline-exceeded")


def test_the_deadline_of_a_validation_rejects_nothing(bench):
    """The runner is ended and the job queued; the reconciler gives it more time, and the next attempt is as any."""
    job_id = bench.submit(deadline_seconds=0.7)
    bench.supervisor("while True: time.sleep(0.1)").run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.waiting["code"], job.interruptions) == ("queued", "validation-overdue", 1)
    assert bench.model(job.model_id).status == "validating"
    assert bench.model(job.model_id).waiting["code"] == "validation-overdue"
    with bench.database.write() as session:
        assert [moved.id for moved in transitions.expire_deadlines(session)] == [job_id]
    with bench.database.write() as session:
        session.execute(update(Job).where(Job.id == job_id).values(not_before=db_now()))
    assert bench.supervisor("succeed()").run(job_id)
    assert bench.model(job.model_id).status == "ready"


def test_a_silent_runner_is_stalled(bench):
    job_id = bench.submit()
    timing = Timing(lease=5, renew=0.2, look=0.1, stall=0.7)
    bench.supervisor("while True: time.sleep(0.1)", timing=timing).run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.error["code"]) == ("failed", "stalled")


def test_the_lease_outlives_a_long_silence(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor(
        WRITE_PID + "while not os.path.exists(os.environ['BENCH'] + '/go'): time.sleep(0.02)\nsucceed()\n",
        timing=Timing(lease=30, renew=0.2, look=0.1),
    )
    thread = run_in_thread(supervisor, job_id)
    runner_pid(bench)
    for _ in range(3):
        before = bench.job(job_id).lease_until
        wait_for(lambda until=before: bench.job(job_id).lease_until > until, message="the lease was not renewed")
    (bench.folder / "go").touch()
    finish(thread)
    assert bench.job(job_id).state == "succeeded"


def test_model_files_lie_under_their_names_and_are_copies(bench):
    model_id = bench.add_model({"net.onnx": b"graph", "weights.bin": b"weights"})
    job_id = bench.submit(model_id=model_id)
    bench.supervisor(
        """
        folder = os.path.dirname(task["model_path"])
        log(json.dumps([
            os.path.basename(task["model_path"]), sorted(os.listdir(folder)),
            [os.stat(os.path.join(folder, name)).st_nlink for name in sorted(os.listdir(folder))],
            open(os.path.join(folder, "weights.bin")).read(), os.getcwd() == os.path.dirname(task_file),
        ]))
        succeed()
        """
    ).run(job_id)
    (event,) = bench.events(job_id, "log")
    assert json.loads(event.data["message"]) == ["net.onnx", ["net.onnx", "weights.bin"], [1, 1], "weights", True]


def test_a_quantize_task_names_config_and_data(bench):
    model_id, calibration = bench.add_model(), bench.add_dataset(b"calibration")
    evaluation = bench.add_dataset(b"evaluation", {"inputs": {"x": {"scale": 0.5}}})
    job_id = bench.submit(
        kind="quantize",
        model_id=model_id,
        calibration_dataset_id=calibration,
        evaluation_dataset_id=evaluation,
        config={"preset": "int8_per_tensor", "seed": 3},
    )
    bench.supervisor(
        """
        log(json.dumps([task["config"]["seed"], task["config"]["weight"]["granularity"],
                        open(task["calibration"]["path"]).read(), open(task["evaluation"]["path"]).read(),
                        task["evaluation"]["preprocessing"]["inputs"]["x"]["scale"], os.listdir(task["output_dir"]),
                        task["threads"]]))
        sys.exit(15)
        """
    ).run(job_id)
    (event,) = bench.events(job_id, "log")
    assert json.loads(event.data["message"]) == [3, "per_tensor", "calibration", "evaluation", 0.5, [], 1]


def test_a_file_that_is_gone_from_the_store_fails_the_job_with_its_name(bench):
    job_id = bench.submit()
    sha256 = bench.model(bench.job(job_id).model_id).files[0].sha256
    bench.store.path(sha256).unlink()
    bench.supervisor("succeed()").run(job_id)
    job = bench.job(job_id)
    assert (job.state, job.error["code"]) == ("failed", "engine-error")
    assert sha256 in job.error["detail"]


def test_an_unknown_job_is_not_claimed(bench):
    assert bench.supervisor("succeed()").run("job_00000000000000000000000000") is False


def test_a_database_that_comes_back_in_time_costs_nothing(bench):
    job_id = bench.submit()
    supervisor = bench.supervisor(
        WRITE_PID + "while not os.path.exists(os.environ['BENCH'] + '/go'): time.sleep(0.02)\nsucceed()\n",
        timing=Timing(lease=30, renew=0.2, look=0.1),
    )
    thread = run_in_thread(supervisor, job_id)
    runner_pid(bench)
    with database_away(bench):
        time.sleep(1)
        (bench.folder / "go").touch()  # it even ends meanwhile
        time.sleep(1)
    finish(thread)
    job = bench.job(job_id)
    assert (job.state, job.attempt) == ("succeeded", 1)

"""``quantmill worker`` and ``quantmill reconcile`` as processes of their own."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from service.jobs.dispatch import Dispatcher
from service.workers.repository import live_queues
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import QUICK, environment, processes_of
from tests.worker.workbench import Workbench, wait_for


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-P", "-m", "worker.cli", *arguments]


@contextmanager
def worker(bench: Workbench, *options: str, **more: str) -> Iterator[subprocess.Popen[bytes]]:
    log = bench.folder / "worker.log"
    variables = environment(**{**QUICK, "QUANTMILL_DATA_DIR": str(bench.settings.data_dir), **more})
    with log.open("wb") as stream:
        process = subprocess.Popen(command("worker", *options), env=variables, stderr=stream, stdout=stream)
    try:
        wait_for(lambda: b"ready" in log.read_bytes(), message="the worker did not start")
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(PATIENCE_SECONDS)


def test_a_message_that_comes_during_the_shutdown_is_left_for_others(bench):
    dispatcher = Dispatcher(bench.settings)
    with worker(bench) as process:
        process.send_signal(signal.SIGTERM)
        job_id = bench.submit()
        dispatcher.publish(job_id, "cpu")
        assert process.wait(PATIENCE_SECONDS) == 0
    dispatcher.close()
    assert bench.job(job_id).state == "queued"
    assert len(list((bench.settings.broker_dir / "queue").iterdir())) == 1


def test_garbage_in_the_queue_harms_nobody(bench):
    """Messages of another kind, pickles among them, are thrown away; the next job is run."""
    dispatcher = Dispatcher(bench.settings)
    job_id = bench.submit()
    dispatcher.publish(job_id, "cpu")
    (message,) = (bench.settings.broker_dir / "queue").iterdir()
    good = json.loads(message.read_text())
    canary = bench.folder / "canary"
    pickled = base64.b64encode(f"cposix\nsystem\n(S'touch {canary}'\ntR.".encode()).decode()
    bad = [
        {**good, "content-type": "application/x-python-serialize", "body": pickled, "content-encoding": "binary"},
        {**good, "headers": {**good["headers"], "task": "os.system"}},
        {**good, "body": "bm90IGpzb24="},
    ]
    for number, document in enumerate(bad):
        document["properties"] = {**document["properties"], "delivery_tag": f"bad-{number}"}
        message.with_name(f"0{number}_bad.cpu.msg").write_text(json.dumps(document))
    with worker(bench):
        wait_for(lambda: bench.job(job_id).state in {"failed", "succeeded"})
        assert bench.job(job_id).error["code"] == "not-onnx"
        wait_for(lambda: not list(message.parent.iterdir()))
    assert not canary.exists()
    dispatcher.close()


def test_reconcile_once_says_what_it_did(bench):
    bench.submit()
    done = subprocess.run(
        command("reconcile", "--once"), env=environment(QUANTMILL_DATA_DIR=str(bench.settings.data_dir)),
        capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["redispatch"] == 1
    assert processes_of(bench.settings.data_dir) == {}


def test_an_unknown_queue_is_refused(bench):
    done = subprocess.run(
        command("worker", "--queues", "cpu,tpu"), env=environment(QUANTMILL_DATA_DIR=str(bench.settings.data_dir)),
        capture_output=True, text=True, timeout=PATIENCE_SECONDS,
    )  # fmt: skip
    assert done.returncode == 1
    assert "'tpu'" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_worker_says_which_queues_it_takes_jobs_from(bench):
    def seen():
        with bench.database.read() as session:
            return live_queues(session, {"cpu", "gpu", "inspect"})

    assert seen() == set()
    with worker(bench, "--queues", "gpu,inspect"):
        wait_for(seen, message="the worker did not announce itself")
        assert seen() == {"gpu", "inspect"}

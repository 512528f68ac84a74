"""The embedded service as its users start it: the main job, faults, and a clean end."""

from __future__ import annotations

import hashlib
import re
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
import redis
from typer.testing import CliRunner

from service.client import ApiError
from service.contracts.command_errors import AddressError, DataDirInUseError
from service.contracts.config import parse_config
from service.contracts.runner import DatasetSource, QuantizeTask
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny, make_nothing_to_quantize
from tests.worker.running import INSPECTOR, SLOW, Service, processes_of
from tests.worker.workbench import process_gone, wait_for
from worker.cli import app
from worker.embedded import EmbeddedService
from worker.memory import machine_memory_bytes, share_bytes
from worker.quantizer.command import quantize_files
from worker.quantizer.run.interface import SilentRun

pytestmark = pytest.mark.slow  # starts processes


def stop_runner(service: Service) -> int:
    """Freeze the runner of the next quantize job as soon as it is there."""
    pid = wait_for(lambda: next(iter(service.pids("worker.runner")), None), message="no runner")
    service.kill(pid, signal.SIGSTOP)
    return pid


def test_the_main_job_gives_the_bytes_of_a_run_in_process(service, inputs, tiny, tmp_path):
    job = service.client.submit(**inputs)
    events = list(service.client.follow(job.id))
    done = service.client.wait_succeeded(job.id)
    report = service.client.report(job.id)
    names = [event.data["name"] for event in events if event.type == "state"]
    assert names == ["job.queued", "job.claimed", "job.succeeded"]
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert done.attempt == 1
    artifacts = {artifact.kind: artifact for artifact in service.client.artifacts(job.id)}
    assert set(artifacts) == {"model", "report", "samples", "graph"}
    service.client.download_artifact(artifacts["model"].id, tmp_path / "q.onnx")
    data = (tmp_path / "q.onnx").read_bytes()
    assert hashlib.sha256(data).hexdigest() == report.manifest.output_sha256
    assert any(node.op_type == "QuantizeLinear" for node in onnx.load_from_string(data).graph.node)
    assert "top1" in report.quantized.metrics
    task = QuantizeTask(
        model_path=str(tiny.model), config=parse_config({}), calibration=DatasetSource(path=str(tiny.calibration)),
        evaluation=DatasetSource(path=str(tiny.evaluation)), output_dir=str(tmp_path), threads=1,
    )  # fmt: skip
    assert quantize_files(task, SilentRun()).report.manifest.output_sha256 == report.manifest.output_sha256


def test_the_workers_of_one_command_promise_the_machine_once(service):
    """One takes jobs, one inspects uploads; each may have been started more than once."""

    def shares() -> set[tuple[int, int]]:
        found = re.findall(r"worker\.share slots=(\d+) job_memory_bytes=(\d+)", service.log())
        return {(int(slots), int(share)) for slots, share in found}

    told = wait_for(lambda: len(found := shares()) == 2 and found, message="no worker told its share")
    slots = max(slots for slots, _ in told)
    assert told == {(1, share_bytes(2)), (slots, share_bytes(2) // slots)}
    assert sum(slots * share for slots, share in told) < machine_memory_bytes()


@pytest.mark.long
def test_nothing_to_quantize_succeeds_and_says_so(service, tmp_path):
    make_nothing_to_quantize(tmp_path / "same.onnx")
    np.savez(tmp_path / "data.npz", x=np.ones((4, 4), np.float32))
    model = service.client.wait_ready(service.client.push_model(tmp_path / "same.onnx"))
    data = service.client.wait_ready(service.client.push_dataset(tmp_path / "data.npz"))
    job = service.client.submit(model=model.id, calibration=data.id)
    service.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)
    report = service.client.report(job.id)
    assert "othing" in report.summary + " ".join(report.notes)
    assert all(layer.reason for layer in report.layers)


@pytest.mark.long
def test_a_broken_model_is_rejected_with_its_reason(service, tiny, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(tiny.model.read_bytes()[:300])
    with pytest.raises(ApiError) as caught:
        service.client.wait_ready(service.client.push_model(tmp_path / "broken.onnx"), timeout_seconds=PATIENCE_SECONDS)
    assert caught.value.problem().code in {"not-onnx", "invalid-model"}
    assert caught.value.problem().status == 422


@pytest.mark.long
def test_cancel_of_a_running_job(service, inputs):
    job = service.client.submit(**inputs, config=SLOW)
    pid = stop_runner(service)
    service.wait_for_state(job.id, "running")
    assert service.client.cancel(job.id).state == "canceling"
    service.kill(pid, signal.SIGCONT)
    assert service.wait_for_state(job.id, "canceled").artifacts == []
    wait_for(lambda: process_gone(pid))


@pytest.mark.long
def test_a_duplicate_message_makes_no_second_attempt(service, inputs):
    dispatcher = Dispatcher(Settings(data_dir=service.folder))
    job = service.client.submit(**inputs)
    for _ in range(4):
        dispatcher.publish(job.id, "cpu")
    service.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)
    dispatcher.publish(job.id, "cpu")
    after = service.client.submit(**inputs)
    service.client.wait_succeeded(after.id, timeout_seconds=PATIENCE_SECONDS)
    dispatcher.close()
    assert service.client.job(job.id).attempt == 1
    assert len(service.client.artifacts(job.id)) == 4


@pytest.mark.long
def test_killed_runners_are_retried_then_the_job_is_poison(service, inputs):
    job = service.client.submit(**inputs, config=SLOW)
    killed: set[int] = set()

    def kill_runners() -> bool:
        for pid in set(service.pids("worker.runner")) - killed:
            service.kill(pid)
            killed.add(pid)
        return service.client.job(job.id).state in {"failed", "succeeded"}

    wait_for(kill_runners)
    failed = service.client.job(job.id)
    assert (failed.state, failed.attempt, len(killed)) == ("failed", 3, 3)
    assert failed.error is not None
    assert failed.error.code == "poison"
    assert "SIGKILL" in failed.error.detail
    names = [event.data.get("name") for event in service.client.follow(job.id)]
    assert names.count("job.requeued") == 2


def test_a_killed_worker_loses_its_lease_and_the_job_runs_again(service, inputs):
    job = service.client.submit(**inputs, config={"evaluation": {"latency_runs": 1}})
    runner = stop_runner(service)
    service.wait_for_state(job.id, "running")
    worker = service.one("cli worker")
    service.kill(worker)
    wait_for(lambda: process_gone(runner), message="the runner outlived its worker")
    done = service.wait_for_state(job.id, "succeeded", "failed")
    assert (done.state, done.attempt) == ("succeeded", 2)
    assert service.one("cli worker") != worker
    names = [event.data["name"] for event in service.client.follow(job.id) if event.type == "state"]
    assert names == ["job.queued", "job.claimed", "job.lease_expired", "job.claimed", "job.succeeded"]


@pytest.mark.long
@pytest.mark.parametrize("word", ["cli api", "cli reconcile", INSPECTOR])
def test_a_killed_child_is_restarted(service, tiny, word):
    pid = service.one(word)
    service.kill(pid)
    wait_for(lambda: service.pids(word) not in ([], [pid]), message=f"{word} was not restarted")
    # Connections wait in the listening socket meanwhile: nothing is refused.
    job = service.client.submit(**service.upload(tiny))
    service.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.long
def test_stop_puts_the_running_job_back_and_leaves_nothing_behind(tmp_path, tiny):
    folder = tmp_path / "home"
    with Service(folder) as service:
        inputs = service.upload(tiny)
        job = service.client.submit(**inputs, config=SLOW)
        service.wait_for_state(job.id, "running")
        wait_for(lambda: service.pids("worker.runner"))
        assert service.stop() == 0
        assert processes_of(folder) == {}
        # nothing but what the next attempt may go on from
        assert {path.suffix for path in (folder / "scratch").iterdir()} <= {".checkpoints"}
    with Service(folder) as again:
        done = again.wait_for_state(job.id, "succeeded", "failed")
        assert (done.state, done.attempt, done.interruptions) == ("succeeded", 2, 1)
        again.process.kill()
        again.process.wait()
        wait_for(lambda: processes_of(folder) == {}, message=str(processes_of(folder)))


def test_a_taken_port_a_folder_in_use_and_an_open_address_are_refused(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        settings = Settings(data_dir=tmp_path, port=taken.getsockname()[1])
        with pytest.raises(AddressError, match="in use") as caught:
            EmbeddedService(settings)
    assert caught.value.hint
    service = EmbeddedService(Settings(data_dir=tmp_path, port=0))
    with pytest.raises(DataDirInUseError, match=r"process \d+"):
        EmbeddedService(Settings(data_dir=tmp_path, port=0))
    service.close()
    EmbeddedService(Settings(data_dir=tmp_path, port=0)).close()
    refused = CliRunner().invoke(app, ["up", "--host", "0.0.0.0", "--port", "0", "--data-dir", str(tmp_path)])
    assert refused.exit_code == 2
    assert "QUANTMILL_API_KEY" in refused.output


# --- who waits for whom ----------------------------------------------------------------------------------------------

CANCELED = 40


@contextmanager
def stopped(service: Service, word: str) -> Iterator[None]:
    pid = service.one(word)
    service.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        service.kill(pid, signal.SIGCONT)


def waiting_behind_canceled_jobs(service: Service, tiny: Tiny, count: Callable[[], int]) -> int:
    """Messages in the queue while a job runs that was submitted after CANCELED jobs, which were canceled there."""
    inputs = service.upload(tiny)
    with stopped(service, "cli worker"):  # the messages pile up
        for _ in range(CANCELED):
            service.client.cancel(service.client.submit(**inputs).id)
        job = service.client.submit(**inputs, config=SLOW)
        assert count() >= CANCELED  # one may be on its way to the stopped worker
    service.wait_for_state(job.id, "running")
    waiting = count()
    assert service.client.job(job.id).state == "running"
    service.client.cancel(job.id)
    service.wait_for_state(job.id, "canceled")
    return waiting


@pytest.mark.long
def test_canceled_jobs_hold_nobody_up(service: Service, tiny: Tiny) -> None:
    queue = service.folder / "broker" / "queue"
    assert waiting_behind_canceled_jobs(service, tiny, lambda: len(list(queue.glob("*.cpu.msg")))) > 0.9 * CANCELED


@pytest.mark.long
@pytest.mark.redis
def test_canceled_jobs_hold_nobody_up_on_redis(tmp_path: Path, tiny: Tiny, redis_url: str) -> None:
    with (
        Service(tmp_path / "home", QUANTMILL_BROKER_URL=redis_url, QUANTMILL_LEASE_SECONDS="10") as service,
        redis.Redis.from_url(redis_url) as client,
    ):
        assert waiting_behind_canceled_jobs(service, tiny, lambda: client.llen("cpu")) > 0.9 * CANCELED


@pytest.mark.long
def test_an_upload_is_validated_while_a_long_job_runs(service: Service, tiny: Tiny) -> None:
    job = service.client.submit(**service.upload(tiny), config=SLOW)
    runner = stop_runner(service)  # as long a job as can be; its lease is renewed by the worker
    service.wait_for_state(job.id, "running")
    try:
        service.upload(tiny)
        assert service.client.job(job.id).state == "running"
    finally:
        service.kill(runner, signal.SIGCONT)
    assert service.wait_for_state(job.id, "succeeded", "failed").attempt == 1


@pytest.mark.long
def test_a_lost_message_of_a_validation_is_sent_to_its_own_queue(service: Service, tiny: Tiny) -> None:
    queue = service.folder / "broker" / "queue"
    with stopped(service, INSPECTOR):
        model = service.client.push_model(tiny.model)
        for message in wait_for(lambda: list(queue.glob("*.inspect.msg"))):
            message.unlink()
    assert service.client.wait_ready(model, timeout_seconds=PATIENCE_SECONDS).status == "ready"

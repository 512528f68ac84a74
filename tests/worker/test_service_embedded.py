"""The embedded service as its users start it: the main job, faults, and a clean end."""

from __future__ import annotations

import hashlib
import signal
import socket
import subprocess
from pathlib import Path

import numpy as np
import onnx
import pytest

from service.client import ApiError
from service.contracts.config import parse_config
from service.contracts.runner import DatasetSource, QuantizeTask
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import make_nothing_to_quantize
from tests.worker.running import Service, processes_of, start_up
from tests.worker.workbench import process_gone, wait_for
from worker.quantizer.command import quantize_files
from worker.quantizer.run.interface import SilentRun

# Long enough to be caught while it runs, whatever the machine.
SLOW = {"evaluation": {"latency_runs": 1000, "layer_samples": 1024}}


def stop_runner(service: Service) -> int:
    """Freeze the runner of the next quantize job as soon as it is there."""
    pid = wait_for(lambda: next(iter(service.pids("worker.runner")), None), message="no runner")
    service.kill(pid, signal.SIGSTOP)
    return pid


def test_the_main_job(service, inputs, tiny, tmp_path):
    job = service.client.submit(**inputs, config={"preset": "int8"})
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


def test_the_service_gives_the_bytes_of_a_run_in_process(service, inputs, tiny, tmp_path):
    job = service.client.submit(**inputs)
    service.client.wait_succeeded(job.id)
    task = QuantizeTask(
        model_path=str(tiny.model), config=parse_config({}), calibration=DatasetSource(path=str(tiny.calibration)),
        evaluation=DatasetSource(path=str(tiny.evaluation)), output_dir=str(tmp_path), threads=1,
    )  # fmt: skip
    report = quantize_files(task, SilentRun()).report
    assert report.manifest.output_sha256 == service.client.report(job.id).manifest.output_sha256


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


def test_a_broken_model_is_rejected_with_its_reason(service, tiny, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(tiny.model.read_bytes()[:300])
    with pytest.raises(ApiError) as caught:
        service.client.wait_ready(service.client.push_model(tmp_path / "broken.onnx"), timeout_seconds=PATIENCE_SECONDS)
    assert caught.value.problem().code in {"not-onnx", "invalid-model"}
    assert caught.value.problem().status == 422


def test_cancel_of_a_running_job(service, inputs):
    job = service.client.submit(**inputs, config=SLOW)
    pid = stop_runner(service)
    service.wait_for_state(job.id, "running")
    assert service.client.cancel(job.id).state == "canceling"
    service.kill(pid, signal.SIGCONT)
    canceled = service.wait_for_state(job.id, "canceled")
    assert canceled.artifacts == []
    wait_for(lambda: process_gone(pid))


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
    job = service.client.submit(**inputs, config=SLOW)
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


@pytest.mark.parametrize("word", ["cli api", "cli reconcile"])
def test_a_killed_child_is_restarted(service, inputs, word):
    pid = service.one(word)
    service.kill(pid)
    wait_for(lambda: service.pids(word) not in ([], [pid]), message=f"{word} was not restarted")
    # Connections wait in the listening socket meanwhile: nothing is refused.
    job = service.client.submit(**inputs)
    service.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)


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
        assert again.stop() == 0
        assert processes_of(folder) == {}


def test_killing_the_parent_leaves_nothing_behind(tmp_path):
    folder = tmp_path / "home"
    with Service(folder) as service:
        assert len(processes_of(folder)) == 5
        service.process.kill()
        service.process.wait()
        wait_for(lambda: processes_of(folder) == {}, message=str(processes_of(folder)))


def refused(folder: Path, *options: str, **variables: str) -> tuple[int, str]:
    process = start_up(folder, *options, stderr=subprocess.PIPE, **variables)
    output, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert output == b""
    assert processes_of(folder) == {}
    return process.returncode, errors.decode()


def test_a_port_in_use_is_said_so(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, errors = refused(tmp_path / "home", "--port", str(taken.getsockname()[1]))
    assert code == 1
    assert "error[address-unavailable]" in errors
    assert "in use" in errors
    assert "hint: " in errors


def test_a_second_service_on_the_same_folder_is_refused(service):
    process = start_up(service.folder, "--port", "0", stderr=subprocess.PIPE)
    _, errors = process.communicate(timeout=PATIENCE_SECONDS)
    assert process.returncode == 1
    assert "error[data-dir-in-use]" in errors.decode()
    assert str(service.process.pid) in errors.decode()


def test_an_open_address_without_a_key_is_refused(tmp_path):
    code, errors = refused(tmp_path / "home", "--host", "0.0.0.0", "--port", "0")
    assert code == 2
    assert "QUANTMILL_API_KEY" in errors

"""The service as its users start it: the main job, faults, and a clean end."""

from __future__ import annotations

import hashlib
import re
import signal
import socket

import numpy as np
import onnx
import pytest
from safetensors.numpy import save_file
from typer.testing import CliRunner

from service.contracts.command_errors import AddressError, DataDirInUseError
from service.contracts.config import parse_config
from service.contracts.runner import DatasetSource, QuantizeTask
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
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


@pytest.mark.postgres
@pytest.mark.redis
def test_the_main_job_gives_the_same_bytes_on_postgresql_and_redis(deployed, service, inputs, tiny):
    jobs = [(service, service.client.submit(**inputs)), (deployed, deployed.client.submit(**deployed.upload(tiny)))]
    for there, job in jobs:
        assert there.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS).attempt == 1
    first, second = (there.client.report(job.id).manifest.output_sha256 for there, job in jobs)
    assert first == second
    assert first in {artifact.sha256 for artifact in deployed.client.artifacts(jobs[1][1].id)}


def test_the_workers_of_one_command_promise_the_machine_once(service):
    """One takes jobs, one inspects uploads; each may have been started more than once."""

    def shares() -> list[tuple[int, int]]:
        found = re.findall(r"worker\.share slots=(\d+) job_memory_bytes=(\d+)", service.log())
        return [(int(slots), int(share)) for slots, share in found]

    told = set(wait_for(lambda: len(found := shares()) >= 2 and found, message="no worker told its share"))
    slots = max(slots for slots, _ in told)
    assert told == {(1, share_bytes(2)), (slots, share_bytes(2) // slots)}
    assert sum(slots * share for slots, share in told) < machine_memory_bytes()


@pytest.mark.long
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
def test_new_weights_become_a_model_that_is_quantized_by_known_ranges(service, tiny, tmp_path):
    client = service.client
    inputs = service.upload(tiny)
    first = client.submit(**inputs, config={"preset": "int8"})
    client.wait_succeeded(first.id)
    rng, state = np.random.default_rng(7), tmp_path / "new.safetensors"
    shapes = {"w1": (16, 3, 3, 3), "b1": (16,), "w2": (5, 16), "b2": (5,)}
    save_file({name: rng.normal(0, 0.3, shape).astype(np.float32) for name, shape in shapes.items()}, state)
    made = client.wait_ready(client.create_model_version(inputs["model"], state))
    version = client.model(inputs["model"]).version
    assert (made.version, made.skeleton_model_id, made.format) == (version + 1, inputs["model"], "safetensors")
    assert [file.path for file in made.files] == ["model.onnx", "new.safetensors"]
    assert made.summary is not None
    assert made.summary.sha256 == made.files[0].sha256
    second = client.submit(**{**inputs, "model": made.id}, config={"preset": "int8"}, ranges_from=first.id)
    client.wait_succeeded(second.id)
    before, after = client.report(first.id), client.report(second.id)
    assert after.tensor_ranges == before.tensor_ranges
    assert after.manifest.model_sha256 == made.summary.sha256
    assert after.manifest.output_sha256 != before.manifest.output_sha256
    third = client.wait_ready(client.create_model_version(made.id, state))
    assert (third.version, third.files[0].sha256) == (version + 2, made.files[0].sha256)

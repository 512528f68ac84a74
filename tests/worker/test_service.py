"""The service as its users start it: the main job, children that are killed, and what it is not started with."""

from __future__ import annotations

import hashlib
import re
import socket

import onnx
import pytest
from typer.testing import CliRunner

from service.contracts.command_errors import AddressError, DataDirInUseError
from service.contracts.config import parse_config
from service.contracts.runner import DatasetSource, QuantizeTask
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import INSPECTOR, processes_of
from tests.worker.workbench import is_spare, parent, wait_for
from worker.cli import app
from worker.embedded import EmbeddedService
from worker.memory import has_room_for_spares, machine_memory_bytes, share_bytes
from worker.quantizer.command import quantize_files
from worker.quantizer.run.interface import SilentRun

pytestmark = pytest.mark.slow  # starts processes


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


def test_a_job_is_done_by_a_runner_that_waited_for_it(service, inputs):
    if not has_room_for_spares(Settings(host_slots=2)):
        pytest.skip("TOO LITTLE MEMORY: no spare runner is kept on this machine")
    worker = service.one("cli worker")
    spares = lambda: [pid for pid in processes_of(service.folder) if is_spare(pid) and parent(pid) == worker]  # noqa: E731
    (pid,) = wait_for(spares, message="no runner waits for a job")
    job = service.client.submit(**inputs)
    service.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)
    assert f"spare.taken pid={pid}" in service.log()
    assert wait_for(spares) != [pid]


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
@pytest.mark.parametrize("word", ["cli api", "cli reconcile", INSPECTOR])
def test_a_killed_child_is_restarted(service, tiny, word):
    pid = service.one(word)
    service.kill(pid)
    wait_for(lambda: service.pids(word) not in ([], [pid]), message=f"{word} was not restarted")
    # Connections wait in the listening socket meanwhile: nothing is refused.
    job = service.client.submit(**service.upload(tiny))
    service.client.wait_succeeded(job.id, timeout_seconds=PATIENCE_SECONDS)


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

"""Both clients on a real service: the whole way, lists, errors, and where a client finds its service."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import anyio
import pytest
from onnx import TensorProto, helper

import quantmill
from service.client import Client, connection
from service.client.connection import find_service
from service.client.errors import refusal
from service.client.uploads import external_files
from service.contracts.command_errors import FileAccessError, InvalidServerError
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import (
    EngineError,
    ExternalDataError,
    InvalidConfigError,
    InvalidRequestError,
    NotOnnxError,
    Problem,
)
from service.contracts.runner import DATA_FILE, DATA_KIND
from service.jobs.outcome import QuantizeOutcome
from service.keys import local
from tests.api.serving import Served
from tests.api.test_inspections import job_ids
from tests.support.front import Front, dataset_summary, make_report, model_summary, npz_bytes
from tests.support.patience import PATIENCE_SECONDS
from tests.support.source import ROOT
from tests.support.tiny import make_model
from tests.worker.workbench import wait_for

PAYLOAD = bytes(range(256)) * 1000


def do_the_workers_part(worker: Front, model_id: str, dataset_id: str, known: set[str]) -> None:
    """Validate both, then run the next job that is submitted."""
    worker.finish(worker.inspect_job(model_id=model_id), model_summary())
    worker.finish(worker.inspect_job(dataset_id=dataset_id), dataset_summary())

    def submitted() -> list[str]:
        return [job["id"] for job in worker.http.get("/v1/jobs").json()["items"] if job["id"] not in known]

    (job_id,) = wait_for(submitted)
    worker.finish(job_id, QuantizeOutcome(make_report("pass"), (worker.kept("model", "q.onnx", PAYLOAD),)))


def test_the_whole_way_blocking(client: Client, worker: Front, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "net.onnx").write_bytes(b"model")
    (tmp_path / "net.data").write_bytes(b"weights")
    (tmp_path / "data.npz").write_bytes(npz_bytes())
    model = client.push_model(tmp_path / "net.onnx", tmp_path / "net.data")
    assert (model.status, model.name, [file.path for file in model.files]) == (
        "validating", "net", ["net.data", "net.onnx"],
    )  # fmt: skip
    spec = PreprocessingSpec.model_validate({"inputs": {"x": {"scale": 0.5}}})
    data = client.push_dataset(str(tmp_path / "data.npz"), spec)
    assert (data.name, data.preprocessing) == ("data", spec)
    known = {job.id for job in client.jobs()}
    threading.Timer(0.1, do_the_workers_part, (worker, model.id, data.id, known)).start()
    assert client.wait_ready(model, timeout_seconds=PATIENCE_SECONDS).summary == model_summary()
    assert client.wait_ready(data).status == "ready"
    request = {"model": model, "calibration": data, "name": "nightly", "labels": {"build": "7"}}
    job = client.submit(**request, preset="int8", idempotency_key="k")
    assert client.submit(**request, preset="int8", idempotency_key="k").id == job.id
    assert (job.name, job.labels, job.config["preset"]) == ("nightly", {"build": "7"}, "int8")
    assert client.wait_succeeded(job).verdict == "pass"
    assert client.report(job).verdict == "pass"
    target = tmp_path / "out" / "q.onnx"
    target.parent.mkdir()
    artifact = client.download(job, target)
    assert (artifact.kind, target.read_bytes()) == ("model", PAYLOAD)
    with pytest.raises(InvalidRequestError, match="no artifact 'table'"):
        client.download(job, target.parent / "t", kind="table")
    assert [path.name for path in target.parent.iterdir()] == ["q.onnx"]
    waiting = client.submit(**request, config=QuantizationConfig(seed=3))
    assert waiting.config["seed"] == 3
    with pytest.raises(quantmill.WaitTimeoutError):
        client.wait(waiting.id, timeout_seconds=0.1)
    monkeypatch.setattr(connection, "LONG_POLL_SECONDS", 0.01)  # so that it looks more than once
    canceling = threading.Timer(0.1, client.cancel, [waiting.id])
    canceling.start()
    assert client.wait(waiting.id).state == "canceled"
    canceling.join()


def two_files(worker: Front, model: bytes, data: bytes) -> str:
    """A job whose model keeps its weights in a second file."""
    job_id = worker.new_job()
    files = (("model", "model.onnx", model), (DATA_KIND, DATA_FILE, data))
    worker.finish(job_id, QuantizeOutcome(make_report(), tuple(worker.kept(*file) for file in files)))
    return job_id


def test_external_data_of_one_model_is_not_written_over_by_that_of_another(
    client: Client, worker: Front, tmp_path: Path
) -> None:
    one, other = two_files(worker, b"one", b"its weights"), two_files(worker, b"other", b"more weight")
    client.download(one, tmp_path / "one.onnx")
    with pytest.raises(FileAccessError, match=DATA_FILE):
        client.download(other, tmp_path / "other.onnx")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {
        "one.onnx": b"one", DATA_FILE: b"its weights",
    }  # fmt: skip
    client.download(one, tmp_path / "again.onnx")
    assert (tmp_path / "again.onnx").read_bytes() == b"one", "the data is there"
    (tmp_path / "elsewhere").mkdir()
    client.download(other, tmp_path / "elsewhere" / "other.onnx")
    assert (tmp_path / "elsewhere" / DATA_FILE).read_bytes() == b"more weight"


def test_the_whole_way_awaited(server: Served, worker: Front, tmp_path: Path) -> None:
    make_model(tmp_path / "net.onnx")
    (tmp_path / "data.npz").write_bytes(npz_bytes())

    async def go() -> tuple[str | None, str | None]:
        async with quantmill.AsyncClient(server.url, patience_seconds=PATIENCE_SECONDS) as client:
            model = await client.push_model(tmp_path / "net.onnx")
            data = await client.push_dataset(tmp_path / "data.npz")
            known = {job.id async for job in client.jobs()}
            threading.Timer(0.1, do_the_workers_part, (worker, model.id, data.id, known)).start()
            job = await client.submit(model=model, calibration=data, config={"preset": "int8"})
            done = await client.wait(job)
            await client.download(job, tmp_path / "q.onnx")
            return done.verdict, (await client.report(job)).verdict

    assert anyio.run(go) == ("pass", "pass")
    assert (tmp_path / "q.onnx").read_bytes() == PAYLOAD


def test_lists_go_on_over_pages(client: Client, worker: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.client.connection.MOST_PER_PAGE", 2)
    body = worker.job_body(labels={"list": "this"})
    made = [worker.new_job(**body) for _ in range(5)]
    found = [job.id for job in client.jobs(labels={"list": "this"})]
    assert found == made[::-1]
    assert [job.id for job in client.jobs(labels={"list": "this"}, limit=3)] == found[:3]
    assert list(client.jobs(labels={"list": "this"}, limit=0)) == []
    assert {job.state for job in client.jobs(labels={"list": "this"}, state="queued")} == {"queued"}
    other = worker.new_job()
    assert [job.id for job in client.jobs(model=str(client.job(other).model_id))] == [other]
    for _ in range(2):
        worker.new_model()
        worker.ready_dataset()
    assert len(list(client.models())) == len({model.id for model in client.models()}) >= 4
    assert len(list(client.datasets(status="ready", limit=3))) == 3


def test_a_config_is_checked_without_a_job(client: Client, tmp_path: Path) -> None:
    file = tmp_path / "recipe.toml"
    file.write_text('preset = "int8"\n')
    for config in ("int8", {"preset": "int8"}, str(file), file):
        checked = client.validate(config)
        assert (checked.queue, checked.config.preset) == ("cpu", "int8")
    assert client.validate(checked.config).config == checked.config
    with pytest.raises(quantmill.ConfigRefusedError) as caught:
        client.validate({"presett": "int8"})
    assert isinstance(caught.value, InvalidConfigError)
    assert (caught.value.status, caught.value.errors[0].pointer) == (422, "/config/presett")
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        client.submit(model="mdl_x", config={}, preset="int8")


def test_errors_are_of_the_class_that_callers_catch(client: Client, worker: Front, tmp_path: Path) -> None:
    with pytest.raises(quantmill.NotFoundError) as caught:
        client.job("job_nope")
    assert (caught.value.code, caught.value.status) == ("job-not-found", 404)
    assert caught.value.request_id
    assert caught.value.problem().request_id == caught.value.request_id
    with pytest.raises(quantmill.ConflictError) as unready:
        client.submit(model=worker.new_model(), calibration=worker.ready_dataset())
    assert unready.value.code == "model-not-ready"
    body = worker.job_body()
    failed, canceled = worker.new_job(**body), worker.new_job(**body)
    worker.fail(failed, EngineError("It broke.", node="conv1"))
    with pytest.raises(quantmill.JobFailedError, match="It broke") as broke:
        client.wait_succeeded(failed)
    assert (broke.value.code, broke.value.where) == ("engine-error", {"node": "conv1"})
    assert client.cancel(canceled).state == "canceled"
    with pytest.raises(quantmill.JobNotSucceededError):
        client.wait_succeeded(canceled)
    (tmp_path / "net.onnx").write_bytes(b"nonsense")
    model = client.push_model(tmp_path / "net.onnx")
    worker.fail(worker.inspect_job(model_id=model.id), NotOnnxError("No model."))
    with pytest.raises(quantmill.ApiError, match="No model"):
        client.wait_ready(model)
    with pytest.raises(quantmill.RejectedError) as rejected:
        client.submit(model=model, calibration=worker.ready_dataset())
    assert rejected.value.code == "not-onnx"
    with pytest.raises(InvalidRequestError):
        client.push_model(tmp_path / "weights.bin")


def test_an_inspection_that_fails_tells_why(client: Client, worker: Front) -> None:
    with ThreadPoolExecutor(1) as thread:
        asked = thread.submit(client.inspect, worker.ready_model())
        worker.fail(wait_for(lambda: job_ids(worker))[0], EngineError("It broke."))
        with pytest.raises(quantmill.JobFailedError, match="It broke"):
            asked.result(PATIENCE_SECONDS)


def test_the_client_waits_no_longer_than_the_service_gives_itself(
    client: Client, worker: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The model was not rejected, and is not given up: who asks again later may find it ready."""
    monkeypatch.setattr("service.client.connection.LONG_POLL_SECONDS", 0.1)
    model_id = worker.new_model()
    worker.run_late(worker.inspect_job(model_id=model_id))
    model = client.model(model_id)
    with pytest.raises(quantmill.WaitTimeoutError) as caught:
        client.wait_ready(model)
    assert "The upload is not the cause" in str(caught.value)
    worker.finish(worker.inspect_job(model_id=model_id), model_summary())
    assert client.wait_ready(model).status == "ready"


def test_a_damaged_download_leaves_nothing(client: Client, worker: Front, tmp_path: Path) -> None:
    artifact = client.artifacts(worker.succeeded_job(b"quantized bytes"))[0]
    path = worker.app.store.path(artifact.sha256)
    path.chmod(0o600)
    path.write_bytes(b"quantized bytez")
    with pytest.raises(Exception, match="sha256"):
        client.download_artifact(artifact.id, tmp_path / "q.onnx")
    assert list(tmp_path.iterdir()) == []
    worker.store(b"quantized bytes")


def test_nobody_or_something_else_is_there(server: Served) -> None:
    with Client("http://127.0.0.1:1", patience_seconds=0.1) as client, pytest.raises(quantmill.ServerUnreachableError):
        client.job("job_x")
    with Client(server.url + "/somewhere", patience_seconds=0.1) as client, pytest.raises(quantmill.ApiError) as caught:
        client.job("job_x")
    assert caught.value.problem().status == 404


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 413, 418, 422, 429, 500, 503])
def test_every_refusal_keeps_what_the_service_said(status: int) -> None:
    sent = Problem(type="t", title="T", status=status, detail="d", code="some-code", hint="h", request_id="req_1")
    error = refusal(sent)
    assert isinstance(error, quantmill.ApiError)
    assert (error.code, error.status, error.detail, error.hint, error.request_id) == (
        "some-code", status, "d", "h", "req_1",
    )  # fmt: skip
    assert error.problem() == sent
    assert error.passing == (status == 503)


def external_model(folder: Path, location: str) -> Path:
    """A model whose only weight stands in a file, within a sub-graph."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[1], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", location), ("offset", "0"), ("length", "4")):
        weight.external_data.add(key=key, value=value)
    out = helper.make_tensor_value_info("w", TensorProto.FLOAT, [1])
    branch = helper.make_graph([], "branch", [], [out], [weight])
    node = helper.make_node("If", ["c"], ["y"], then_branch=branch, else_branch=branch)
    condition = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    graph = helper.make_graph([node], "g", [condition], [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])])
    path = folder / "net.onnx"
    path.write_bytes(helper.make_model(graph).SerializeToString())
    return path


def test_external_data_is_found_by_itself(client: Client, tmp_path: Path) -> None:
    model = external_model(tmp_path, "weights ü.bin")
    with pytest.raises(ExternalDataError, match=r"weights ü\.bin"):
        client.push_model(model)
    (tmp_path / "weights ü.bin").write_bytes(b"1234")
    assert {file.path for file in client.push_model(model).files} == {"net.onnx", "weights ü.bin"}
    with pytest.raises(ExternalDataError, match="beside the model only"):
        external_files(external_model(tmp_path, "../weights.bin"))


def test_what_is_no_model_names_no_files(tmp_path: Path) -> None:
    for external in (None, "weights.data"):
        make_model(tmp_path / "net.onnx", external=external)
        assert [path.name for path in external_files(tmp_path / "net.onnx")] == ([external] if external else [])
    data = (tmp_path / "net.onnx").read_bytes()
    for damaged in (b"", b"model", b"\xff" * 40, data[: len(data) // 2], bytes(1000)):
        (tmp_path / "damaged.onnx").write_bytes(damaged)
        assert external_files(tmp_path / "damaged.onnx") == []


KEY = "0a1b2c3d4e5f-of-a-test"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home in which no service was ever noted."""
    for name in ("QUANTMILL_SERVER", "QUANTMILL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_a_client_finds_its_users_own_service(home: Path, server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(quantmill.ServiceNotFoundError, match="you run none"):
        find_service()
    (home / "local.key").write_text(KEY)
    local.announce(server.port, home / "local.key")
    place = find_service()
    assert (place.url, place.headers, place.trust_environment) == (
        server.url, {"Authorization": f"Bearer {KEY}"}, False,
    )  # fmt: skip
    with Client() as client:
        assert list(client.jobs(limit=1)) is not None
    monkeypatch.setenv("QUANTMILL_API_KEY", "a-key-for-another-one")
    assert find_service().headers == {"Authorization": "Bearer a-key-for-another-one"}
    monkeypatch.setenv("QUANTMILL_API_KEY", "")
    assert find_service().headers == {"Authorization": f"Bearer {KEY}"}
    monkeypatch.setenv("QUANTMILL_API_KEY", "a-key-for-another-one")
    monkeypatch.setenv("QUANTMILL_SERVER", "https://quantmill.example/")
    assert find_service().url == "https://quantmill.example"
    assert find_service().headers == {"Authorization": "Bearer a-key-for-another-one"}
    assert find_service("http://other.example", "given").headers == {"Authorization": "Bearer given"}


@pytest.mark.parametrize("address", ["127.0.0.1:18321", "http://", "ftp://host", "http://host:port", "http://[::1"])
def test_what_is_no_address_is_told_at_once(home: Path, address: str) -> None:
    with pytest.raises(InvalidServerError) as caught:
        Client(address)
    assert address in str(caught.value) or "http://127.0.0.1:8000" in caught.value.hint
    with pytest.raises(InvalidServerError) as caught:
        Client("quantmill://user:secret-word@host")
    assert "secret-word" not in str(caught.value)


def test_of_several_services_none_is_guessed(
    home: Path, server: Served, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Served(server.app) as other:
        for one in (server, other):
            local.announce(one.port, home / "local.key")
        with pytest.raises(quantmill.ServiceNotFoundError, match="several") as caught:
            Client()
        assert server.url in str(caught.value)
        assert other.url in str(caught.value)
        here = tmp_path / "here"
        (here / ".quantmill").mkdir(parents=True)
        (here / ".quantmill" / "local.key").write_text(KEY)
        local.announce(other.port, here / ".quantmill" / "local.key")
        monkeypatch.chdir(here)
        assert find_service().url == other.url, "the one that was started in this folder"
    assert find_service().url == server.url, "a note of a service that has ended is no service"


@pytest.mark.slow
def test_the_names_are_loaded_when_they_are_named() -> None:
    never = "torch onnxruntime onnx sqlalchemy celery fastapi starlette uvicorn numpy alembic worker"
    code = (
        "import sys, quantmill\n"
        "assert not {'service', 'httpx', 'pydantic'} & set(sys.modules)\n"
        "assert set(quantmill.__all__) <= set(dir(quantmill))\n"
        "from quantmill import AsyncClient, Client, QuotaExceededError\n"
        f"print(*sorted(set({never!r}.split()) & set(sys.modules)))\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    told = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, env=environment, text=True)
    assert told.split() == []
    assert quantmill.Client is Client
    assert all(getattr(quantmill, name) for name in quantmill.__all__)
    with pytest.raises(AttributeError):
        quantmill.no_such_name  # noqa: B018

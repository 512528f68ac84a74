"""Both clients on a real service: the whole way, lists, errors, and where a client finds its service."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import onnx
import pytest
from onnx import TensorProto, helper

import quantmill
from service.client import (
    ApiError,
    AsyncClient,
    Client,
    ConfigRefusedError,
    ConflictError,
    JobFailedError,
    NotFoundError,
    RejectedError,
    ServiceNotFoundError,
    UnauthorizedError,
)
from service.client.address import find_service
from service.client.errors import refusal
from service.client.external_data import external_files
from service.contracts.command_errors import FileAccessError, InvalidServerError
from service.contracts.errors import (
    EngineError,
    ExternalDataError,
    InvalidConfigError,
    InvalidRequestError,
    NotOnnxError,
    Problem,
)
from service.contracts.runner import DATA_FILE, DATA_KIND
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.keys import local
from service.settings import Settings
from tests.support.front import Front, dataset_summary, make_report, model_summary, npz_bytes
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess
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
    artifact = NewArtifact("model", "q.onnx", "application/octet-stream", worker.store(PAYLOAD), len(PAYLOAD))
    worker.finish(job_id, QuantizeOutcome(make_report("pass"), (artifact,)))


def test_the_whole_way_blocking(client: Client, worker: Front, tmp_path: Path) -> None:
    make_model(tmp_path / "net.onnx")
    (tmp_path / "data.npz").write_bytes(npz_bytes())
    model, data = client.push_model(tmp_path / "net.onnx"), client.push_dataset(str(tmp_path / "data.npz"))
    assert (model.status, data.name) == ("validating", "data")
    known = {job.id for job in client.jobs()}
    threading.Timer(0.3, do_the_workers_part, (worker, model.id, data.id, known)).start()
    job = client.submit(model=model, calibration=data, preset="int8", name="nightly", labels={"build": "7"})
    assert (job.name, job.labels, job.config["preset"]) == ("nightly", {"build": "7"}, "int8")
    assert client.wait_succeeded(job).verdict == "pass"
    assert client.report(job).verdict == "pass"
    artifact = client.download(job, tmp_path / "q.onnx")
    assert (artifact.kind, (tmp_path / "q.onnx").read_bytes()) == ("model", PAYLOAD)
    with pytest.raises(InvalidRequestError, match="no artifact 'table'"):
        client.download(job, tmp_path / "t", kind="table")
    assert not (tmp_path / "t").exists()


def two_files(worker: Front, model: bytes, data: bytes) -> str:
    """A job whose model keeps its weights in a second file."""
    job_id = worker.new_job()
    files = (("model", "model.onnx", model), (DATA_KIND, DATA_FILE, data))
    made = tuple(NewArtifact(kind, name, "application/x", worker.store(one), len(one)) for kind, name, one in files)
    worker.finish(job_id, QuantizeOutcome(make_report(), made))
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


def test_the_whole_way_awaited(server: ApiProcess, worker: Front, tmp_path: Path) -> None:
    make_model(tmp_path / "net.onnx")
    (tmp_path / "data.npz").write_bytes(npz_bytes())

    async def go() -> tuple[str | None, str | None]:
        async with AsyncClient(server.url, patience_seconds=PATIENCE_SECONDS) as client:
            model = await client.push_model(tmp_path / "net.onnx")
            data = await client.push_dataset(tmp_path / "data.npz")
            known = {job.id async for job in client.jobs()}
            threading.Timer(0.3, do_the_workers_part, (worker, model.id, data.id, known)).start()
            job = await client.submit(model=model, calibration=data, config={"preset": "int8"})
            done = await client.wait(job)
            await client.download(job, tmp_path / "q.onnx")
            return done.verdict, (await client.report(job)).verdict

    assert anyio.run(go) == ("pass", "pass")
    assert (tmp_path / "q.onnx").read_bytes() == PAYLOAD


def test_many_calls_at_once_of_one_awaiting_client(server: ApiProcess, worker: Front) -> None:
    ids = [worker.new_job() for _ in range(5)]

    async def go() -> list[str]:
        found: list[str] = []
        async with AsyncClient(server.url) as client, anyio.create_task_group() as tasks:

            async def ask(job_id: str) -> None:
                found.append((await client.job(job_id)).id)

            for job_id in ids:
                tasks.start_soon(ask, job_id)
        return found

    assert sorted(anyio.run(go)) == sorted(ids)


def test_lists_go_on_over_pages(client: Client, worker: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.client.connection.MOST_PER_PAGE", 2)
    made = [worker.new_job(labels={"list": "this"}) for _ in range(5)]
    found = [job.id for job in client.jobs(labels={"list": "this"})]
    assert found == made[::-1]
    assert [job.id for job in client.jobs(labels={"list": "this"}, limit=3)] == found[:3]
    assert list(client.jobs(labels={"list": "this"}, limit=0)) == []
    assert {job.state for job in client.jobs(labels={"list": "this"}, state="queued")} == {"queued"}
    some = client.job(made[0])
    assert [job.id for job in client.jobs(model=str(some.model_id))] == [made[0]]
    assert len(list(client.models())) == len({model.id for model in client.models()}) >= 5
    assert len(list(client.datasets(status="ready", limit=3))) == 3


def test_a_config_is_checked_without_a_job(client: Client) -> None:
    checked = client.validate({"preset": "int8"})
    assert (checked.queue, checked.config.preset) == ("cpu", "int8")
    with pytest.raises(ConfigRefusedError) as caught:
        client.validate({"presett": "int8"})
    error = caught.value
    assert isinstance(error, InvalidConfigError)
    assert (error.code, error.status, error.errors[0].pointer) == ("invalid-config", 422, "/config/presett")
    with pytest.raises(InvalidRequestError, match="exclude each other"):
        client.submit(model="mdl_x", config={}, preset="int8")


def test_errors_are_of_the_class_that_callers_catch(client: Client, worker: Front, tmp_path: Path) -> None:
    with pytest.raises(NotFoundError) as caught:
        client.job("job_nope")
    assert (caught.value.code, caught.value.status) == ("job-not-found", 404)
    assert caught.value.request_id
    assert caught.value.problem().request_id == caught.value.request_id
    with pytest.raises(ConflictError) as unready:
        client.submit(model=worker.new_model(), calibration=worker.ready_dataset())
    assert unready.value.code == "model-not-ready"
    failed = worker.new_job()
    worker.fail(failed, EngineError("It broke.", node="conv1"))
    with pytest.raises(JobFailedError, match="It broke") as broke:
        client.wait_succeeded(failed)
    assert (broke.value.code, broke.value.where) == ("engine-error", {"node": "conv1"})
    (tmp_path / "net.onnx").write_bytes(b"nonsense")
    model = client.push_model(tmp_path / "net.onnx")
    worker.fail(worker.inspect_job(model_id=model.id), NotOnnxError("No model."))
    with pytest.raises(RejectedError) as rejected:
        client.submit(model=model, calibration=worker.ready_dataset())
    assert rejected.value.code == "not-onnx"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 410, 412, 413, 418, 422, 428, 429, 500, 503])
def test_every_refusal_keeps_what_the_service_said(status: int) -> None:
    sent = Problem(type="t", title="T", status=status, detail="d", code="some-code", hint="h", request_id="req_1")
    error = refusal(sent)
    assert isinstance(error, ApiError)
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


@pytest.mark.parametrize("external", [None, "weights.data"])
def test_external_data_of_whole_models(tmp_path: Path, external: str | None) -> None:
    make_model(tmp_path / "net.onnx", external=external)
    assert [path.name for path in external_files(tmp_path / "net.onnx")] == ([] if external is None else [external])


def test_what_is_no_model_names_no_files(tmp_path: Path) -> None:
    make_model(tmp_path / "net.onnx")
    data = (tmp_path / "net.onnx").read_bytes()
    for damaged in (b"", b"model", b"\xff" * 40, data[: len(data) // 2], bytes(1000)):
        (tmp_path / "damaged.onnx").write_bytes(damaged)
        assert external_files(tmp_path / "damaged.onnx") == []
    assert onnx.load(tmp_path / "net.onnx").graph.node


KEY = "0a1b2c3d4e5f-of-a-test"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's home in which no service was ever noted."""
    for name in ("QUANTMILL_SERVER", "QUANTMILL_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return tmp_path


def test_without_any_hint_there_is_no_service(home: Path) -> None:
    with pytest.raises(ServiceNotFoundError, match="you run none"):
        find_service()


def test_a_client_finds_its_users_own_service(home: Path, server: ApiProcess, monkeypatch: pytest.MonkeyPatch) -> None:
    port = int(server.url.rpartition(":")[2])
    (home / "local.key").write_text(KEY)
    local.announce(port, home / "local.key")
    place = find_service()
    assert (place.url, place.headers, place.trust_environment) == (
        server.url, {"Authorization": f"Bearer {KEY}"}, False,
    )  # fmt: skip
    monkeypatch.setenv("QUANTMILL_API_KEY", "a-key-for-another-one")
    assert find_service().headers == {"Authorization": f"Bearer {KEY}"}
    with Client() as client:
        assert list(client.jobs(limit=1)) is not None
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
    home: Path, server: ApiProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = ApiProcess(server.settings.model_copy(update={"data_dir": tmp_path / "other"}))
    try:
        for process in (server, other):
            local.announce(int(process.url.rpartition(":")[2]), home / "local.key")
        with pytest.raises(ServiceNotFoundError, match="several") as caught:
            Client()
        assert server.url in str(caught.value)
        assert other.url in str(caught.value)
        here = tmp_path / "here"
        (here / ".quantmill").mkdir(parents=True)
        (here / ".quantmill" / "local.key").write_text(KEY)
        local.announce(int(other.url.rpartition(":")[2]), here / ".quantmill" / "local.key")
        monkeypatch.chdir(here)
        assert find_service().url == other.url, "the one that was started in this folder"
    finally:
        other.close()
    assert find_service().url == server.url, "a note of a service that has ended is no service"


def test_the_key_of_the_environment(home: Path, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = Settings(data_dir=home / "data", database_url=sqlite_url, min_free_bytes=0, api_key=KEY)
    process = ApiProcess(settings)
    try:
        monkeypatch.setenv("QUANTMILL_SERVER", process.url)
        monkeypatch.setenv("QUANTMILL_API_KEY", KEY)
        with Client() as client:
            assert list(client.jobs()) == []
        monkeypatch.setenv("QUANTMILL_API_KEY", "wrong-key-of-a-test")
        with Client() as client, pytest.raises(UnauthorizedError):
            list(client.jobs())
    finally:
        process.close()


def test_the_names_are_loaded_when_they_are_named() -> None:
    never = "torch onnxruntime onnx sqlalchemy celery fastapi starlette uvicorn numpy alembic worker"
    code = (
        "import sys, quantmill\n"
        "assert not {'service', 'httpx', 'pydantic'} & set(sys.modules)\n"
        "assert set(quantmill.__all__) <= set(dir(quantmill))\n"
        "from quantmill import AsyncClient, Client, QuotaExceededError\n"
        f"print(*sorted(set({never!r}.split()) & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True,
        text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr
    assert quantmill.Client is Client
    assert all(getattr(quantmill, name) for name in quantmill.__all__)
    with pytest.raises(AttributeError):
        quantmill.no_such_name  # noqa: B018

"""A real API process: large uploads in little memory, crashes in the middle, and the client that gets through them."""

from __future__ import annotations

import hashlib
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.client import ApiError, Client, JobNotSucceededError, ServerUnreachableError, WaitTimeoutError
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import EngineError, InvalidRequestError
from service.contracts.runner import ProgressLine
from service.deps import Desk
from service.jobs import events, transitions
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.settings import Settings
from tests.support.front import Front, dataset_summary, make_report, model_summary, npz_bytes
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess
from tests.worker.workbench import wait_for

MIB = 1024 * 1024


def quick(folder: Path) -> Settings:
    return Settings(
        data_dir=folder / "data",
        database_url=f"sqlite:///{folder}/service.db",
        min_free_bytes=0,
        ping_seconds=0.3,
        upload_idle_seconds=2.0,
    )


@pytest.fixture
def quick_settings(tmp_path: Path, sqlite_url: str) -> Settings:
    return quick(tmp_path)


@pytest.fixture(scope="module")
def _process(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path) -> Iterator[ApiProcess]:
    folder = tmp_path_factory.mktemp("server")
    shutil.copyfile(_sqlite_template, folder / "service.db")
    process = ApiProcess(quick(folder))
    yield process
    process.close()


@pytest.fixture
def server(_process: ApiProcess) -> ApiProcess:
    """The one process of these tests; started anew after one that killed it."""
    _process.freshen()
    return _process


@pytest.fixture
def client(server: ApiProcess) -> Iterator[Client]:
    with Client(server.url, patience_seconds=PATIENCE_SECONDS) as client:
        yield client


@pytest.fixture
def worker(server: ApiProcess) -> Iterator[Front]:
    """The database behind the server, to do the worker's part."""
    app = create_app(server.settings)
    with TestClient(app) as http:
        yield Front(http, app.state.desk)


def blocks(count: int, digest: object | None = None) -> Iterator[bytes]:
    block = bytes(range(256)) * 4096
    for _ in range(count):
        if digest is not None:
            digest.update(block)
        yield block


@pytest.mark.parametrize("method", ["PUT", "PATCH"])
def test_memory_does_not_grow_with_the_upload(server: ApiProcess, method: str) -> None:
    size_bytes = 256 * MIB
    made = httpx.post(f"{server.url}/v1/uploads", json={"filename": "big.onnx", "size_bytes": size_bytes}).json()
    before = server.rss_bytes()
    digest = hashlib.sha256()
    if method == "PUT":
        answer = httpx.put(server.url + made["links"]["content"], content=blocks(256, digest), timeout=PATIENCE_SECONDS)
    else:
        headers = {"Upload-Offset": "0", "Content-Length": str(size_bytes)}
        answer = httpx.patch(
            server.url + made["links"]["self"], content=blocks(256, digest), headers=headers, timeout=PATIENCE_SECONDS
        )
    grown = server.rss_bytes(peak=True) - before
    assert answer.is_success, answer.text
    shown = httpx.get(server.url + made["links"]["self"]).json()
    assert (shown["state"], shown["size_bytes"], shown["sha256"]) == ("complete", size_bytes, digest.hexdigest())
    assert grown < 100 * MIB, f"memory grew by {grown / MIB:.0f} MiB"


def test_a_crash_in_the_middle_of_an_upload(server: ApiProcess, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"".join(blocks(24)))
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    body = {"filename": path.name, "size_bytes": 24 * MIB, "sha256": digest}
    made = httpx.post(f"{server.url}/v1/uploads", json=body).json()
    url = server.url + made["links"]["self"]

    def until_killed() -> Iterator[bytes]:
        for number, block in enumerate(blocks(24)):
            if number == 12:
                wait_for(lambda: int(httpx.head(url).headers["upload-offset"]))
                server.kill()
            yield block

    with pytest.raises(httpx.TransportError):
        httpx.patch(url, content=until_killed(), headers={"Upload-Offset": "0"}, timeout=PATIENCE_SECONDS)
    server.start()
    head = httpx.head(url)
    offset = int(head.headers["upload-offset"])
    assert 0 < offset <= 12 * MIB
    rest = path.read_bytes()[offset:]
    sent = httpx.patch(url, content=rest, headers={"Upload-Offset": str(offset)}, timeout=PATIENCE_SECONDS)
    assert sent.status_code == 204, sent.text
    assert httpx.get(url).json()["sha256"] == digest


@pytest.mark.parametrize("method", ["PATCH", "PUT"])
def test_a_client_that_breaks_off_is_one_line_in_the_log(server: ApiProcess, method: str) -> None:
    made = httpx.post(f"{server.url}/v1/uploads", json={"filename": "a", "size_bytes": 8 * MIB}).json()
    noun = server.url + made["links"]["self"]
    path = made["links"]["self"] + ("/content" if method == "PUT" else "")
    offset = "" if method == "PUT" else "Upload-Offset: 0\r\n"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {8 * MIB}\r\n{offset}\r\n"
    address = httpx.URL(server.url)
    with socket.create_connection((address.host, address.port)) as connection:
        connection.sendall(head.encode() + b"x" * 4 * MIB)
        kept = wait_for(lambda: int(httpx.head(noun).headers["upload-offset"]))
    wait_for(lambda: "request.broken_off" in server.log.read_text())
    assert kept <= int(httpx.head(noun).headers["upload-offset"]) <= 4 * MIB
    lines = server.log.read_text().splitlines()
    told = [line for line in lines if path in line or "ClientDisconnect" in line or "Traceback" in line]
    assert len(told) == 1, told
    assert " INFO " in told[0]
    assert f"request.broken_off {method} {path}" in told[0]
    assert not [line for line in lines if " ERROR " in line]


def test_the_client_gets_through_a_crash(server: ApiProcess, client: Client, tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    path.write_bytes(b"".join(blocks(32)))
    seen: list[int] = []
    killed = threading.Event()

    def progress(sent: int, total: int) -> None:
        seen.append(sent)
        assert total == 32 * MIB
        if sent >= 16 * MIB and not killed.is_set():
            killed.set()
            server.kill()
            threading.Timer(0.5, server.start).start()

    upload = client.upload_file(path, kind="model", progress=progress)
    assert killed.is_set()
    assert upload.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    shown = httpx.get(f"{server.url}/v1/uploads/{upload.id}").json()
    assert (shown["state"], shown["sha256"]) == ("complete", upload.sha256)
    assert seen[-1] == 32 * MIB


def test_one_writer_at_a_time(server: ApiProcess) -> None:
    made = httpx.post(f"{server.url}/v1/uploads", json={"filename": "a", "size_bytes": 4 * MIB}).json()
    url = server.url + made["links"]["self"]
    begun, go_on = threading.Event(), threading.Event()

    def slowly() -> Iterator[bytes]:
        for number, block in enumerate(blocks(4)):
            if number == 2:
                begun.set()
                assert go_on.wait(PATIENCE_SECONDS)
            yield block

    answers: list[httpx.Response] = []
    first = threading.Thread(
        target=lambda: answers.append(
            httpx.patch(url, content=slowly(), headers={"Upload-Offset": "0"}, timeout=PATIENCE_SECONDS)
        )
    )
    first.start()
    assert begun.wait(PATIENCE_SECONDS)
    wait_for(lambda: int(httpx.head(url).headers["upload-offset"]))
    second = httpx.patch(url, content=b"x", headers={"Upload-Offset": "0"})
    third = httpx.put(f"{url}/content", content=b"x")
    go_on.set()
    first.join()
    for refused in (second, third):
        assert (refused.status_code, refused.json()["code"]) == (409, "upload-busy")
        assert refused.headers["retry-after"] == "1"
    assert answers[0].status_code == 204
    assert httpx.get(url).json()["state"] == "complete"


def test_a_silent_client_is_cut_off_and_what_it_sent_is_kept(server: ApiProcess) -> None:
    made = httpx.post(f"{server.url}/v1/uploads", json={"filename": "a", "size_bytes": 4 * MIB}).json()
    url = server.url + made["links"]["self"]

    def stalling() -> Iterator[bytes]:
        yield b"x" * 1000
        wait_for(lambda: httpx.patch(url, content=b"", headers={"Upload-Offset": "9"}).json()["code"] != "upload-busy")
        yield b"y" * 1000

    answer = httpx.patch(url, content=stalling(), headers={"Upload-Offset": "0"}, timeout=PATIENCE_SECONDS)
    assert (answer.status_code, answer.json()["code"]) == (408, "upload-stalled")
    assert httpx.head(url).headers["upload-offset"] == "1000"


def test_the_whole_way(server: ApiProcess, client: Client, worker: Front, tmp_path: Path) -> None:
    """Everything that the client can do, with the worker's part done by hand."""
    model_path, weights, data = tmp_path / "net.onnx", tmp_path / "net.data", tmp_path / "c.npz"
    model_path.write_bytes(b"model")
    weights.write_bytes(b"weights")
    data.write_bytes(npz_bytes())

    model = client.push_model(model_path, weights)
    assert (model.name, [file.path for file in model.files]) == ("net", ["net.data", "net.onnx"])
    spec = PreprocessingSpec.model_validate({"inputs": {"x": {"scale": 0.5}}})
    dataset = client.push_dataset(data, spec, name="calibration")
    assert dataset.preprocessing == spec
    threading.Timer(0.3, worker.finish, (worker.inspect_job(model_id=model.id), model_summary())).start()
    assert client.wait_ready(model, timeout_seconds=PATIENCE_SECONDS).summary == model_summary()
    worker.finish(worker.inspect_job(dataset_id=dataset.id), dataset_summary())
    assert client.wait_ready(dataset).status == "ready"

    request = {"model": model.id, "calibration": dataset.id, "labels": {"a": "b"}}
    job = client.submit(**request, config={"seed": 3}, idempotency_key="k")
    assert client.submit(**request, config={"seed": 3}, idempotency_key="k").id == job.id
    assert client.submit(**request, config=QuantizationConfig(seed=3)).id != job.id
    assert job.config["seed"] == 3
    with pytest.raises(WaitTimeoutError):
        client.wait(job.id, timeout_seconds=0.2)

    payload = bytes(range(256)) * 10_000
    artifact = NewArtifact("model", "q.onnx", "application/octet-stream", worker.store(payload), len(payload))
    threading.Timer(0.5, worker.finish, (job.id, QuantizeOutcome(make_report("pass"), (artifact,)))).start()
    names = [event.data["name"] for event in client.follow(job.id)]
    assert names == ["job.queued", "job.claimed", "job.succeeded"]
    done = client.wait_succeeded(job.id)
    assert (done.state, done.verdict) == ("succeeded", "pass")
    assert client.report(job.id).verdict == "pass"
    found = client.artifacts(job.id)
    target = tmp_path / "out" / "q.onnx"
    target.parent.mkdir()
    client.download_artifact(found[0].id, target)
    assert target.read_bytes() == payload
    assert [path.name for path in target.parent.iterdir()] == ["q.onnx"]


def test_the_client_goes_on_with_events_after_a_crash(server: ApiProcess, client: Client, worker: Front) -> None:
    job_id = worker.new_job()
    worker.claim(job_id)
    seen = []
    for event in client.follow(job_id):
        seen.append(event.seq)
        if event.seq == 2:
            server.kill()
            with worker.desk.database.write() as session:
                events.append(session, job_id, 1, "log", {"message": "while nobody listened"})
                transitions.record_progress(session, job_id, 1, ProgressLine(stage="ranges"))
            threading.Timer(0.3, server.start).start()
        if event.seq == 4:
            with worker.desk.database.write() as session:
                transitions.fail(session, job_id, 1, problem=EngineError("x").problem())
    assert seen == [1, 2, 3, 4, 5]


def test_the_client_tells_what_went_wrong(server: ApiProcess, client: Client, worker: Front) -> None:
    with pytest.raises(ApiError) as caught:
        client.job("job_x")
    assert (caught.value.problem().code, caught.value.problem().status) == ("job-not-found", 404)

    body = worker.job_body()
    inputs = {"model": body["model_id"], "calibration": body["calibration_dataset_id"]}
    with pytest.raises(ApiError) as caught:
        client.submit(**inputs, config={"presett": "int8"})
    assert caught.value.errors[0].pointer == "/config/presett"

    failed, canceled = client.submit(**inputs), client.submit(**inputs)
    worker.fail(failed.id, EngineError("It broke.", hint="Report it.", node="conv1"))
    with pytest.raises(ApiError) as caught:
        client.wait_succeeded(failed.id)
    assert (caught.value.problem().code, caught.value.where) == ("engine-error", {"node": "conv1"})
    assert client.cancel(canceled.id).state == "canceled"
    with pytest.raises(JobNotSucceededError):
        client.wait_succeeded(canceled.id)


def test_the_client_reports_a_rejected_model(client: Client, worker: Front, tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(b"nonsense")
    model = client.push_model(path)
    worker.fail(worker.inspect_job(model_id=model.id), EngineError("No model."))
    with pytest.raises(ApiError, match="No model"):
        client.wait_ready(model)
    with pytest.raises(InvalidRequestError):
        client.push_model(tmp_path / "weights.bin")


def test_the_client_waits_no_longer_than_the_service_gives_itself(
    client: Client, worker: Front, tmp_path: Path
) -> None:
    """The model was not rejected, and is not given up: who asks again later may find it ready."""
    (tmp_path / "net.onnx").write_bytes(b"whatever")
    model = client.push_model(tmp_path / "net.onnx")
    worker.run_late(worker.inspect_job(model_id=model.id))
    with pytest.raises(WaitTimeoutError) as caught:
        client.wait_ready(model)
    assert "no fault of what was uploaded" in str(caught.value)
    worker.finish(worker.inspect_job(model_id=model.id), model_summary())
    assert client.wait_ready(model).status == "ready"


def test_a_damaged_download_leaves_nothing(client: Client, worker: Front, tmp_path: Path) -> None:
    job_id = worker.succeeded_job(b"quantized bytes")
    artifact = client.artifacts(job_id)[0]
    path = worker.desk.store.path(artifact.sha256)
    path.chmod(0o600)
    path.write_bytes(b"quantized bytez")
    with pytest.raises(Exception, match="sha256"):
        client.download_artifact(artifact.id, tmp_path / "q.onnx")
    assert list(tmp_path.glob("*.onnx*")) == list(tmp_path.glob(".*.part")) == []


def test_a_damaged_download_breaks_off(server: ApiProcess, worker: Front) -> None:
    data = b"x" * MIB
    job_id = worker.succeeded_job(data)
    artifact = httpx.get(f"{server.url}/v1/jobs/{job_id}/artifacts").json()["items"][0]
    path = worker.desk.store.path(artifact["sha256"])
    path.chmod(0o600)
    path.write_bytes(b"y" + data[1:])
    with pytest.raises(httpx.RemoteProtocolError):
        httpx.get(server.url + artifact["links"]["content"])
    lines = server.log.read_text().splitlines()
    assert [line for line in lines if " ERROR " in line and artifact["sha256"] in line]


def test_nobody_there(tmp_path: Path) -> None:
    with Client("http://127.0.0.1:1", patience_seconds=0.5) as client, pytest.raises(ServerUnreachableError):
        client.job("job_x")


def test_something_else_there(server: ApiProcess) -> None:
    with Client(server.url + "/somewhere", patience_seconds=0.5) as client, pytest.raises(ApiError) as caught:
        client.job("job_x")
    assert caught.value.problem().status == 404


def test_the_key(tmp_path: Path, quick_settings: Settings) -> None:
    settings = quick_settings.model_copy(update={"api_key": Settings(api_key="0a1b2c3d4e5f-of-a-test").api_key})
    process = ApiProcess(settings)
    try:
        with Client(process.url, "0a1b2c3d4e5f-of-a-test") as client:
            path = tmp_path / "net.onnx"
            path.write_bytes(b"model")
            assert client.push_model(path).status == "validating"
        with Client(process.url, "wrong") as client, pytest.raises(ApiError) as caught:
            client.job("job_x")
        assert caught.value.problem().code == "unauthorized"
        assert "0a1b2c3d4e5f-of-a-test" not in process.log.read_text()
    finally:
        process.close()


def test_a_clean_stop(server: ApiProcess) -> None:
    assert server.stop() in (0, -15)
    assert "Traceback" not in server.log.read_text()


def test_desk_opens_what_settings_name(quick_settings: Settings) -> None:
    desk = Desk.from_settings(quick_settings)
    assert desk.store.incoming.is_dir()
    desk.close()

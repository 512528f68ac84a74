"""``quantmill jobs hand-over``: a job of a real service, handed over by its reconciler to a receiver on loopback."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import KEY
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Scripted, scripted
from tests.support.tiny import Tiny
from tests.support.webhooks import answering, received
from tests.worker.running import Service
from tests.worker.workbench import wait_for


@pytest.fixture(scope="module")
def server() -> Iterator[Scripted]:
    with scripted(answering(200)) as running:
        yield running


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, server: Scripted) -> Iterator[Service]:
    allowed = {"QUANTMILL_API_KEY": KEY, "QUANTMILL_EGRESS_ALLOWED": f"http://127.0.0.1:{server.port}"}
    with Service(tmp_path_factory.mktemp("handing") / "home", **allowed) as running:
        yield running


@pytest.fixture
def hand_over(quantmill, service: Service):
    def run(job: str, *arguments: object, code: int = 0) -> str:
        done = quantmill("jobs", "hand-over", job, *arguments, "--server", service.url, "--key", KEY)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else done.stderr

    return run


def test_results_of_a_job_arrive(hand_over, service: Service, server: Scripted, tiny: Tiny, tmp_path: Path) -> None:
    place = f"http://127.0.0.1:{server.port}"
    target = {"kind": "put", "artifact": "report", "url": f"{place}/asked-with-the-job"}
    made = service.client.submit(**service.upload(tiny), preset="int8", hand_over=[target])
    job = service.client.wait_succeeded(made, timeout_seconds=PATIENCE_SECONDS)
    in_file = {"kind": "put", "url": f"{place}/of-a-file", "headers": {"X-A": "1"}}
    (tmp_path / "t.json").write_text(json.dumps([in_file]))
    arguments = ("--put", f"attestation={place}/attestation?sig=secret", "--post", f"{place}/in", "--targets", "t.json")
    said = hand_over(job.id, *arguments, "--when", "success")
    assert [line.split()[2] for line in said.splitlines()] == ["put", "put", "post"]
    assert "secret" not in said
    wait_for(lambda: {item.state for item in service.client.hand_overs(job)} == {"done"}, message="not all has arrived")
    paths = [request.split(b" ")[1].decode() for request in server.requests]
    came = dict(zip(paths, received(server), strict=True))
    assert set(came) == {"/asked-with-the-job", "/attestation?sig=secret", "/in", "/of-a-file"}
    (model,) = [artifact for artifact in job.artifacts if artifact.kind == "model"]
    service.client.download(job, tmp_path / "q.onnx")
    assert came["/of-a-file"].body == (tmp_path / "q.onnx").read_bytes()
    assert (len(came["/of-a-file"].body), came["/of-a-file"].headers["x-a"]) == (model.size_bytes, "1")
    told = {item["kind"]: item["sha256"] for item in json.loads(came["/in"].body)["job"]["artifacts"]}
    assert told["model"] == hashlib.sha256(came["/of-a-file"].body).hexdigest()
    assert json.loads(came["/asked-with-the-job"].body)["verdict"] == "none"
    assert "payloadType" in json.loads(came["/attestation?sig=secret"].body)
    listed = json.loads(hand_over(job.id, "--json"))
    assert [item["attempts"] for item in listed["items"]] == [1] * 4
    assert hand_over(job.id).count("done") == 4


def test_targets_are_given_with_the_job(
    quantmill, hand_over, service: Service, server: Scripted, tiny: Tiny, tmp_path: Path
) -> None:
    pushed = service.upload(tiny)
    (tmp_path / "t.json").write_text(json.dumps([{"kind": "post", "url": f"http://127.0.0.1:{server.port}/with"}]))
    given = ("--model", pushed["model"], "--calibration", pushed["calibration"], "--targets", "t.json", "--wait", "-q")
    done = quantmill("jobs", "submit", *given, "--server", service.url, "--key", KEY)
    assert done.returncode == 0, done.stderr
    (item,) = json.loads(hand_over(done.stdout.strip(), "--json"))["items"]
    assert (item["kind"], item["host"]) == ("post", f"127.0.0.1:{server.port}")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--put", "https://bucket.example/x?sig=secret"), "say which file goes there"),
        (("--targets", "none.json"), "cannot be read"),
        (("--targets", "bad.json"), "this is no JSON"),
        (("--targets", "object.json"), "a list of targets"),
    ],
)
def test_what_is_no_target_is_told_without_it(hand_over, tmp_path: Path, arguments: tuple[str, str], told: str) -> None:
    (tmp_path / "bad.json").write_text("[secret")
    (tmp_path / "object.json").write_text('{"secret": 1}')
    said = " ".join(hand_over("job_1", *arguments, code=2).split())
    assert told in said
    assert "secret" not in said


def test_a_job_that_is_not_there_is_told(hand_over) -> None:
    assert "There is no job" in hand_over("job_1", code=1)

"""``quantmill schedules``, ``webhooks`` and ``jobs hand-over``: what a service does by itself."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import KEY, Ask
from tests.support.scripted import Scripted
from tests.support.webhooks import received
from tests.worker.running import Service
from tests.worker.workbench import wait_for

pytestmark = pytest.mark.slow  # on a service
URL = "https://hooks.invalid/in"


@pytest.fixture
def job_file(service: Service, uploaded: dict[str, str], tmp_path: Path) -> Path:
    """A request for the latest version of a model."""
    name = service.client.model(uploaded["model"]).name
    path = tmp_path / "job.json"
    path.write_text(json.dumps({"model_id": f"{name}@latest", "calibration_dataset_id": uploaded["calibration"]}))
    return path


def test_a_schedules_life(quantmill, service: Service, ask: Ask, job_file: Path, tmp_path: Path) -> None:
    def schedules(*arguments: object, code: int = 0) -> str:
        return ask("schedules", *arguments, code=code)

    def told(*arguments: object) -> Any:
        return json.loads(schedules(*arguments, "--json"))

    gate = tmp_path / "gate.json"
    gate.write_text(json.dumps({"clauses": [{"kind": "size", "max_ratio": 1.2}]}))
    options = ("--timezone", "Europe/Berlin", "--gate", gate, "--promote-to", "prod")
    made = told("add", "nightly", "30 2 * * *", job_file, *options)
    assert (made["timezone"], made["promote_to"], made["overlap"]) == ("Europe/Berlin", "prod", "skip")
    one = made["id"]
    assert one in schedules("list")
    assert all(word in schedules("show", one) for word in ("max_ratio", "last_pass", "on undecided: fail"))
    assert told("show", one)["template"]["model_id"].endswith("@latest")
    assert told("show", "nightly")["id"] == one
    changed = told("set", "nightly", "--name", "each night", "--overlap", "queue", "--promote-to", "")
    assert (changed["name"], changed["overlap"], changed["promote_to"]) == ("each night", "queue", None)
    assert changed["cron"] == made["cron"]
    assert told("set", "each night", "--promote-to", "prod", "--no-skip-unchanged")["promote_to"] == "prod"
    gate.write_text(json.dumps({"clauses": [{"kind": "max_drop", "metric": "top9", "max_drop": 1}]}))
    assert "top9" in schedules("set", "each night", "--gate", gate, code=1)
    assert "paused" in schedules("pause", one)
    assert told("resume", one)["next_due_at"] == made["next_due_at"]

    done = quantmill("schedules", "run", one, "--wait", "--json", "--server", service.url, "--key", KEY, code=0)
    run = json.loads(done.stdout)
    assert (run["state"], run["promoted_to"]) == ("passed", "prod")
    assert f"quantmill jobs follow {run['job_id']}" in done.stderr
    assert "emit" in done.stderr
    listed = schedules("runs", one, "--state", "passed")
    assert listed.split()[:6] == ["run", "due", "trigger", "state", "job", "result"]
    assert run["job_id"] in listed and "moved" in listed
    shown = ask("jobs", "show", run["job_id"]).splitlines()
    assert any(f"{one}, passed" in text and "prod moved" in text for text in shown)
    assert "No runs found." in schedules("runs", one, "--state", "failed")
    assert told("show", one)["last_pass_job_id"] == run["job_id"]
    another = told("run", one)
    assert another["state"] == "running"
    assert any(word in "".join(schedules("runs", one).split()) for word in ("@", another["model_id"]))
    ask("jobs", "cancel", another["job_id"])
    assert told("rm", one) == {"id": one, "deleted": True}
    assert one in schedules("show", one, code=1)
    assert "CRON: is not a valid cron expression" in schedules("add", "n", "61 * * * *", job_file, code=1)
    assert "IANA" in schedules("add", "n", "0 2 * * *", job_file, "--timezone", "Mars/Olympus", code=1)


def test_a_webhooks_life(ask: Ask) -> None:
    def told(*arguments: str) -> Any:
        return json.loads(ask("webhooks", *arguments, "--json"))

    events = ("--event", "job.*", "--event", "model.ready")
    secret = ask("webhooks", "create", URL, *events, "--description", "CI").strip()
    assert secret.startswith("whsec_")
    assert len(secret.split()) == 1, "the secret alone, for $(...)"
    (made,) = [item for item in told("list")["items"] if item["description"] == "CI"]
    hook = made["id"]
    assert (made["event_types"], made["url"]) == (["job.*", "model.ready"], URL)
    assert hook in ask("webhooks", "list")
    assert secret not in ask("webhooks", "show", hook)
    # jobs that others have begun may end, and be told to it, at any time
    moving = dict.fromkeys(("failing_since", "updated_at", "row_version"))
    assert {**told("show", hook), **moving} == {**made, **moving}
    rotated = told("rotate", hook, "--grace-hours", "1")
    assert rotated["secret"] != secret
    assert "previous secret ends at" in ask("webhooks", "show", hook)
    ping = told("ping", hook)
    assert ping["type"] == "webhook.ping"
    sent = wait_for(
        lambda: [item for item in told("deliveries", hook)["items"] if item["last_error"]], message="nothing was sent"
    )
    (first,) = [item for item in sent if item["id"] == ping["id"]]
    assert (first["state"], first["last_error"]) == ("waiting", "host-unresolved")
    assert "host-unresolved" in ask("webhooks", "deliveries", hook, "--state", "waiting")
    assert "No deliveries found." in ask("webhooks", "deliveries", hook, "--state", "delivered")
    assert told("redeliver", hook, ping["id"])["event_id"] == ping["event_id"]
    assert told("rm", hook) == {"id": hook, "deleted": True}
    assert hook in ask("webhooks", "show", hook, code=1)
    assert "QUANTMILL_EGRESS_ALLOWED" in ask("webhooks", "create", "https://10.0.0.1/", code=1)
    assert "job.succeeded" in ask("webhooks", "create", URL, "--event", "job.done", code=1)


def test_results_of_a_job_arrive(
    ask: Ask, service: Service, receiver: Scripted, uploaded: dict[str, str], tmp_path: Path
) -> None:
    place = f"http://127.0.0.1:{receiver.port}"
    asked = {"kind": "put", "artifact": "report", "url": f"{place}/asked-with-the-job"}
    (tmp_path / "asked.json").write_text(json.dumps([asked]))
    given = ("--model", uploaded["model"], "--calibration", uploaded["calibration"], "--targets", "asked.json")
    made = ask("jobs", "submit", *given, "--wait", "-q").strip()
    (item,) = json.loads(ask("jobs", "hand-over", made, "--json"))["items"]
    assert (item["kind"], item["host"]) == ("put", f"127.0.0.1:{receiver.port}")

    in_file = {"kind": "put", "url": f"{place}/of-a-file", "headers": {"X-A": "1"}}
    (tmp_path / "t.json").write_text(json.dumps([in_file]))
    arguments = ("--put", f"attestation={place}/attestation?sig=secret", "--post", f"{place}/in", "--targets", "t.json")
    said = ask("jobs", "hand-over", made, *arguments, "--when", "success")
    assert [line.split()[2] for line in said.splitlines()] == ["put", "put", "post"]
    assert "secret" not in said
    wait_for(
        lambda: {item.state for item in service.client.hand_overs(made)} == {"done"}, message="not all has arrived"
    )
    paths = [request.split(b" ")[1].decode() for request in receiver.requests]
    came = dict(zip(paths, received(receiver), strict=True))
    assert set(came) == {"/asked-with-the-job", "/attestation?sig=secret", "/in", "/of-a-file"}
    (model,) = [artifact for artifact in service.client.artifacts(made) if artifact.kind == "model"]
    service.client.download(made, tmp_path / "q.onnx")
    assert came["/of-a-file"].body == (tmp_path / "q.onnx").read_bytes()
    assert (len(came["/of-a-file"].body), came["/of-a-file"].headers["x-a"]) == (model.size_bytes, "1")
    told = {item["kind"]: item["sha256"] for item in json.loads(came["/in"].body)["job"]["artifacts"]}
    assert told["model"] == hashlib.sha256(came["/of-a-file"].body).hexdigest()
    assert json.loads(came["/asked-with-the-job"].body)["verdict"] == "none"
    assert "payloadType" in json.loads(came["/attestation?sig=secret"].body)
    listed = json.loads(ask("jobs", "hand-over", made, "--json"))
    assert [item["attempts"] for item in listed["items"]] == [1] * 4
    assert ask("jobs", "hand-over", made).count("done") == 4
    assert "Job 'job_1' not found" in ask("jobs", "hand-over", "job_1", code=1)

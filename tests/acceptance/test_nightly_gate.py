"""A nightly pipeline from end to end, by the client alone: versions, a schedule with a gate, promotion, webhooks.

On the embedded default, on PostgreSQL with Redis, and on these with a bucket, two API servers and three workers that
share no disk; the reconciler is killed in between.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import numpy_helper
from sqlalchemy import update

from quantmill.webhooks import verify
from service.client import Client
from service.contracts.command_errors import ExitCode
from service.db import db_now
from service.schedules.schemas import RunOut
from service.tables import JobSchedule
from tests.fault.harness.installation import BACKENDS, Installation
from tests.fault.harness.servers import Servers, servers_trouble
from tests.support.patience import PATIENCE_SECONDS
from tests.support.s3_server import s3_server, s3_trouble
from tests.support.scripted import Scripted, scripted
from tests.support.services import require
from tests.support.tiny import Tiny, make_tiny
from tests.support.webhooks import PEPPER, answering, received
from tests.worker.running import environment
from tests.worker.workbench import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.long]
DECIDED = ("passed", "failed", "skipped", "refused")


@pytest.fixture
def tiny(tmp_path: Path) -> Tiny:
    (tmp_path / "tiny").mkdir()
    return make_tiny(tmp_path / "tiny")


@pytest.fixture
def receiver() -> Iterator[Scripted]:
    with scripted(answering(200)) as running:
        yield running


@pytest.fixture(params=[*BACKENDS, "bucket"])
def installation(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    receiver: Scripted,
    _sqlite_template: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[Installation]:
    if request.param != "files":
        require(servers_trouble())
    variables = {"QUANTMILL_KEY_PEPPER": PEPPER, "QUANTMILL_EGRESS_ALLOWED": f"http://127.0.0.1:{receiver.port}"}
    with contextlib.ExitStack() as stack:
        servers = stack.enter_context(contextlib.closing(Servers())) if request.param != "files" else None
        options: dict[str, Any] = {"servers": servers, "template": _sqlite_template}
        if request.param == "bucket":
            require(s3_trouble())
            s3 = stack.enter_context(s3_server(tmp_path))
            options |= {"apis": 2, "workers": 3, "bucket_url": s3.make(), **s3.variables()}
            for name, value in s3.variables().items():
                monkeypatch.setenv(name, value)
        yield stack.enter_context(Installation(tmp_path / "installation", **options, **variables))


def another(model: Path, name: str, *, worse: bool) -> Path:
    """Another version: the same with a name of its own, or one that decides at random."""
    proto = onnx.load(model)
    proto.doc_string = name
    if worse:
        for tensor in proto.graph.initializer:
            if tensor.name == "w2":
                tensor.CopyFrom(numpy_helper.from_array(-numpy_helper.to_array(tensor), "w2"))
    path = model.with_name(f"{name}.onnx")
    onnx.save(proto, path)
    return path


class Nights:
    """A schedule whose clock is moved."""

    def __init__(self, installation: Installation, client: Client, schedule_id: str) -> None:
        self._installation, self._client, self.schedule_id = installation, client, schedule_id
        self.seen = 0

    def move_clock(self) -> None:
        """It is time."""
        now = db_now()
        with self._installation.database.write() as session:
            moved = {"next_due_at": now, "fires_at": now}
            session.execute(update(JobSchedule).where(JobSchedule.id == self.schedule_id).values(**moved))

    def runs(self) -> list[RunOut]:
        return self._client.schedule_runs(self.schedule_id).items

    def outcome(self) -> RunOut:
        """What comes of the next run."""
        self.seen += 1
        wait_for(
            lambda: len(self.runs()) == self.seen and self.runs()[0].state in DECIDED, message="the run was not judged"
        )
        return self.runs()[0]


def quantmill(installation: Installation, *words: str) -> subprocess.CompletedProcess[str]:
    known = environment(QUANTMILL_SERVER=installation.url)
    return subprocess.run(
        [sys.executable, "-P", "-m", "worker.cli", *words], env=known, capture_output=True, text=True, check=False
    )


def test_a_nightly_pipeline(installation: Installation, tiny: Tiny, receiver: Scripted) -> None:
    with Client(installation.url, patience_seconds=PATIENCE_SECONDS) as client:
        hook = client.create_webhook(f"http://127.0.0.1:{receiver.port}/", ["schedule.*", "alias.moved", "job.*"])
        first = client.wait_ready(client.push_model(tiny.model, name="net"))
        client.set_alias("model", first.id, "candidate")
        client.wait_ready(client.push_dataset(tiny.calibration, name="calibration"))
        client.wait_ready(client.push_dataset(tiny.evaluation, name="evaluation"))
        template = {
            "model_id": "net@candidate",
            "calibration_dataset_id": "calibration@latest",
            "evaluation_dataset_id": "evaluation@latest",
            "config": {"preset": "int8"},
        }
        clauses = [
            {"kind": "max_drop", "metric": "top1", "max_drop": 5.0},
            {"kind": "size", "max_ratio": 1.2},
            {"kind": "not_significantly_worse"},
        ]
        schedule = client.create_schedule(
            "nightly", "30 2 * * *", template, timezone="Europe/Berlin", gate={"clauses": clauses}, promote_to="prod"
        )
        nights = Nights(installation, client, schedule.id)

        nights.move_clock()
        accepted = nights.outcome()
        assert (accepted.state, accepted.model_id, accepted.promoted_to) == ("passed", first.id, "prod"), accepted
        assert client.model("net@prod").id == first.id

        worse = client.wait_ready(client.push_model(another(tiny.model, "worse", worse=True), name="net"))
        assert worse.version == 2
        client.set_alias("model", worse.id, "candidate")
        installation.reconciler.kill()
        nights.move_clock()
        installation.start(installation.reconciler)
        wait_for(lambda: len(nights.runs()) == 2 and nights.runs()[0].job_id, message="the run was not begun")
        installation.reconciler.kill()  # between a run's begin and its judgement
        client.wait(nights.runs()[0].job_id or "")
        installation.start(installation.reconciler)
        refused = nights.outcome()
        assert (refused.state, refused.model_id, refused.promoted_to) == ("failed", worse.id, None), refused
        broken = [clause for clause in refused.clauses if clause.holds is False]
        assert [clause.kind for clause in broken] == ["max_drop", "not_significantly_worse"]
        assert broken[0].baseline_job_id == accepted.job_id
        assert client.model("net@prod").id == first.id, "nothing was promoted"
        told = quantmill(installation, "schedules", "run", schedule.id, "--wait")
        assert told.returncode == ExitCode.GATE_FAILED == 3, told.stderr
        nights.seen += 1

        better = client.wait_ready(client.push_model(another(tiny.model, "better", worse=False), name="net"))
        client.set_alias("model", better.id, "candidate")
        nights.move_clock()
        promoted = nights.outcome()
        assert (promoted.state, promoted.model_id, promoted.promoted_to) == ("passed", better.id, "prod"), promoted
        assert client.model("net@prod").id == better.id
        again = quantmill(installation, "schedules", "run", schedule.id, "--wait")
        assert again.returncode == 0, again.stderr
        runs = client.schedule_runs(schedule.id).items
        wait_for(lambda: of_schedules(receiver, hook.secret) == EXPECTED, message="webhooks are missing")
    events = by_id(receiver, hook.secret).values()
    told_of = {event["data"]["run_id"]: event for event in events if event["type"] == "schedule.failed"}
    assert set(told_of) == {run.id for run in runs if run.state == "failed"}
    assert "top1" in json.dumps(told_of[refused.id]["data"])
    promoted_to = [event["data"] for event in events if event["type"] == "alias.moved"]
    assert [moved["id"] for moved in promoted_to if moved["alias"] == "prod"] == [first.id, better.id]
    ended = [event["data"]["id"] for event in events if event["type"] == "job.succeeded"]
    assert sorted(ended) == sorted(run.job_id for run in runs if run.job_id is not None)


EXPECTED = {"schedule.fired": 5, "schedule.passed": 3, "schedule.failed": 2}


def of_schedules(receiver: Scripted, secret: str) -> dict[str, int]:
    kinds = [event["type"] for event in by_id(receiver, secret).values()]
    return {kind: kinds.count(kind) for kind in dict.fromkeys(kinds) if kind.startswith("schedule.")}


def by_id(receiver: Scripted, secret: str) -> dict[str, dict[str, Any]]:
    """Each event once; what was sent again says the same."""
    found: dict[str, dict[str, Any]] = {}
    for request in received(receiver):
        event = verify(request.body, request.headers, secret)
        assert found.setdefault(request.id, event) == event
    return found

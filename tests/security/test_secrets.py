"""Recognisable secrets in every setting, header and address: none is found in the database, in a log or in a report."""

from __future__ import annotations

import os
import sqlite3
import subprocess
import sys
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from fastapi import FastAPI

from service.contracts.errors import NotOnnxError
from service.db import Database
from service.queues.repository import announce
from service.settings import Settings
from tests.api.conftest import front_of
from tests.support.front import npz_bytes
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ROOT, ApiProcess
from tests.worker.workbench import wait_for
from worker.cli import main

pytestmark = pytest.mark.slow  # starts processes

MARK = "s3cr3t"
KEY, BROKER, DATABASE, WRONG, COOKIE, QUERY, URL = (f"{MARK}-{number}-value-of-a-test" for number in range(7))
CLOSED = "127.0.0.1:1"
BROKER_URL = f"redis://someone:{BROKER}@{CLOSED}/0"
DATABASE_URL = f"postgresql://someone:{DATABASE}@{CLOSED}/service"
HEADERS = (
    {"Authorization": f"Bearer {WRONG}"}, {"Authorization": f"Basic {WRONG}"}, {"Authorization": WRONG},
    {"X-Api-Key": WRONG, "Cookie": f"session={COOKIE}", "Proxy-Authorization": f"Basic {WRONG}"},
    {"Authorization": f"Bearer {KEY}", "Content-Digest": f"sha-256=:{WRONG}:", "X-Request-ID": f"{WRONG} x"},
    {"Authorization": f"Bearer {KEY}", "Host": f"{WRONG}.example", "Origin": f"https://{WRONG}.example"},
)  # fmt: skip


def traces(folder: Path) -> dict[str, bytes]:
    """Everything that a service has left behind on disk, its database as SQL."""
    found = {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    for path in folder.rglob("*.db"):
        with sqlite3.connect(path) as database:
            found[f"{path} as SQL"] = "\n".join(database.iterdump()).encode()
        database.close()
    return found


def without_secrets(found: Mapping[str, bytes]) -> None:
    for name, data in found.items():
        assert MARK.encode() not in data, f"{name}: {data[max(0, data.index(MARK.encode()) - 200) :][:400]!r}"


def test_a_service_keeps_no_secret(app: FastAPI, place: Settings, tmp_path: Path) -> None:
    keyed = {"api_key": KEY, "broker_url": BROKER_URL, "database_url": place.database_url}
    server = ApiProcess(Settings(data_dir=place.data_dir, min_free_bytes=0, **keyed))
    with closing(Database(place.database_url)) as database, database.write() as session:
        announce(session, "w", {"inspect": 1})
    with closing(server), httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as http:
        for headers in HEADERS:
            for method, path in (("GET", f"/v1/jobs?key={QUERY}"), ("POST", "/v1/uploads"), ("GET", f"/x/{QUERY}")):
                assert http.request(method, path, headers=headers, json={"filename": "a.npz"}).status_code in (
                    *(200, 201, 401, 403, 404, 421, 422),
                )
        http.headers["Authorization"] = f"Bearer {KEY}"
        data = npz_bytes()
        upload = http.post("/v1/uploads", json={"filename": "a.npz", "size_bytes": len(data)}).json()["id"]
        assert http.put(f"/v1/uploads/{upload}/content", content=data).status_code == 200
        made = http.post("/v1/datasets", json={"name": "a", "upload_id": upload}, headers={"Idempotency-Key": "one"})
        assert made.status_code == 201
        assert wait_for(lambda: "dispatch.failed" in server.log.read_text()), "nobody tried to send its job"
        with front_of(app, place) as front:
            job_id = front.succeeded_job()
            front.fail(front.new_job(), NotOnnxError("The file is no ONNX model."))
        for form in ("", ".html", ".md", ".junit.xml"):
            assert http.get(f"/v1/jobs/{job_id}/report{form}").status_code == 200
        for path in ("/docs", "/openapi.json", "/readyz", "/v1/version", f"/v1/jobs/{job_id}", "/v1/problems"):
            without_secrets({path: http.get(path).content})
    server.stop()
    found = traces(tmp_path)
    assert any(name.endswith("api.log") and data for name, data in found.items())
    assert any(name.endswith("as SQL") and job_id.encode() in data for name, data in found.items())
    without_secrets(found)


COMMANDS = {
    "doctor": ["doctor"], "migrate": ["migrate"], "api": ["api", "--port", "0"],
    "open to all": ["api", "--host", "256.1.1.1"], "worker": ["worker", "--queues", "cpu"],
    "reconcile": ["reconcile"],
    "client": ["jobs", "list", "--server", f"http://someone:{URL}@{CLOSED}", "--key", KEY],
    "client, no URL": ["jobs", "list", "--server", f"nothing://someone:{URL}@{CLOSED}", "--key", KEY],
    "client, query": ["jobs", "list", "--server", f"http://{CLOSED}/?token={quote(URL)}", f"--key={KEY}"],
}  # fmt: skip
SERVERS = ("api", "worker", "reconcile")
SETTINGS: dict[str, dict[str, str]] = {
    "good": {}, "a number that is none": {"QUANTMILL_LEASE_SECONDS": "soon"},
    "a contradiction": {"QUANTMILL_RENEW_SECONDS": "1000"},
    "no such broker": {"QUANTMILL_BROKER_URL": f"nothing://someone:{BROKER}@{CLOSED}/0"},
    "no such database": {"QUANTMILL_DATABASE_URL": f"nothing://someone:{DATABASE}@{CLOSED}/x"},
    "a broken address": {"QUANTMILL_DATABASE_URL": f"postgresql://someone:{DATABASE}@[{CLOSED}/x"},
    "an unencoded password": {"QUANTMILL_DATABASE_URL": f"postgresql://someone:p@/{DATABASE}@{CLOSED}/x"},
    "a key in another's place": {"QUANTMILL_PORT": WRONG, "QUANTMILL_EGRESS_ALLOWED": f"{WRONG} x"},
    "a variable that is no setting": {"QUANTMILL_API_KEYS": WRONG},
}  # fmt: skip


@pytest.mark.long
def test_no_command_tells_a_secret(tmp_path: Path) -> None:
    """Neither what works nor what fails, nor the report of a crash; those that run on are ended."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), "QUANTMILL_DATA_DIR": str(tmp_path / "data"),
        "QUANTMILL_API_KEY": KEY, "QUANTMILL_BROKER_URL": BROKER_URL, "QUANTMILL_DATABASE_URL": DATABASE_URL,
    }  # fmt: skip
    logs, running = {}, {}
    for name in COMMANDS:
        logs[name] = tmp_path / f"{name}.told"
        with logs[name].open("wb") as log:
            command = [sys.executable, "-c", "from worker.cli import main; main()", *COMMANDS[name]]
            running[name] = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=log, stderr=log)
    try:
        for name, process in running.items():
            wait_for(lambda name=name, process=process: process.poll() is not None or logs[name].stat().st_size)
            if name in SERVERS:
                process.terminate()
        for process in running.values():
            process.wait(PATIENCE_SECONDS)
    finally:
        for process in running.values():
            process.kill()
    assert all(log.stat().st_size for log in logs.values()), "somebody said nothing at all"
    without_secrets(traces(tmp_path))


def test_no_wrong_setting_is_told_with_its_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """As above, in this process: what fails before anything runs."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["quantmill", "migrate"])
    common = {"QUANTMILL_API_KEY": KEY, "QUANTMILL_BROKER_URL": BROKER_URL, "QUANTMILL_DATABASE_URL": DATABASE_URL}
    common["QUANTMILL_DATA_DIR"] = str(tmp_path / "data")
    for wrong, variables in SETTINGS.items():
        with monkeypatch.context() as patched:
            for name, value in {**common, **variables}.items():
                patched.setenv(name, value)
            with pytest.raises(SystemExit) as ended:
                main()
        told = capsys.readouterr()
        assert ended.value.code, wrong
        assert told.err, wrong
        without_secrets({wrong: (told.out + told.err).encode(), **traces(tmp_path)})

"""``quantmill jobs fetch``, ``verify`` and ``reproduce`` on a real service, and ``keys signing|rotate-signing``."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from service.client import ApiError, Client
from service.contracts.errors import Problem
from service.jobs.schemas import JobOut
from tests.cli.conftest import KEY, ROOT, Ask
from tests.support.attestations import flipped, opened
from tests.worker.running import Service

pytestmark = pytest.mark.slow  # on a service


@pytest.fixture
def fetched(ask: Ask, service: Service, job: JobOut, tmp_path: Path) -> Path:
    """A model with its attestation and the service's public key beside it."""
    assert "q.onnx.intoto.jsonl" in ask("jobs", "fetch", job.id, "--output", "q.onnx")
    pem = "".join(key.public_key for key in service.client.signing_keys())
    (tmp_path / "service.pem").write_text(pem)
    return tmp_path


def test_a_fetched_model_proves_what_it_was_made_from(quantmill, service, job, fetched):
    done = quantmill("verify", "q.onnx", "--key", "service.pem", "--json", code=0)
    told = json.loads(done.stdout)
    assert (told["verified"], told["faults"], told["made"]["job"]) == (True, [], job.id)
    report = service.client.report(job.id)
    assert told["sha256"] == report.manifest.output_sha256
    assert told["made"]["config_sha256"] == report.manifest.config_sha256
    assert told["made"]["engine"]["quantmill"] == report.manifest.engine_version
    assert told["made"]["engine"]["onnxruntime"] == report.manifest.versions["onnxruntime"]
    given = {file["role"]: file["sha256"] for file in told["made"]["from"]}
    assert given == {
        "model": report.manifest.model_sha256,
        "calibration": report.manifest.calibration_sha256,
        "evaluation": report.manifest.evaluation_sha256,
    }
    statement = opened((fetched / "q.onnx.intoto.jsonl").read_bytes(), (fetched / "service.pem").read_text())
    assert statement["subject"][0]["digest"]["sha256"] == told["sha256"]
    text = quantmill("verify", "q.onnx", "--key", "service.pem")
    assert text.stdout.startswith("verified")
    assert job.id in text.stdout
    quantmill("verify", "q.onnx", "--server", service.url, QUANTMILL_API_KEY=KEY, code=0)
    quantmill("verify", "q.onnx", "--data-dir", service.folder, code=0)
    for path in (fetched / "q.onnx", fetched / "q.onnx.intoto.jsonl"):
        whole = path.read_bytes()
        path.write_bytes(flipped(whole, len(whole) // 2))
        quantmill("verify", "q.onnx", "--key", "service.pem", code=6)
        path.write_bytes(whole)


def test_nobody_is_trusted_by_default(quantmill, service, fetched, tmp_path):
    elsewhere = {"XDG_CONFIG_HOME": str(tmp_path / "config")}
    # a data directory that came along with the files is none to be trusted
    (tmp_path / ".quantmill").mkdir()
    shutil.copyfile(service.folder / "service.db", tmp_path / ".quantmill" / "service.db")
    done = quantmill("verify", "q.onnx", **elsewhere, code=6)
    assert "signature was not verified" in done.stderr
    assert "not-verified" in done.stderr
    unsigned = quantmill("verify", "q.onnx", "--no-signature", **elsewhere, code=0)
    assert "not checked" in unsigned.stdout
    trusted = tmp_path / "config" / "quantmill" / "trusted"
    trusted.mkdir(parents=True)
    shutil.copyfile(fetched / "service.pem", trusted / "mill.pem")
    assert quantmill("verify", "q.onnx", **elsewhere).returncode == 0


@pytest.mark.parametrize(("code", "status", "exit_code"), [("signing-unavailable", 409, 0), ("internal-error", 500, 1)])
def test_a_model_is_fetched_from_a_service_that_does_not_sign(
    quantmill, service, job, tmp_path, monkeypatch, code, status, exit_code
):
    def refuse(*_: object) -> bytes:
        raise ApiError(Problem(type="about:blank", title="No", status=status, detail="It cannot.", code=code))

    monkeypatch.setattr(Client, "attestation", refuse)
    done = quantmill("jobs", "fetch", job.id, "--output", "q.onnx", "--server", service.url, "--key", KEY)
    assert done.returncode == exit_code
    assert "It cannot." in done.stderr
    assert (tmp_path / "q.onnx").exists()
    assert not (tmp_path / "q.onnx.intoto.jsonl").exists()


def test_verify_needs_neither_service_nor_engine(quantmill_process, fetched):
    (fetched / "torch.py").write_text("raise ImportError('torch')")
    for name in ("onnx", "onnxruntime"):
        (fetched / f"{name}.py").write_text(f"raise ImportError({name!r})")
    done = quantmill_process("verify", "q.onnx", "--key", "service.pem", PYTHONPATH=f"{fetched}:{ROOT}", code=0)
    assert done.stdout.startswith("verified")


def test_the_same_job_gives_the_same_bytes(quantmill, service, job, monkeypatch):
    monkeypatch.setattr(Client, "version", lambda _: "99.0")
    done = quantmill("reproduce", job.id, "--server", service.url, "--key", KEY, "--json", "--quiet", code=0)
    told = json.loads(done.stdout)
    assert told["identical"]
    assert "the service has 99.0 now" in done.stderr
    assert told["again"] != job.id
    (file,) = told["files"]
    assert file["first_sha256"] == file["again_sha256"] == service.client.report(job.id).manifest.output_sha256
    assert service.client.job(told["again"]).retry_of == job.id


def test_other_bytes_are_told(quantmill, service, job, other_job, monkeypatch):
    """As by an engine that makes something else of the same request."""
    monkeypatch.setattr(Client, "retry", lambda *_: other_job)
    done = quantmill("reproduce", job.id, "--server", service.url, "--key", KEY, "--quiet", code=6)
    assert "DIFFERENT" in done.stdout
    assert "not-reproduced" in done.stderr


def test_an_operator_changes_the_signing_key(quantmill, tmp_path):
    home = tmp_path / "home"
    quantmill("migrate", "--data-dir", home, code=0)
    first = quantmill("keys", "signing", "--data-dir", home, code=0)
    assert first.stdout.startswith("-----BEGIN PUBLIC KEY-----")
    rotated = json.loads(quantmill("keys", "rotate-signing", "--data-dir", home, "--json").stdout)
    known = json.loads(quantmill("keys", "signing", "--data-dir", home, "--json").stdout)["items"]
    assert [known[0]] == rotated["items"]
    assert known[1]["public_key"] == first.stdout
    assert known[1]["retired_at"] is not None
    audit = json.loads(quantmill("audit", "list", "--data-dir", home, "--json").stdout)
    actions = [row["action"] for row in audit["items"]]
    assert actions == ["signing-key.rotate", "signing-key.create"]

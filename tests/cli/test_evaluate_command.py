"""``quantmill evaluate``: in this process and on a service it prints the same, and a failed gate is an exit code."""

from __future__ import annotations

import json

import pytest

from tests.cli.conftest import KEY
from tests.support.tiny import Tiny
from tests.worker.running import Service


def told(text: str) -> dict:
    """Without what differs from run to run, or by who ran it."""
    found = json.loads(text)
    for name in ("stages", "latency"):
        found.pop(name, None)
    for name in ("model", "reference"):
        if name in found:
            del found[name]["latency_ms"]
    del found["manifest"]["threads"]
    return found


def recipe(folder, gate: dict) -> str:
    path = folder / "gate.json"
    path.write_text(json.dumps({"evaluation": {"latency_runs": 1, "gate": gate}}))
    return str(path)


def pushed(quantmill, service: Service, noun: str) -> list[str]:
    """Names of all that is there."""
    listed = quantmill(noun, "list", "--limit", "200", "--server", service.url, "--key", KEY, "--json")
    return [item["name"] for item in json.loads(listed.stdout)["items"]]


def test_a_failed_gate_is_an_exit_code(quantmill, tiny: Tiny, tmp_path) -> None:
    given = ("evaluate", tiny.model, "--evaluation", tiny.evaluation)
    failing = ("--config", recipe(tmp_path, {"max_size_bytes": 1}))
    done = quantmill(*given, *failing)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["verdict"] == "fail"
    assert "verdict   fail" in done.stderr
    assert "  BROKEN: max_size_bytes 1, got " in done.stderr
    assert quantmill(*given, *failing, "--fail-on-gate").returncode == 3
    refused = quantmill(*given, "--config", recipe(tmp_path, {"min_sqnr_db": 20}))
    assert refused.returncode != 0
    assert "reference model" in refused.stderr


@pytest.mark.slow
def test_a_service_prints_the_same(quantmill, service: Service, tiny: Tiny, tmp_path) -> None:
    config = recipe(tmp_path, {"max_size_bytes": 1})
    given = ("evaluate", tiny.model, "--evaluation", tiny.evaluation, "--reference", tiny.model, "--config", config)
    before = {noun: pushed(quantmill, service, noun) for noun in ("models", "datasets")}
    here, there = quantmill(*given), quantmill(*given, "--server", service.url, "--key", KEY, "--fail-on-gate")
    assert (here.returncode, there.returncode) == (0, 3), there.stderr
    assert told(here.stdout) == told(there.stdout)
    # what one command has uploaded is nobody's latest, and is there for the next
    after = {noun: pushed(quantmill, service, noun) for noun in before}
    for noun, stem in (("models", tiny.model.stem), ("datasets", tiny.evaluation.stem)):
        assert after[noun].count(stem) == before[noun].count(stem)
        assert len([name for name in after[noun] if name.startswith(f"{stem} ")]) <= 1
    listed = quantmill("jobs", "list", "--kind", "evaluate", "--json", "--server", service.url, "--key", KEY)
    assert {item["kind"] for item in json.loads(listed.stdout)["items"]} == {"evaluate"}
    job, place = json.loads(listed.stdout)["items"][0]["id"], ("--server", service.url, "--key", KEY)
    followed = quantmill("jobs", "follow", job, "--fail-on-gate", "--report", str(tmp_path / "report.json"), *place)
    assert followed.returncode == 3, followed.stderr
    assert "samples" in followed.stderr
    report = quantmill("report", job, "--json", *place)
    assert json.loads(report.stdout) == json.loads((tmp_path / "report.json").read_text())
    assert told(report.stdout) == told(there.stdout)
    uploaded = json.loads(quantmill("jobs", "show", job, "--json", *place).stdout)
    nouns = ("--model", uploaded["model_id"], "--reference", uploaded["model_id"])
    again = ("jobs", "evaluate", *nouns, "--evaluation", uploaded["evaluation_dataset_id"], "--config", config, *place)
    measured = quantmill(*again, "--name", "once more", "--label", "a=b", "--wait", "--fail-on-gate", "--json")
    assert measured.returncode == 3, measured.stderr
    made = json.loads(measured.stdout)
    assert (made["kind"], made["name"], made["labels"], made["state"]) == (
        "evaluate",
        "once more",
        {"a": "b"},
        "succeeded",
    )
    assert told(quantmill("report", made["id"], "--json", *place).stdout) == told(there.stdout)
    unknown = quantmill(*again, "--model", "nobody@latest")
    assert (unknown.returncode, unknown.stdout) == (1, "")
    assert "error[model-not-found]" in unknown.stderr
    for wrong in (("jobs", "follow", job, "--output", str(tmp_path / "m.onnx")), ("report", job, "--html", "r.html")):
        refused = quantmill(*wrong, *place)
        assert refused.returncode == 2, refused.stderr
        assert "an evaluation" in refused.stderr

"""``quantmill evaluate``: in this process and on a service it prints the same, and a failed gate is an exit code."""

from __future__ import annotations

import json

import pytest

from service.jobs.schemas import JobOut
from tests.cli.conftest import KEY, Ask
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


def test_a_failed_gate_is_an_exit_code(quantmill, tiny: Tiny, tmp_path) -> None:
    given = ("evaluate", tiny.model, "--evaluation", tiny.evaluation)
    failing = ("--config", recipe(tmp_path, {"max_size_bytes": 1}))
    done = quantmill(*given, *failing, code=0)
    assert json.loads(done.stdout)["verdict"] == "fail"
    assert "result    Gate failed" in done.stderr
    assert "  failed: The quantized file is at most 1 B (1 bytes); measured " in done.stderr
    assert quantmill(*given, *failing, "--fail-on-gate").returncode == 3
    refused = quantmill(*given, "--config", recipe(tmp_path, {"min_sqnr_db": 20}), code=1)
    assert "reference model" in refused.stderr


@pytest.mark.long
@pytest.mark.slow
def test_a_service_prints_the_same(quantmill, ask: Ask, service: Service, tiny: Tiny, tmp_path) -> None:
    config, place = recipe(tmp_path, {"max_size_bytes": 1}), ("--server", service.url, "--key", KEY)
    given = ("evaluate", tiny.model, "--evaluation", tiny.evaluation, "--reference", tiny.model, "--config", config)

    def pushed(noun: str) -> list[str]:
        return [item["name"] for item in json.loads(ask(noun, "list", "--limit", "200", "--json"))["items"]]

    before = {noun: pushed(noun) for noun in ("models", "datasets")}
    here, there = quantmill(*given), quantmill(*given, *place, "--fail-on-gate")
    assert (here.returncode, there.returncode) == (0, 3), there.stderr
    assert told(here.stdout) == told(there.stdout)
    # what one command has uploaded is nobody's latest, and is there for the next
    for noun, stem in (("models", tiny.model.stem), ("datasets", tiny.evaluation.stem)):
        after = pushed(noun)
        assert after.count(stem) == before[noun].count(stem)
        assert len([name for name in after if name.startswith(f"{stem} ")]) <= 1
    (job,) = (item["id"] for item in json.loads(ask("jobs", "list", "--limit", 1, "--json"))["items"])
    report = ask("report", job, "--json")
    assert told(report) == told(there.stdout)
    followed = quantmill("jobs", "follow", job, "--fail-on-gate", "--report", "report.json", *place, code=3)
    assert "samples" in followed.stderr
    assert json.loads(report) == json.loads((tmp_path / "report.json").read_text())
    for wrong in (("jobs", "follow", job, "--output", "m.onnx"), ("report", job, "--html", "r.html")):
        assert "n evaluation" in ask(*wrong, code=2)


@pytest.mark.slow
def test_what_is_on_the_service_is_evaluated(
    quantmill, ask: Ask, service: Service, uploaded: dict[str, str], evaluation: JobOut, tmp_path
) -> None:
    config = recipe(tmp_path, {"max_size_bytes": 1})
    model = uploaded["model"]
    nouns = ("--model", model, "--reference", model, "--evaluation", uploaded["evaluation"], "--config", config)
    options = ("--name", "once more", "--label", "a=b", "--wait", "--fail-on-gate", "--json")
    measured = quantmill("jobs", "evaluate", *nouns, *options, "--server", service.url, "--key", KEY, code=3)
    made = json.loads(measured.stdout)
    assert (made["kind"], made["name"], made["labels"]) == ("evaluate", "once more", {"a": "b"})
    assert made["state"] == "succeeded"
    first, again = (told(ask("report", job, "--json")) for job in (evaluation.id, made["id"]))
    assert again["model"]["metrics"] == again["reference"]["metrics"] == first["model"]["metrics"]
    assert not first.get("reference")
    unknown = ask("jobs", "evaluate", *nouns, "--model", "nobody@latest", code=1)
    assert "error[model-not-found]" in unknown

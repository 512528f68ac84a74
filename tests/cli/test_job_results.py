"""``quantmill jobs`` and ``compare``: what jobs gave; jobs found again, and asked for once more."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path

import pytest

from service.contracts.evaluation_report import EvaluationReport
from service.jobs.schemas import JobOut
from tests.cli.conftest import NOWHERE, Ask, Quantmill, words
from tests.worker.running import Service

on_a_service = pytest.mark.slow


@on_a_service
def test_show_tells_what_a_job_is_of_and_what_it_gave(ask: Ask, service: Service, job: JobOut) -> None:
    shown = dict(line.split("  ", 1) for line in ask("jobs", "show", job.id).splitlines())
    shown = {name: told.strip() for name, told in shown.items()}
    assert (shown["job"], shown["name"], shown["state"], shown["kind"]) == (job.id, "results", "succeeded", "quantize")
    assert shown["model"] == f"{job.model_name}@{job.model_version}  {job.model_id}"
    assert (shown["preset"], shown["labels"]) == ("int8", "build=7, team/owner=größe")
    assert shown["calibration"] == job.calibration_dataset_id
    assert shown["attempt"] == "1 of 3"
    assert shown["artifact"].startswith("art_")
    assert shown["took"].endswith(" s")
    assert "dB" in shown["SQNR"]
    assert " -> " in shown["size"]
    assert "retry of" not in shown
    document = json.loads(ask("jobs", "show", job.id, "--json"))
    assert document == json.loads(service.client.job(job.id).model_dump_json(by_alias=True))
    assert "float" in document["figures"]["metrics"][0]


@on_a_service
def test_list_is_readable_and_finds_by_what_a_job_is(
    ask: Ask, job: JobOut, other_job: JobOut, evaluation: JobOut
) -> None:
    lines = ask("jobs", "list", "--name", "results").splitlines()
    assert lines[0].split() == ["job", "state", "name", "model", "preset", "result", "took", "created"]
    assert max(map(len, lines)) <= 120
    assert [job.id, "succeeded", "results"] in [line.split()[:3] for line in lines[1:]]

    def found(*options: object) -> list[str]:
        return [item["id"] for item in json.loads(ask("jobs", "list", *options, "--json"))["items"]]

    of_model = ("--model", job.model_id, "--name", "results")
    assert job.id in found(*of_model, "--preset", "int8", "--verdict", "none", "--since", "1h")
    assert found(*of_model, "--preset", "xint8") == []
    named = ("--model", f"{job.model_name}@{job.model_version}", "--limit", 200)
    assert evaluation.id in found(*named, "--kind", "evaluate", "--verdict", "fail")
    assert other_job.id in found(*named, "--verdict", "fail")
    assert not {job.id, other_job.id} & set(found(*named, "--kind", "evaluate"))
    assert json.loads(ask("jobs", "list", "--since", "2999-01-01", "--json")) == {"items": [], "has_more": False}
    assert found("--name", "results", "--state", "queued") == []
    older, newer = sorted((job, other_job), key=lambda one: one.created_at)
    listed = ask("jobs", "list", "--limit", 200)
    assert listed.index(newer.id) < listed.index(older.id)
    assert "[bold]others[/bold]" in listed
    assert json.loads(ask("jobs", "list", "--limit", 1, "--json"))["has_more"] is True


@on_a_service
def test_follow_and_logs_are_lines_of_json(ask: Ask, job: JobOut, tmp_path: Path) -> None:
    events = [json.loads(line) for line in ask("jobs", "follow", job.id, "--json", "--report", "r.json").splitlines()]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert {"state", "progress"} <= {event["type"] for event in events}
    assert (tmp_path / "r.json").exists()
    text = ask("jobs", "logs", job.id).splitlines()
    entries = [json.loads(line) for line in ask("jobs", "logs", job.id, "--json").splitlines()]
    assert [f"{e['created_at']} {e['attempt']} {e['level'].upper()} {e['message']}" for e in entries] == text


@on_a_service
def test_fetch_of_an_evaluation_is_its_report(ask: Ask, evaluation: JobOut, tmp_path: Path) -> None:
    assert ask("jobs", "fetch", evaluation.id, "--report", "e.json") == "report    e.json\n"
    assert EvaluationReport.model_validate_json((tmp_path / "e.json").read_text()).verdict == "fail"
    for option in ("--output", "--html", "--markdown", "--junit", "--layers-csv", "--extra-dir"):
        said = ask("jobs", "fetch", evaluation.id, "--report", "e.json", option, "x.onnx", code=2)
        assert option in said
        assert "An evaluation" in said or "of an evaluation" in said
        assert not (tmp_path / "x.onnx").exists()


@on_a_service
def test_once_more_with_changes_and_waited_for(ask: Ask, job: JobOut, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"seed": 7}')
    clone = ("jobs", "clone", job.id, "--config", "recipe.json", "--name", "again")
    made = json.loads(ask(*clone, "--wait", "--quiet", "--json"))
    assert (made["name"], made["state"], made["config"]["seed"]) == ("again", "succeeded", 7)
    assert made["config"]["preset"] == "int8"
    assert "cloned from" in ask("jobs", "show", made["id"])
    again = ask("jobs", "retry", job.id).split()[0]
    assert any(line.split() == ["retry", "of", job.id] for line in ask("jobs", "show", again).splitlines())
    ask("jobs", "cancel", again)


@on_a_service
def test_a_job_is_named_by_a_name_that_no_other_has(ask: Ask, service: Service, other_job: JobOut) -> None:
    name = other_job.name
    for command in (("jobs", "show", "--json"), ("report", "--json"), ("jobs", "logs"), ("jobs", "hand-over")):
        words = (*command, name) if command[-1] != "--json" else (*command[:-1], name, "--json")
        by_id = [other_job.id if word == name else word for word in words]
        assert ask(*words) == ask(*by_id)
    twins = [service.client.retry(other_job) for _ in range(2)]
    for twin in twins:
        service.client.rename(twin, {"name": "twin"})
    said = ask("jobs", "cancel", "twin", code=2)
    assert all(twin.id in said for twin in twins)
    for twin in twins:
        ask("jobs", "cancel", twin.id)
    assert "No job has the id or name" in ask("jobs", "show", "nobody", code=2)


@on_a_service
def test_jobs_side_by_side(ask: Ask, service: Service, job: JobOut, other_job: JobOut) -> None:
    both = (job.id, other_job.id)
    shown = ask("compare", *both)
    assert all(word in shown for word in ("xint8", "/preset", "SQNR in dB", "Succeeded, no gate"))
    told = json.loads(ask("compare", *both, "--json"))
    assert [one["preset"] for one in told["jobs"]] == ["int8", "xint8"]
    assert {"pointer": "/preset", "values": ["int8", "xint8"]} in told["config_differences"]
    (pair,) = told["pairs"]
    assert f"{pair['flips']['lost']} lost, {pair['flips']['won']} won" in words(shown)
    rows = list(csv.DictReader(io.StringIO(ask("compare", *both, "--csv"))))
    assert [(row["job"], row["preset"]) for row in rows] == list(zip(both, ("int8", "xint8"), strict=True))
    assert json.loads(service.client.compare(both).model_dump_json(by_alias=True)) == told


@pytest.mark.parametrize(
    ("command", "told"),
    [
        ("jobs list --state quued", "did you mean 'queued'?"),
        ("jobs list --kind quantise", "did you mean 'quantize'?"),
        ("jobs list --verdict good", "pass, fail, undecided, none"),
        ("jobs list --since yesterday", "is not a time"),
        ("jobs hand-over job_1 --when sucess", "did you mean 'success'?"),
        ("jobs hand-over job_1 --put https://bucket.example/x?sig=secret", "must be ARTIFACT=URL"),
        ("jobs hand-over job_1 --targets none.json", "cannot be read"),
        ("jobs hand-over job_1 --targets bad.json", "not JSON"),
        ("jobs hand-over job_1 --targets object.json", "must be a list"),
        ("jobs clone job_1", "use retry"),
        ('jobs clone job_1 {"name":"a"} --name b', "is in JSON as well"),
        ("jobs retry job_1 --fail-on-gate", "requires --wait"),
        ("jobs submit --model m --targets none.json", "cannot be read"),
        ("jobs submit --model m --targets t.json --dry-run", "exclude each other"),
        ("jobs submit --model m --label novalue", "--label"),
        ("jobs submit --model m --label a=1 --label a=2", "--label"),
        ("jobs submit --model m --timeout 3", "--timeout"),
        ("jobs submit --model m --fail-on-gate", "--fail-on-gate"),
        ("jobs submit --model m --dry-run --wait", "--wait"),
        ("jobs submit --model m --preset int8 --config object.json", "--config"),
        ("jobs fetch job_x", "--output"),
        ("jobs fetch job_x --safetensors w", "--output"),
        ("report no-such-file.json", "no-such-file.json"),
        ("quantize object.json --calibration object.json --output q --cache-dir folder", "--cache-dir"),
        ("quantize object.json --calibration object.json --output q --checkpoint-dir folder", "--checkpoint-dir"),
        ("quantize object.json --calibration object.json --output q --extra-dir object.json", "is not a folder"),
        ("compare job_1", "at least two jobs"),
        ("compare job_1 object.json", "compare files with files, or jobs with jobs"),
        ("compare none.json object.json", "none.json does not exist"),
        ("schedules add n cron object.json --overlap skp", "did you mean 'skip'?"),
        ("schedules add n cron object.json --misfire runonce", "did you mean 'run_once'?"),
        ("schedules add n cron list.json", "no JSON object"),
        ("schedules set n --overlap skp", "did you mean 'skip'?"),
        ("schedules set n", "--cron"),
        ("schedules runs n --state pased", "did you mean 'passed'?"),
        ("webhooks deliveries whk_1 --state waitin", "did you mean 'waiting'?"),
        ("models push object.json --tag team", "--tag"),
        ("datasets push object.json --tag team", "--tag"),
        ("models list --tag team", "--tag"),
        ("models alias net@1 --drop", "required with --drop"),
        ("models list --limit 10001", "10000"),
        ("datasets list --limit 10001", "10000"),
        ("jobs list --limit 10001", "10000"),
        ("batches list --limit 10001", "10000"),
    ],
)
def test_what_is_spelled_wrong_is_told_before_a_service_is_asked(
    quantmill: Quantmill, tmp_path: Path, command: str, told: str
) -> None:
    texts = {"bad.json": "[secret", "object.json": '{"secret": 1}', "list.json": "[1]"}
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    done = quantmill(*command.split(), "--server", NOWHERE, code=2)
    assert told in words(done.stderr)
    assert "secret" not in done.stderr

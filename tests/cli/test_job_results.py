"""``quantmill jobs``: what a job gave, as files and as JSON; jobs found again, and asked for once more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.contracts.evaluation_report import EvaluationReport
from service.jobs.schemas import JobOut
from tests.cli.conftest import KEY, Quantmill
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny
from tests.worker.running import Service

Jobs = Any


@pytest.fixture(scope="module")
def job(service: Service, tiny: Tiny) -> JobOut:
    made = service.client.submit(**service.upload(tiny), preset="int8", name="results", labels={"build": "7"})
    return service.client.wait_succeeded(made, timeout_seconds=PATIENCE_SECONDS)


@pytest.fixture(scope="module")
def evaluation(service: Service, job: JobOut) -> JobOut:
    assert job.model_id is not None
    assert job.calibration_dataset_id is not None
    made = service.client.submit_evaluation(
        model=job.model_id, evaluation=job.evaluation_dataset_id or job.calibration_dataset_id,
        spec={"latency_runs": 1, "gate": {"max_size_bytes": 1}},
    )  # fmt: skip
    return service.client.wait_succeeded(made, timeout_seconds=PATIENCE_SECONDS)


@pytest.fixture
def jobs(quantmill: Quantmill, service: Service) -> Jobs:
    """Runs ``quantmill jobs ARGUMENTS`` on the service; gives standard output, or of a failure standard error."""

    def run(*arguments: object, code: int = 0) -> str:
        done = quantmill("jobs", *arguments, "--server", service.url, "--key", KEY)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout if code == 0 else " ".join(done.stderr.replace("│", " ").split())

    return run


def test_show_tells_what_a_job_is_of_and_what_it_gave(jobs: Jobs, job: JobOut) -> None:
    shown = dict(line.split("  ", 1) for line in jobs("show", job.id).splitlines())
    shown = {name: told.strip() for name, told in shown.items()}
    assert shown["kind"] == "quantize"
    assert shown["model"] == f"{job.model_name}@{job.model_version}  {job.model_id}"
    assert (shown["preset"], shown["labels"]) == ("int8", "build=7")
    assert shown["calibration"] == job.calibration_dataset_id
    assert shown["took"].endswith(" s")
    assert "dB" in shown["SQNR"]
    assert " -> " in shown["size"]
    assert "retry of" not in shown


def test_list_is_readable_and_finds_by_what_a_job_is(jobs: Jobs, job: JobOut, evaluation: JobOut) -> None:
    lines = jobs("list", "--name", "results").splitlines()
    assert lines[0].split() == ["job", "state", "name", "model", "preset", "result", "took", "created"]
    assert max(map(len, lines)) <= 120
    assert lines[1].split()[:3] == [job.id, "succeeded", "results"]
    found = jobs("list", "--model", job.model_id, "--preset", "int8", "--verdict", "none", "--since", "1h", "--json")
    assert [item["id"] for item in json.loads(found)["items"]] == [job.id]
    named = jobs("list", "--model", f"{job.model_name}@{job.model_version}", "--verdict", "fail", "--json")
    assert [item["id"] for item in json.loads(named)["items"]] == [evaluation.id]
    assert json.loads(jobs("list", "--since", "2999-01-01", "--json")) == {"items": [], "has_more": False}


def test_follow_gives_events_and_nothing_else(jobs: Jobs, job: JobOut, tmp_path: Path) -> None:
    events = [json.loads(line) for line in jobs("follow", job.id, "--json", "--report", "r.json").splitlines()]
    assert [event["seq"] for event in events] == sorted(event["seq"] for event in events)
    assert {"state", "progress"} <= {event["type"] for event in events}
    assert (tmp_path / "r.json").exists()


def test_logs_are_entries_as_json(jobs: Jobs, job: JobOut) -> None:
    text = jobs("logs", job.id).splitlines()
    entries = [json.loads(line) for line in jobs("logs", job.id, "--json").splitlines()]
    assert [f"{e['created_at']} {e['attempt']} {e['level'].upper()} {e['message']}" for e in entries] == text


def test_fetch_tells_what_it_wrote(jobs: Jobs, job: JobOut, tmp_path: Path) -> None:
    told = json.loads(jobs("fetch", job.id, "--output", "q.onnx", "--report", "r.json", "--html", "r.html", "--json"))
    kinds = {file["kind"]: file["path"] for file in told["files"]}
    assert (told["job"], told["verdict"]) == (job.id, "none")
    assert {"model": "q.onnx", "report": "r.json", "html": "r.html"}.items() <= kinds.items()
    assert all((tmp_path / path).exists() for path in kinds.values())


def test_fetch_of_an_evaluation_is_its_report(jobs: Jobs, evaluation: JobOut, tmp_path: Path) -> None:
    assert jobs("fetch", evaluation.id, "--report", "e.json") == "report    e.json\n"
    assert EvaluationReport.model_validate_json((tmp_path / "e.json").read_text()).verdict == "fail"
    for option in ("--output", "--html", "--markdown", "--junit", "--layers-csv", "--extra-dir"):
        said = jobs("fetch", evaluation.id, "--report", "e.json", option, "x.onnx", code=2)
        assert option in said
        assert "an evaluation" in said
        assert not (tmp_path / "x.onnx").exists()


def test_once_more_with_changes_and_waited_for(jobs: Jobs, job: JobOut, tmp_path: Path) -> None:
    (tmp_path / "recipe.json").write_text('{"seed": 7}')
    made = json.loads(
        jobs("clone", job.id, "--config", "recipe.json", "--name", "again", "--wait", "--quiet", "--json")
    )
    assert (made["name"], made["state"], made["config"]["seed"]) == ("again", "succeeded", 7)
    assert made["config"]["preset"] == "int8"
    assert "cloned from" in jobs("show", made["id"])
    again = jobs("retry", job.id, "--wait", "--quiet").strip()
    assert any(line.split() == ["retry", "of", job.id] for line in jobs("show", again).splitlines())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("list", "--state", "quued"), "did you mean 'queued'?"),
        (("list", "--kind", "quantise"), "did you mean 'quantize'?"),
        (("list", "--verdict", "good"), "pass, fail, undecided, none"),
        (("list", "--since", "yesterday"), "is no time"),
        (("hand-over", "job_1", "--when", "sucess"), "did you mean 'success'?"),
        (("clone", "job_1"), "retry changes nothing"),
        (("clone", "job_1", '{"name": "a"}', "--name", "b"), "stands in JSON as well"),
        (("retry", "job_1", "--fail-on-gate"), "give --wait"),
        (("submit", "--model", "m", "--targets", "none.json"), "cannot be read"),
        (("submit", "--model", "m", "--targets", "t.json", "--dry-run"), "submits nothing"),
    ],
)
def test_what_is_spelled_wrong_is_told_before_a_service_is_asked(
    quantmill: Quantmill, arguments: tuple[str, ...], told: str
) -> None:
    done = quantmill("jobs", *arguments, "--server", "http://127.0.0.1:1")
    assert done.returncode == 2, done.stderr
    assert told in " ".join(done.stderr.replace("│", " ").split())


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("compare", "job_1"), "name another"),
        (("schedules", "add", "n", "* * * * *", "job.json", "--overlap", "skp"), "did you mean 'skip'?"),
        (("schedules", "add", "n", "* * * * *", "job.json", "--misfire", "runonce"), "did you mean 'run_once'?"),
        (("schedules", "set", "n", "--overlap", "skp"), "did you mean 'skip'?"),
        (("schedules", "runs", "n", "--state", "pased"), "did you mean 'passed'?"),
        (("webhooks", "deliveries", "whk_1", "--state", "waitin"), "did you mean 'waiting'?"),
    ],
)
def test_other_words_are_told_as_well(
    quantmill: Quantmill, tmp_path: Path, arguments: tuple[str, ...], told: str
) -> None:
    (tmp_path / "job.json").write_text("{}")
    done = quantmill(*arguments, "--server", "http://127.0.0.1:1")
    assert done.returncode == 2, done.stderr
    assert told in " ".join(done.stderr.replace("│", " ").split())

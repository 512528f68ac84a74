"""Reports as files from the command line: beside a quantization, from a report that is there, and from a service."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from service.contracts.report import Report
from service.reports.formats import FORMATS, rendered
from tests.cli.conftest import words
from tests.support.front import make_report
from tests.support.reports import full_report
from tests.unit.contracts.test_report_versions import OLD
from worker.commands import report_files

FILES = {"html": "r.html", "markdown": "r.md", "junit": "r.xml", "layers_csv": "l.csv"}
OPTIONS = ("--html", "r.html", "--markdown", "r.md", "--junit", "r.xml", "--layers-csv", "l.csv")


def check_files(folder: Path, report: Report) -> None:
    """Each file holds what the report renders to, and can be read as what it is."""
    for form, name in FILES.items():
        assert (folder / name).read_bytes() == rendered(report, form)
    assert (folder / "r.html").read_text().startswith("<!doctype html>")
    assert ElementTree.parse(folder / "r.xml").getroot().tag == "testsuites"
    with (folder / "l.csv").open(newline="") as stream:
        assert [row["name"] for row in csv.DictReader(stream)] == [layer.name for layer in report.layers]


def test_quantize_writes_every_form(quantmill, tiny, tmp_path):
    done = quantmill(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--evaluation", tiny.evaluation,
        "--output", "q.onnx", "--report", "r.json", *OPTIONS, code=0,
    )  # fmt: skip
    check_files(tmp_path, Report.model_validate_json((tmp_path / "r.json").read_text()))
    assert all(name in done.stdout for name in FILES.values())
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*FILES.values(), "q.onnx", "r.json"])


@pytest.mark.slow
def test_a_service_renders_the_same(ask, service, job, tmp_path):
    ask("jobs", "fetch", job.id, "--report", "r.json", *OPTIONS)
    check_files(tmp_path, Report.model_validate_json((tmp_path / "r.json").read_text()))
    for form in FORMATS:
        assert service.client.report_file(job.id, form) == (tmp_path / FILES[form]).read_bytes()
    printed = ask("report", job.id, "--json", "--html", "again.html")
    assert json.loads(printed.rpartition("}")[0] + "}") == json.loads((tmp_path / "r.json").read_text())
    assert (tmp_path / "again.html").read_bytes() == (tmp_path / "r.html").read_bytes()
    assert "error[job-not-found]" in ask("report", "job_x", code=1)


def test_a_report_that_is_there_is_rendered(quantmill, tmp_path):
    report = full_report()
    (tmp_path / "r.json").write_text(json.dumps(report.to_json_dict()))
    done = quantmill("report", "r.json", *OPTIONS, code=0)
    check_files(tmp_path, report)
    assert "Gate failed: " in done.stdout
    (tmp_path / "old.json").write_text(json.dumps(OLD))
    assert quantmill("report", "old.json", "--html", "old.html").returncode == 0
    assert "Gate passed" in (tmp_path / "old.html").read_text()


def test_report_files_are_compared(quantmill, tmp_path):
    for name, verdict in (("one.json", "pass"), ("two.json", "fail")):
        (tmp_path / name).write_text(json.dumps(make_report(verdict).to_json_dict()))
    told = json.loads(quantmill("compare", "one.json", "two.json", "--json", code=0).stdout)
    assert [(job["id"], job["verdict"]) for job in told["jobs"]] == [("one.json", "pass"), ("two.json", "fail")]
    assert told["pairs"][0]["p_value"] is None
    assert "two.json: no prediction flips" in quantmill("compare", "one.json", "two.json", code=0).stdout


@pytest.mark.parametrize("text", ["{}", "no json", '{"schema_version": 99}'])
def test_what_is_no_report_is_refused(quantmill, tmp_path, text):
    (tmp_path / "r.json").write_text(text)
    done = quantmill("report", "r.json", "--html", "r.html", code=1)
    assert "error[invalid-request]" in done.stderr
    assert "not a report" in words(done.stderr)
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    "command",
    [
        ("apply-advice", "r.json", "--output", "config.json"),
        ("quantize", "{model}", "--calibration", "{data}", "--ranges-from", "r.json", "--output", "q.onnx"),
        ("report", "r.json"),
    ],
    ids=lambda command: command[0],
)
def test_a_report_that_does_not_fit_is_told_by_its_place(quantmill, tiny, tmp_path, command):
    (tmp_path / "r.json").write_text(json.dumps({**make_report().to_json_dict(), "verdict": "maybe"}))
    done = quantmill(*(word.format(model=tiny.model, data=tiny.calibration) for word in command), code=1)
    assert "r.json is not a report: verdict" in words(done.stderr)


@pytest.mark.parametrize("options", [("--html", "r.json"), ("--html", "x", "--markdown", "x"), ("--junit", ".")])
def test_no_file_is_written_over(quantmill, tmp_path, options):
    (tmp_path / "r.json").write_text(json.dumps(make_report().to_json_dict()))
    done = quantmill("report", "r.json", *options, code=2)
    assert ("is a folder" if "." in options else "are the same file") in words(done.stderr)
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    "command",
    [("report", "r.json", "--html", "there"), ("apply-advice", "r.json", "--output", "there")],
    ids=lambda command: command[0],
)
def test_what_cannot_be_written_leaves_nothing_behind(quantmill, tmp_path, monkeypatch, command):
    def refuse(source: Path, destination: Path) -> None:
        raise PermissionError(13, "Permission denied", str(destination))

    monkeypatch.setattr(report_files, "publish", refuse)
    advice = {
        "code": "equalize", "because": "it is lost", "message": "Equalize.", "status": "untried",
        "config": {"algorithms": [{"method": "cross_layer_equalization"}]},
    }  # fmt: skip
    (tmp_path / "r.json").write_text(json.dumps({**make_report().to_json_dict(), "advice": [advice]}))
    (tmp_path / "there").write_text("that of yesterday")
    done = quantmill(*command, code=1)
    assert "error[file-access]" in done.stderr
    assert (tmp_path / "there").read_text() == "that of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.json", "there"]

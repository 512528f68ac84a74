"""Reports as files from the command line: beside a quantization, from a report that is there, and from a service."""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from service.client import Client
from service.contracts.report import Report
from service.reports.formats import FORMATS, rendered
from tests.cli.conftest import KEY
from tests.support.front import make_report
from tests.support.reports import full_report

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
        "--output", "q.onnx", "--report", "r.json", *OPTIONS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_files(tmp_path, Report.model_validate_json((tmp_path / "r.json").read_text()))
    for name in FILES.values():
        assert name in done.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*FILES.values(), "q.onnx", "r.json"])


def test_the_service_renders_the_same(quantmill, tiny, service, tmp_path):
    done = quantmill(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx", "--report", "r.json",
        "--server", service.url, "--key", KEY, *OPTIONS,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_files(tmp_path, Report.model_validate_json((tmp_path / "r.json").read_text()))
    (job_id,) = re.findall(r"job (job_\w+)", done.stderr)
    with Client(service.url, KEY) as client:
        for form in FORMATS:
            assert client.report_file(job_id, form) == (tmp_path / FILES[form]).read_bytes()


def test_a_report_that_is_there_is_rendered(quantmill, tmp_path):
    report = full_report()
    (tmp_path / "r.json").write_text(json.dumps(report.to_json_dict()))
    done = quantmill("report", "r.json", *OPTIONS)
    assert done.returncode == 0, done.stderr
    check_files(tmp_path, report)
    assert "verdict   fail" in done.stdout


def test_a_report_of_version_1_is_rendered(quantmill, tmp_path):
    document = make_report("pass").to_json_dict()
    document["schema_version"] = 1
    for row in document["layers"]:
        del row["nodes"]
    (tmp_path / "r.json").write_text(json.dumps(document))
    done = quantmill("report", "r.json", "--html", "r.html")
    assert done.returncode == 0, done.stderr
    assert "PASS" in (tmp_path / "r.html").read_text()


def test_without_options_it_is_only_printed(quantmill, tmp_path):
    (tmp_path / "r.json").write_text(json.dumps(make_report().to_json_dict()))
    done = quantmill("report", "r.json")
    assert done.returncode == 0, done.stderr
    assert "verdict   none" in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


@pytest.mark.parametrize(
    ("text", "told"),
    [("{}", "is no report: verdict"), ("no json", "is no report"), ('{"schema_version": 99}', "no report")],
)
def test_what_is_no_report_is_refused(quantmill, tmp_path, text, told):
    (tmp_path / "r.json").write_text(text)
    done = quantmill("report", "r.json", "--html", "r.html")
    assert done.returncode == 1
    assert "error[invalid-request]" in done.stderr
    assert told in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "r.html").exists()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--html", "r.json"), "are the same file"),
        (("--html", "x", "--markdown", "x"), "are the same file"),
        (("--layers-csv", "nowhere/l.csv"), "does not exist"),
        (("--junit", "."), "is a folder"),
    ],
)
def test_no_file_is_written_over(quantmill, tmp_path, options, told):
    (tmp_path / "r.json").write_text(json.dumps(make_report().to_json_dict()))
    done = quantmill("report", "r.json", *options)
    assert done.returncode == 2
    assert told in " ".join(done.stderr.replace("│", " ").split())
    assert [path.name for path in tmp_path.iterdir()] == ["r.json"]


def test_a_page_does_not_go_over_the_model(quantmill, tiny):
    done = quantmill(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx", "--html", "q.onnx"
    )
    assert done.returncode == 2
    assert "--html and --output are the same file" in " ".join(done.stderr.replace("│", " ").split())


def test_what_cannot_be_written_leaves_nothing_behind(quantmill, tmp_path, monkeypatch):
    import worker.commands.report_files as report_files

    def refuse(source: Path, destination: Path) -> None:
        raise PermissionError(13, "Permission denied", str(destination))

    monkeypatch.setattr(report_files, "publish", refuse)
    (tmp_path / "r.json").write_text(json.dumps(make_report().to_json_dict()))
    (tmp_path / "r.html").write_text("the page of yesterday")
    done = quantmill("report", "r.json", "--html", "r.html")
    assert done.returncode == 1
    assert "error[file-access]" in done.stderr
    assert (tmp_path / "r.html").read_text() == "the page of yesterday"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r.json"]

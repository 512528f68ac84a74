"""Further files of a job, by real supervisor and runner: published like the model, or not at all."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from service.artifacts import repository
from service.contracts.runner import MAX_FILES
from service.tables import Artifact
from tests.support.front import make_report
from tests.support.tiny import make_tiny
from tests.worker.workbench import Workbench


def submit(bench: Workbench, model: bytes = b"onnx", calibration: bytes = b"npz") -> str:
    model_id, data = bench.add_model({"net.onnx": model}), bench.add_dataset(calibration)
    return bench.submit(kind="quantize", model_id=model_id, calibration_dataset_id=data, config={"preset": "int8"})


def artifacts(bench: Workbench, job_id: str) -> dict[str, Artifact]:
    with bench.database.read() as session:
        return {item.kind: item for item in repository.list_of_job(session, "default", job_id)}


def test_files_of_the_engine_become_artifacts(bench, tmp_path):
    tiny = make_tiny(tmp_path)
    program = """
    import pathlib, tempfile
    from worker import runner
    from worker.quantizer import pipeline
    from worker.quantizer.run.extra import ExtraFile
    original = pipeline._fill
    def fill(model, origin, case, services):
        made = pathlib.Path(tempfile.mkdtemp()) / "made"
        made.write_bytes(b"another model")
        services.files.add(ExtraFile("sensitivity_json", "sensitivity.json", "application/json", b"{}"))
        services.files.add(ExtraFile("pareto_1_model", "pareto-1.onnx", "application/octet-stream", made))
        services.files.add(ExtraFile("empty", "empty.csv", "text/csv", b""))
        return original(model, origin, case, services)
    pipeline._fill = fill
    sys.exit(runner.main([task_file]))
    """
    job_id = submit(bench, tiny.model.read_bytes(), tiny.calibration.read_bytes())
    bench.supervisor(program).run(job_id)
    assert bench.job(job_id).state == "succeeded", bench.job(job_id).error
    found = artifacts(bench, job_id)
    expected = {"sensitivity_json": b"{}", "pareto_1_model": b"another model", "empty": b""}
    assert set(found) == {"model", "report", "samples", "graph", *expected}
    for kind, data in expected.items():
        with bench.store.open(found[kind].sha256, found[kind].size_bytes) as stream:
            assert stream.read() == data
    assert (found["pareto_1_model"].filename, found["pareto_1_model"].media_type) == (
        "pareto-1.onnx",
        "application/octet-stream",
    )


class Said:
    """What a runner says that it did, and what it did."""

    def __init__(self, bench: Workbench) -> None:
        self.model = b"quantized"
        report = make_report()
        manifest = report.manifest.model_copy(update={"output_sha256": hashlib.sha256(self.model).hexdigest()})
        self.report = report.model_copy(update={"manifest": manifest}).to_json_dict()
        self.bench = bench

    def run(self, files: list[dict[str, str]], *, prepare: str = "") -> str:
        """A job whose runner writes a model and ``data.csv``, does ``prepare`` and tells of ``files``.

        No control holds it: under them it could make no links.
        """
        job_id = submit(self.bench)
        line = {"line": "quantized", "model_file": "model.onnx", "report": self.report, "files": files}
        (self.bench.folder / "line.json").write_text(json.dumps(line))
        code = f"""
os.chdir(task["output_dir"])
open("model.onnx", "wb").write({self.model!r})
open("data.csv", "wb").write(b"a,b")
{prepare}
os.write(3, open(os.environ["BENCH"] + "/line.json", "rb").read() + b"\\n")
sys.exit(0)
"""
        self.bench.supervisor(code, mode="off").run(job_id)
        return job_id


@pytest.fixture
def said(bench: Workbench) -> Said:
    return Said(bench)


def told(**changes: str) -> dict[str, str]:
    sha256 = hashlib.sha256(b"a,b").hexdigest()
    return {"kind": "table", "file": "data.csv", "media_type": "text/csv", "sha256": sha256, **changes}


def test_what_is_told_truly_is_published(bench, said):
    job_id = said.run([told()])
    assert bench.job(job_id).state == "succeeded", bench.job(job_id).error
    assert set(artifacts(bench, job_id)) == {"model", "report", "table"}


@pytest.mark.parametrize(
    ("changes", "prepare", "words"),
    [
        ({"file": "missing.csv"}, "", "missing.csv, which is not there"),
        ({"sha256": "0" * 64}, "", "it told of 0000"),
        ({"file": "link.csv"}, "os.symlink('data.csv', 'link.csv')", "link.csv, which is not there"),
        ({"file": "passwd"}, "os.symlink('/etc/passwd', 'passwd')", "passwd, which is not there"),
        ({"file": "folder"}, "os.mkdir('folder')", "folder, which is not there"),
        ({}, "os.link('data.csv', 'kept.csv')", "data.csv, which is a file with another name beside"),
        ({}, "os.chdir('..'); os.rename('output', 'real'); os.symlink('real', 'output')", "in the place of its folder"),
    ],
)
def test_a_file_that_is_not_what_was_told_fails_the_job(bench, said, changes, prepare, words):
    job_id = said.run([told(**changes)], prepare=prepare)
    job = bench.job(job_id)
    assert (job.state, job.error["code"]) == ("failed", "engine-error")
    assert words in job.error["detail"]
    assert artifacts(bench, job_id) == {}
    assert Path("/etc/passwd").exists()


def test_the_report_is_not_written_through_a_link(bench, said):
    victim = bench.folder / "victim"
    victim.write_text("of somebody else")
    job_id = said.run([told()], prepare=f"os.symlink({str(victim)!r}, 'report.json')")
    assert bench.job(job_id).state == "succeeded"
    assert victim.read_text() == "of somebody else"
    assert bench.store.path(artifacts(bench, job_id)["report"].sha256).read_bytes().startswith(b"{")


@pytest.mark.parametrize(
    "files",
    [
        [told(file="../model.onnx")],
        [told(file="/etc/passwd")],
        [told(kind="model")],
        [told(kind="model_data")],
        [told(kind="report", file="report.json")],
        [told(file="report.json")],
        [told(kind="Table; DROP")],
        [told(media_type="text/csv\r\nX: y")],
        [told(), told(file="model2.onnx")],
        [told(), told(kind="other")],
        [told(kind=f"table_{number}", file=f"{number}.csv") for number in range(MAX_FILES + 1)],
    ],
)
def test_names_that_no_engine_gives_are_no_result(bench, said, files):
    """The line cannot be read, as with any other garbage: the attempt counts as crashed."""
    job_id = said.run(files)
    assert bench.job(job_id).state == "queued"
    assert artifacts(bench, job_id) == {}


def test_files_beyond_the_limit_fail_the_job(bench):
    bench.settings = bench.settings.model_copy(update={"extra_bytes": 2})
    job_id = Said(bench).run([told()])
    job = bench.job(job_id)
    assert (job.state, job.error["code"]) == ("failed", "resource-limit")
    assert "QUANTMILL_EXTRA_BYTES" in job.error["hint"]
    assert artifacts(bench, job_id) == {}

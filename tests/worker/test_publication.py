"""Files of a job, by real supervisor and runner: published as they were told of, or not at all."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from pydantic import ValidationError
from sqlalchemy import update

from service.contracts.runner import LINE_ADAPTER, MAX_FILES
from service.tables import Model
from tests.support.front import make_report
from tests.support.tiny import make_tiny
from tests.worker.workbench import Workbench


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


ADDING = """
import pathlib, tempfile
from worker import runner
from worker.quantizer import pipeline
from worker.quantizer.run.services import ExtraFile
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


@pytest.mark.slow
def test_files_of_the_engine_become_artifacts(bench, tmp_path):
    tiny = make_tiny(tmp_path)
    job_id = bench.quantize(tiny.model.read_bytes(), tiny.calibration.read_bytes())
    bench.supervisor(ADDING).run(job_id)
    assert bench.job(job_id).state == "succeeded", bench.job(job_id).error
    found = bench.artifacts(job_id)
    expected = {"sensitivity_json": b"{}", "pareto_1_model": b"another model", "empty": b""}
    assert set(found) == {"model", "report", "samples", "graph", *expected}
    for kind, data in expected.items():
        with bench.store.open(found[kind].sha256, found[kind].size_bytes) as stream:
            assert stream.read() == data
    made = found["pareto_1_model"]
    assert (made.filename, made.media_type) == ("pareto-1.onnx", "application/octet-stream")


class Said:
    """What a runner says that it did, and what it did."""

    def __init__(self, bench: Workbench) -> None:
        self.bench, self.report = bench, make_report()

    def run(self, files: list[dict[str, str]], *, prepare: str = "", **more: Any) -> str:
        """A job whose runner writes a model, ``data.csv`` and ``model.onnx.data``, does ``prepare`` and tells of files.

        No control holds it: under them it could make no links.
        """
        job_id = self.bench.quantize()
        told = {"output_sha256": sha256(b"quantized")}
        if "data" in more:
            told["output_data_sha256"] = sha256(b"data")
        manifest = self.report.manifest.model_copy(update=told)
        report = self.report.model_copy(update={"manifest": manifest}).to_json_dict()
        line = {"line": "quantized", "model_file": "model.onnx", "report": report, "files": files, **more}
        (self.bench.folder / "line.json").write_text(json.dumps(line))
        code = f"""
os.chdir(task["output_dir"])
open("model.onnx", "wb").write(b"quantized")
open("model.onnx.data", "wb").write(b"data")
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
    return {"kind": "table", "file": "data.csv", "media_type": "text/csv", "sha256": sha256(b"a,b"), **changes}


def test_what_is_told_truly_is_published_and_the_report_not_through_a_link(bench, said):
    victim = bench.folder / "victim"
    victim.write_text("of somebody else")
    data = {"file": "model.onnx.data", "sha256": sha256(b"data")}
    job_id = said.run([told()], prepare=f"os.symlink({str(victim)!r}, 'report.json')", data=data)
    assert bench.job(job_id).state == "succeeded", bench.job(job_id).error
    found = bench.artifacts(job_id)
    assert set(found) == {"model", "model_data", "report", "table"}
    assert (found["model_data"].filename, found["model_data"].sha256) == ("model.onnx.data", sha256(b"data"))
    assert victim.read_text() == "of somebody else"
    assert bench.store.path(found["report"].sha256).read_bytes().startswith(b"{")


@pytest.mark.parametrize(
    ("changes", "prepare", "words"),
    [
        ({"file": "missing.csv"}, "", "missing.csv, which does not exist"),
        ({"sha256": "0" * 64}, "", "it reported 0000"),
        ({"file": "passwd"}, "os.symlink('/etc/passwd', 'passwd')", "passwd, which does not exist"),
        ({"file": "folder"}, "os.mkdir('folder')", "folder, which does not exist"),
        ({}, "os.link('data.csv', 'kept.csv')", "data.csv, which has another hard link"),
        (
            {},
            "os.chdir('..'); os.rename('output', 'real'); os.symlink('real', 'output')",
            "replaced its folder by a link",
        ),
        ({}, "open('model.onnx', 'ab').write(b'more')", "model.onnx has sha256"),
    ],
)
def test_a_file_that_is_not_what_was_told_fails_the_job(bench, said, changes, prepare, words):
    job_id = said.run([told(**changes)], prepare=prepare)
    assert bench.failure(job_id) == ("failed", "engine-error")
    assert words in bench.job(job_id).error["detail"]
    assert bench.artifacts(job_id) == {}


@pytest.mark.parametrize(
    "files",
    [
        [told(file="../model.onnx")],
        [told(file="/etc/passwd")],
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
def test_names_that_no_engine_gives_are_no_result(said, files):
    """The line cannot be read, as any other garbage: the attempt counts as crashed."""
    line = {"line": "quantized", "model_file": "model.onnx", "report": said.report.to_json_dict()}
    assert LINE_ADAPTER.validate_python({**line, "files": [told()]})
    with pytest.raises(ValidationError):
        LINE_ADAPTER.validate_python({**line, "files": files})


def test_files_beyond_the_limit_fail_the_job(bench):
    bench.settings = bench.settings.model_copy(update={"extra_bytes": 2})
    job_id = Said(bench).run([told()])
    assert bench.failure(job_id) == ("failed", "resource-limit")
    assert "QUANTMILL_EXTRA_BYTES" in bench.job(job_id).error["hint"]
    assert bench.artifacts(job_id) == {}


@pytest.mark.parametrize("name", ["model.onnx", "other.onnx"])
def test_a_model_that_a_validation_makes_becomes_its_first_file(bench, name):
    skeleton, state = bench.add_model(), bench.add_model({"new.safetensors": b"state"})
    with bench.database.write() as session:
        of_skeleton = {"format": "safetensors", "skeleton_model_id": skeleton}
        session.execute(update(Model).where(Model.id == state).values(**of_skeleton))
    job_id = bench.submit(model_id=state)
    code = f"""
open(os.path.join(task["output_dir"], {name!r}), "wb").write(b"made")
say(line="model", summary=SUMMARY, files=[dict(file={name!r}, sha256={sha256(b"made")!r})])
sys.exit(0)
"""
    bench.supervisor(code).run(job_id)
    model = bench.model(state)
    files = [(file.path, file.sha256) for file in model.files]
    if name == "model.onnx":
        assert model.status == "ready", bench.job(job_id).error
        assert files[0] == (name, sha256(b"made"))
        assert bench.store.path(sha256(b"made")).read_bytes() == b"made"
    else:
        assert bench.failure(job_id) == ("failed", "engine-error")
        assert (model.status, len(files)) == ("rejected", 1)

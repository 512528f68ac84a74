"""Files beside the model: collected within their limits, written under their names, told with their digests."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
from pydantic import ValidationError
from safetensors.numpy import load_file

from service.contracts.config import parse_config
from service.contracts.errors import EngineError, ResourceLimitError
from service.contracts.runner import MAX_FILES, DatasetSource, QuantizeTask
from tests.support.each import each
from tests.support.tiny import make_nothing_to_quantize, make_tiny
from worker.quantizer import pipeline
from worker.quantizer.command import quantize_files
from worker.quantizer.refine.draft import Case
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.run.services import ExtraFile, ExtraFiles, Services, write_files


def table(kind: str = "table_csv", filename: str = "table.csv", content: bytes | Path = b"a,b\n") -> ExtraFile:
    return ExtraFile(kind, filename, "text/csv", content)


def test_files_are_written_under_their_names_and_told_with_their_digests(tmp_path):
    made, output = tmp_path / "made", tmp_path / "output"
    made.write_bytes(b"a model")
    output.mkdir()
    files = ExtraFiles()
    files.add(table())
    files.add(ExtraFile("pareto_1_model", "pareto-1.onnx", "application/octet-stream", made))
    told = write_files(files.all, output)
    assert {path.name: path.read_bytes() for path in output.iterdir()} == {
        "table.csv": b"a,b\n", "pareto-1.onnx": b"a model",
    }  # fmt: skip
    assert [(file.kind, file.file, file.media_type) for file in told] == [
        ("table_csv", "table.csv", "text/csv"),
        ("pareto_1_model", "pareto-1.onnx", "application/octet-stream"),
    ]
    assert [file.sha256 for file in told] == [hashlib.sha256(data).hexdigest() for data in (b"a,b\n", b"a model")]
    assert not made.exists(), "a file is moved"


@each(
    "file",
    [
        table(kind=""),
        table(kind="Table"),
        table(kind="a" * 33),
        table(kind="model"),
        table(filename=""),
        table(filename="../table.csv"),
        table(filename=".hidden"),
        table(filename="a\nb"),
        table(filename="Model.onnx"),
        ExtraFile("table", "table.csv", "text/html; charset=utf-8", b""),
        ExtraFile("table", "table.csv", "text/csv\r\nX-Other: 1", b""),
        ExtraFile("table", "table.csv\n", "text/csv", b""),
    ],
)
def test_bad_words_are_refused_at_once(file):
    with pytest.raises(ValidationError):
        ExtraFiles().add(file)


def test_no_two_files_have_one_kind_or_name() -> None:
    files = ExtraFiles()
    files.add(table())
    for second in (table(filename="other.csv"), table(kind="other"), table("other", "TABLE.csv")):
        with pytest.raises(ValueError, match="collides"):
            files.add(second)


def test_their_number_and_their_size_together_are_limited(tmp_path):
    files = ExtraFiles()
    for number in range(MAX_FILES):
        files.add(table(f"table_{number}", f"{number}.csv"))
    with pytest.raises(EngineError, match=str(MAX_FILES)):
        files.add(table("one_more", "more.csv"))
    assert len(files.all) == MAX_FILES
    big = tmp_path / "big"
    big.write_bytes(bytes(60))
    files = ExtraFiles(limit_bytes=100)
    files.add(table("a", "a", big))
    files.add(table("b", "b", bytes(40)))
    with pytest.raises(ResourceLimitError, match="101 bytes; the limit is 100") as caught:
        files.add(table("c", "c", b"1"))
    assert caught.value.where["resource"] == "disk"
    assert "QUANTMILL_EXTRA_BYTES" in str(caught.value.hint)


def task_of(folder: Path, **values: object) -> QuantizeTask:
    tiny = make_tiny(folder)
    (folder / "output").mkdir()
    return QuantizeTask.model_validate(
        {
            "model_path": str(tiny.model),
            "config": parse_config({"evaluation": {"latency_runs": 1}}),
            "calibration": DatasetSource(path=str(tiny.calibration)),
            "output_dir": str(folder / "output"),
            "threads": 1,
            **values,
        }
    )


@pytest.fixture
def stage(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[Services], object]]:
    """What is to be done where a model's plan is filled."""
    original, done = pipeline._fill, []

    def fill(model: object, origin: object, case: Case, services: Services) -> object:
        for work in done:
            work(services)
        return original(model, origin, case, services)

    monkeypatch.setattr(pipeline, "_fill", fill)
    return done


def test_what_a_stage_adds_comes_out_of_the_pipeline(tmp_path, stage):
    stage.append(lambda services: services.files.add(table(content=b"12345")))
    result = quantize_files(task_of(tmp_path, extra_bytes=5), SilentRun())
    assert [file.kind for file in result.files] == ["table_csv"]
    assert sorted(path.name for path in (tmp_path / "output").iterdir()) == ["model.onnx", "table.csv"]
    (tmp_path / "again").mkdir()
    with pytest.raises(ResourceLimitError):
        quantize_files(task_of(tmp_path / "again", extra_bytes=4), SilentRun())


def test_weights_are_written_where_a_task_asks_for_them_and_there_are_some(tmp_path):
    result = quantize_files(task_of(tmp_path, weights=True), SilentRun())
    output = tmp_path / "output"
    (file,) = [file for file in result.files if file.kind == "weights"]
    assert file.sha256 == hashlib.sha256((output / file.file).read_bytes()).hexdigest()
    kept = onnx.load(output / "model.onnx").graph.initializer
    assert load_file(output / file.file).keys() == {tensor.name for tensor in kept}
    assert sorted(path.name for path in output.iterdir()) == sorted(["model.onnx", *(one.file for one in result.files)])
    (tmp_path / "none").mkdir()
    task = task_of(tmp_path / "none", weights=True)
    make_nothing_to_quantize(Path(task.model_path))
    np.savez(tmp_path / "data.npz", x=np.ones((4, 4), np.float32))
    task = task.model_copy(update={"calibration": DatasetSource(path=str(tmp_path / "data.npz"))})
    assert "weights" not in [file.kind for file in quantize_files(task, SilentRun()).files]


@pytest.mark.slow
def test_the_cache_and_the_checkpoints_of_a_task_reach_the_stages(tmp_path, stage):
    found, key = [], "a" * 64
    stage.append(lambda services: found.append((services.checkpoint.find(key), services.checkpoint.load("layer"))))
    stage.append(lambda services: services.checkpoint.keep(key, b"cached"))
    stage.append(lambda services: services.checkpoint.save("layer", b"finished"))
    (tmp_path / "checkpoints").mkdir()
    kept = {"checkpoint_dir": str(tmp_path / "checkpoints"), "cache_dir": str(tmp_path / "cache"), "cache_scope": "t"}
    task = task_of(tmp_path, **kept)
    other = parse_config({"evaluation": {"latency_runs": 1}, "seed": 1})
    for run in (task, task, task.model_copy(update={"config": other}), task.model_copy(update={"cache_scope": "u"})):
        quantize_files(run, SilentRun())
    assert found == [(None, None), (b"cached", b"finished"), (b"cached", None), (b"cached", b"finished")]

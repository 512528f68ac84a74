"""Files beside model and report on the command line: told of, written where somebody says so, and found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from worker.quantizer import pipeline
from worker.quantizer.run.services import ExtraFile

FILES = {"as_input": "net.onnx", "pareto_1_model": "pareto-1.onnx", "table_csv": "table.csv"}
_fill = pipeline._fill


def fill(model: Any, origin: Any, case: Any, services: Any) -> Any:
    """An engine that gives three files more, uses cache and checkpoints, and says what it has found there."""
    for kind, name in FILES.items():
        services.files.add(ExtraFile(kind, name, "application/octet-stream", name.encode()))
    kept = [services.checkpoint.find("a" * 64), services.checkpoint.load("layer")]
    services.checkpoint.keep("a" * 64, b"cached")
    services.checkpoint.save("layer", b"finished")
    services.run.log(f"kept: {kept!r}")
    return _fill(model, origin, case, services)


@pytest.fixture
def common(tiny, tmp_path) -> list[object]:
    (tmp_path / "quick.json").write_text(json.dumps({"evaluation": {"latency_runs": 1, "layer_samples": 1}}))
    return ["quantize", tiny.model, "--calibration", tiny.calibration, "--config", "quick.json", "--output", "q.onnx"]


def contents(folder: Path) -> dict[str, str]:
    """By name; without the samples and the graph that every run tells of."""
    return {path.name: path.read_text() for path in folder.iterdir() if path.name not in ("samples.npz", "graph.json")}


def test_a_run_in_this_process_writes_them_and_finds_what_an_earlier_one_kept(quantmill, common, tmp_path, monkeypatch):
    monkeypatch.setattr(pipeline, "_fill", fill)
    folders = ("--cache-dir", "kept/cache", "--checkpoint-dir", "kept/checkpoints")
    first = quantmill(*common, *folders, code=0)
    assert "kept: [None, None]" in first.stderr
    assert all(kind in first.stderr for kind in FILES), "nobody said where to put them"
    assert "--extra-dir" in first.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "q.onnx", "quick.json"]
    second = quantmill(*common, *folders, "--extra-dir", "new/extra", code=0)
    assert "kept: [b'cached', b'finished']" in second.stderr
    assert contents(tmp_path / "new" / "extra") == {name: name for name in FILES.values()}
    for name in FILES.values():
        assert f"file      new/extra/{name}" in second.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "new", "q.onnx", "quick.json"]


def test_an_input_is_never_written_over_and_nothing_is_kept_unasked(quantmill, common, tiny, monkeypatch):
    monkeypatch.setattr(pipeline, "_fill", fill)
    before, folder = tiny.model.read_bytes(), tiny.model.parent
    there = {path.name for path in folder.iterdir()}
    done = quantmill(*common, "--extra-dir", folder, code=1)
    assert "error[file-access]" in done.stderr
    assert "--extra-dir" in done.stderr
    assert "kept: [None, None]" in done.stderr
    assert tiny.model.read_bytes() == before
    for name in {path.name for path in folder.iterdir()} - there:
        assert not name.startswith(".")
        (folder / name).unlink()

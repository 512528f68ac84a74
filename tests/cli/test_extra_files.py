"""Files beside model and report on the command line: with and without a service, kept, fetched later."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import NOWHERE, ROOT
from tests.cli.extra_engine import FILES, fill
from tests.worker.running import Service
from worker.quantizer import pipeline

# Every engine that a service starts with this in its path.
ENGINE = """
import os, sys
hidden = os.path.dirname(__file__)
if "worker" in sys.orig_argv:
    import worker.sandbox as sandbox
    environment = sandbox.Sandbox.environment
    def patched(self, scratch, **how):
        found = environment(self, scratch, **how)
        return {**found, "PYTHONPATH": hidden + os.pathsep + found["PYTHONPATH"]}
    sandbox.Sandbox.environment = patched
if "worker.runner" in sys.orig_argv:
    from tests.cli.extra_engine import fill, pipeline
    pipeline._fill = fill
"""


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
    first = quantmill(*common, *folders)
    assert first.returncode == 0, first.stderr
    assert "kept: [None, None]" in first.stderr
    assert all(kind in first.stderr for kind in FILES), "nobody said where to put them"
    assert "--extra-dir" in first.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "q.onnx", "quick.json"]
    second = quantmill(*common, *folders, "--extra-dir", "new/extra")
    assert second.returncode == 0, second.stderr
    assert "kept: [b'cached', b'finished']" in second.stderr
    assert contents(tmp_path / "new" / "extra") == {name: name for name in FILES.values()}
    for name in FILES.values():
        assert f"file      new/extra/{name}" in second.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "new", "q.onnx", "quick.json"]


def test_an_input_is_never_written_over_and_nothing_is_kept_unasked(quantmill, common, tiny, monkeypatch):
    monkeypatch.setattr(pipeline, "_fill", fill)
    before, folder = tiny.model.read_bytes(), tiny.model.parent
    there = {path.name for path in folder.iterdir()}
    done = quantmill(*common, "--extra-dir", folder)
    assert done.returncode == 1
    assert "error[file-access]" in done.stderr
    assert "--extra-dir" in done.stderr
    assert "kept: [None, None]" in done.stderr
    assert tiny.model.read_bytes() == before
    for name in {path.name for path in folder.iterdir()} - there:
        assert not name.startswith(".")
        (folder / name).unlink()


@pytest.mark.slow
@pytest.mark.long
def test_a_service_keeps_them_with_the_job_and_sends_them_on_demand(quantmill, common, tmp_path_factory, tmp_path):
    hidden = tmp_path_factory.mktemp("engine")
    (hidden / "sitecustomize.py").write_text(ENGINE)
    # the engine that is hidden in another folder is none that a sandbox lets in
    variables = {"PYTHONPATH": f"{hidden}:{ROOT}", "QUANTMILL_SANDBOX": "off"}
    with Service(tmp_path_factory.mktemp("extra") / "home", **variables) as service:
        place = ("--server", service.url)
        done = quantmill(*common, *place, "--extra-dir", "now")
        assert done.returncode == 0, done.stderr
        assert contents(tmp_path / "now") == {name: name for name in FILES.values()}
        assert "file      now/table.csv" in done.stdout
        (job_id,) = re.findall(r"job (job_\w+)", done.stderr)
        shown = quantmill("jobs", "show", job_id, *place).stdout
        for kind, name in FILES.items():
            told = rf"^artifact +art_\w+  {kind}: {re.escape(name)}, {len(name)} bytes$"
            assert re.search(told, shown, re.MULTILINE)
        later = quantmill("jobs", "follow", job_id, *place, "--extra-dir", "later")
        assert later.returncode == 0, later.stderr
        assert contents(tmp_path / "later") == contents(tmp_path / "now")
        # a service keeps a cache by itself, and no job's checkpoints beyond its end
        assert "kept: [None, None]" in done.stderr
        again = quantmill(*common, *place)
        assert "kept: [b'cached', None]" in again.stderr
        assert all(kind in again.stderr for kind in FILES), "nobody said where to put them"
        assert [path.name for path in (service.folder / "scratch").iterdir()] == []


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (("--cache-dir", "folder", "--server", NOWHERE), "--cache-dir"),
        (("--checkpoint-dir", "folder", "--server", NOWHERE), "--checkpoint-dir"),
        (("--extra-dir", "quick.json"), "quick.json"),
        (("--cache-dir", "quick.json"), "quick.json"),
        (("--checkpoint-dir", "quick.json"), "quick.json"),
    ],
)
def test_folders_of_this_host_are_nothing_to_a_service_and_no_files(quantmill, common, options, told):
    done = quantmill(*common, *options)
    assert done.returncode == 2
    assert told in done.stderr

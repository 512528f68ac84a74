"""Files beside model and report on the command line: with and without a service, kept, fetched later."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.conftest import ROOT
from tests.worker.running import Service

# Every engine that starts with this in its path gives three files more, uses its cache and its checkpoints.
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
if "worker.runner" in sys.orig_argv or "quantize" in sys.orig_argv and "--server" not in sys.orig_argv:
    from worker.quantizer import pipeline
    from worker.quantizer.run.extra import ExtraFile
    original = pipeline._fill
    def fill(model, origin, case, services):
        for kind, name in (("table_csv", "table.csv"), ("pareto_1_model", "pareto-1.onnx"), ("as_input", "net.onnx")):
            services.files.add(ExtraFile(kind, name, "application/octet-stream", name.encode()))
        kept = [services.checkpoint.find("a" * 64), services.checkpoint.load("layer")]
        services.checkpoint.keep("a" * 64, b"cached")
        services.checkpoint.save("layer", b"finished")
        services.run.log("kept: %r" % kept)
        return original(model, origin, case, services)
    pipeline._fill = fill
"""
FILES = ["net.onnx", "pareto-1.onnx", "table.csv"]
KINDS = ("table_csv", "pareto_1_model", "as_input")
QUICK_CONFIG = json.dumps({"evaluation": {"latency_runs": 1, "layer_samples": 1}})


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> str:
    """PYTHONPATH with the patched engine."""
    folder = tmp_path_factory.mktemp("engine")
    (folder / "sitecustomize.py").write_text(ENGINE)
    return f"{folder}:{ROOT}"


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory, engine: str) -> Iterator[Service]:
    # the engine that is hidden in another folder is none that a sandbox lets in
    with Service(tmp_path_factory.mktemp("extra") / "home", PYTHONPATH=engine, QUANTMILL_SANDBOX="off") as running:
        yield running


@pytest.fixture
def common(tiny, tmp_path) -> list[object]:
    (tmp_path / "quick.json").write_text(QUICK_CONFIG)
    return ["quantize", tiny.model, "--calibration", tiny.calibration, "--config", "quick.json", "--output", "q.onnx"]


def contents(folder: Path) -> dict[str, bytes]:
    """By name; without the samples and the graph that every run tells of."""
    own = ("samples.npz", "graph.json")
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name not in own}


def test_a_run_in_this_process_writes_them_and_finds_what_an_earlier_one_kept(quantmill, common, engine, tmp_path):
    folders = ("--cache-dir", "kept/cache", "--checkpoint-dir", "kept/checkpoints")
    first = quantmill(*common, *folders, PYTHONPATH=engine)
    assert first.returncode == 0, first.stderr
    assert "kept: [None, None]" in first.stderr
    assert ", ".join(KINDS) in first.stderr, "nobody said where to put them"
    assert "--extra-dir" in first.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "q.onnx", "quick.json"]
    second = quantmill(*common, *folders, "--extra-dir", "new/extra", PYTHONPATH=engine)
    assert second.returncode == 0, second.stderr
    assert "kept: [b'cached', b'finished']" in second.stderr
    assert contents(tmp_path / "new" / "extra") == {name: name.encode() for name in FILES}
    for name in FILES:
        assert f"file      new/extra/{name}" in second.stdout
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "new", "q.onnx", "quick.json"]


def test_an_input_is_never_written_over_and_nothing_is_kept_unasked(quantmill, common, engine, tiny):
    before = tiny.model.read_bytes()
    folder = tiny.model.parent
    done = quantmill(*common, "--extra-dir", folder, PYTHONPATH=engine)
    assert done.returncode == 1
    assert "error[file-access]" in done.stderr
    assert "--extra-dir" in done.stderr
    assert "kept: [None, None]" in done.stderr
    assert tiny.model.read_bytes() == before
    for name in ("table.csv", "pareto-1.onnx"):
        (folder / name).unlink()
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]


def test_a_service_keeps_them_with_the_job_and_sends_them_on_demand(quantmill, common, service, tmp_path):
    done = quantmill(*common, "--server", service.url, "--extra-dir", "now")
    assert done.returncode == 0, done.stderr
    assert contents(tmp_path / "now") == {name: name.encode() for name in FILES}
    assert "file      now/table.csv" in done.stdout
    job_id = re.findall(r"job (job_\w+)", done.stderr)[0]
    shown = quantmill("jobs", "show", job_id, "--server", service.url)
    for kind, name in zip(KINDS, ("table.csv", "pareto-1.onnx", "net.onnx"), strict=True):
        assert re.search(
            rf"^artifact +art_\w+  {kind}: {re.escape(name)}, {len(name)} bytes$", shown.stdout, re.MULTILINE
        )
    later = quantmill("jobs", "follow", job_id, "--server", service.url, "--extra-dir", "later")
    assert later.returncode == 0, later.stderr
    assert contents(tmp_path / "later") == contents(tmp_path / "now")
    # a service keeps a cache by itself, and no job's checkpoints beyond its end
    assert "kept: [None, None]" in done.stderr
    again = quantmill(*common, "--server", service.url)
    assert "kept: [b'cached', None]" in again.stderr
    assert all(kind in again.stderr for kind in KINDS), "nobody said where to put them"
    assert [path.name for path in (service.folder / "scratch").iterdir()] == []


@pytest.mark.parametrize("option", ["--cache-dir", "--checkpoint-dir"])
def test_folders_of_this_host_are_nothing_to_a_service(quantmill, common, option):
    done = quantmill(*common, "--server", "http://127.0.0.1:1", option, "folder")
    assert done.returncode == 2
    assert option in done.stderr


@pytest.mark.parametrize("option", ["--extra-dir", "--cache-dir", "--checkpoint-dir"])
def test_a_file_is_no_folder(quantmill, common, option):
    done = quantmill(*common, option, "quick.json")
    assert done.returncode == 2
    assert "quick.json" in done.stderr

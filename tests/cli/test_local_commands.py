"""quantize and evaluate in the calling process: results, and what a user sees when something is wrong."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace

import numpy as np
import onnx
import pytest

from service.contracts.report import Report
from service.settings import Settings
from tests.cli.conftest import ROOT
from tests.support.tiny import make_model
from worker.commands import doctor


@pytest.fixture
def quantize(quantmill, tiny):
    """Runs ``quantmill quantize`` on the tiny model and its calibration data."""

    def run(*options, output="q.onnx", code=0):
        given = ("--calibration", tiny.calibration, "--output", output, *options)
        return quantmill("quantize", tiny.model, *given, code=code)

    return run


@pytest.mark.slow
def test_quantize_writes_a_model_and_a_report_and_the_same_input_gives_the_same_bytes(
    quantize, quantmill_process, tiny, tmp_path
):
    options = ("--evaluation", tiny.evaluation, "--report", "r.json")
    done = quantmill_process(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx", *options, code=0,
    )  # fmt: skip
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"))
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert report.manifest.output_sha256 == hashlib.sha256((tmp_path / "q.onnx").read_bytes()).hexdigest()
    assert "top1" in report.quantized.metrics
    assert f"{report.quantized.metrics['top1']:.2f}" in done.stdout
    for word in ("Succeeded, no gate: ", "size", "latency", "look at", "q.onnx", "r.json"):
        assert word in done.stdout
    for stage in ("load", "statistics", "evaluation"):
        assert stage in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.onnx", "r.json"]
    quantize(*options, output="again.onnx")
    assert (tmp_path / "q.onnx").read_bytes() == (tmp_path / "again.onnx").read_bytes()


def test_preprocessing_as_text_and_as_file_give_the_same(quantmill, tiny, tmp_path):
    images = np.random.default_rng(2).integers(0, 256, (16, 8, 8, 3)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", x=images)
    spec = json.dumps({"inputs": {"x": {"layout": "NHWC", "scale": 1 / 255, "mean": [0.5], "std": [0.25]}}})
    (tmp_path / "spec.json").write_text(spec)
    for name, given in (("a.onnx", spec), ("b.onnx", "spec.json")):
        quantmill(
            "quantize", tiny.model, "--calibration", "images.npz", "--preprocessing", given, "--output", name, code=0
        )
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


@pytest.mark.slow
def test_evaluate_prints_json_alone_on_standard_output(quantmill_process, tiny):
    done = quantmill_process("evaluate", tiny.model, "--evaluation", tiny.evaluation, "--reference", tiny.model, code=0)
    result = json.loads(done.stdout)
    assert result["samples"] == 40
    assert result["fidelity"]["top1_agreement"] == 100.0
    assert result["model"]["metrics"] == result["reference"]["metrics"]
    assert "baseline" in done.stderr


@pytest.mark.parametrize(
    ("config", "options", "words"),
    [
        ({"activaton": {}}, (), ["error[invalid-config]", "/activaton", "activation"]),
        (None, ("--preset", "int9"), ["error[invalid-config]", "int9", "int8"]),
        (None, ("--preprocessing", '{"inputs": {"x": {"std": [0]}}}'), ["error[invalid-request]", "std"]),
        (None, ("--preprocessing", "none.json"), ["error[file-access]: none.json: No such file"]),
        (None, ("--preprocessing", "cifar1"), ["error[invalid-request]", "did you mean 'cifar10'?"]),
        ({"exclude": [{"node": "nope"}]}, (), ["error[", "nope"]),
    ],
)
def test_typed_errors_are_told_in_words(quantize, tmp_path, config, options, words):
    if config is not None:
        (tmp_path / "config.json").write_text(json.dumps(config))
        options = ("--config", "config.json")
    done = quantize(*options, code=1)
    assert all(word in done.stderr for word in words), done.stderr
    assert not (tmp_path / "q.onnx").exists()


def test_broken_models_and_data_leave_no_output(quantmill, tiny, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(tiny.model.read_bytes()[:200])
    np.savez(tmp_path / "c.npz", x=np.ones((4, 3, 9, 9), np.float32))
    broken = ("quantize", "broken.onnx", "--calibration", tiny.calibration, "--output", "q.onnx")
    other = ("quantize", tiny.model, "--calibration", "c.npz", "--output", "q.onnx")
    for command, words in ((broken, ["error[not-onnx]"]), (other, ["error[dataset-mismatch]", "'x'"])):
        done = quantmill(*command, code=1)
        assert all(word in done.stderr for word in words), done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["broken.onnx", "c.npz"]


def hidden(folder, code):
    """PYTHONPATH under which every process runs ``code`` first."""
    (folder / "hidden").mkdir()
    (folder / "hidden" / "sitecustomize.py").write_text(code)
    return f"{folder / 'hidden'}:{ROOT}"


@pytest.mark.slow
def test_without_the_engine_the_error_says_how_to_get_it(quantmill_process, tiny, tmp_path):
    """As where only the API server is installed."""
    path = hidden(tmp_path, "import sys; sys.modules['onnx'] = None\n")
    quantize = ("quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx")
    done = quantmill_process(*quantize, PYTHONPATH=path, code=1)
    assert "error[engine-missing]: onnx" in done.stderr
    assert "quantmill[worker]" in done.stderr


@pytest.mark.slow
@pytest.mark.long
def test_too_little_memory_is_a_resource_limit(quantmill_process, tiny, tmp_path):
    path = hidden(tmp_path, "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n")
    np.savez(tmp_path / "big.npz", x=np.zeros((1 << 10, 3, 8, 8), np.float32))
    make_model(tmp_path / "wide.onnx", channels=1 << 20)
    quantize = ("quantize", "wide.onnx", "--calibration", "big.npz", "--output", "q.onnx")
    done = quantmill_process(*quantize, PYTHONPATH=path, code=1)
    assert "error[resource-limit]" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "quantize",
        "quantize missing.onnx --calibration c.npz --output q.onnx",
        "quantize {model} --calibration {data} --output nowhere/q.onnx",
        "quantize {model} --calibration {data} --output .",
        "quantize {model} --calibration {data} --output q --preset int8 --config {data}",
        "quantize {model} --calibration {data} --output q --server http://x --threads 1",
        "quantize {model} --calibration {data} --output q --threads 0",
        "quantize {model} --calibration {data} --output q --priority 1",
        "quantize {model} --calibration {data} --output q --device cpu",
        "quantize {model} --calibration {data} --output q --cache-dir {data}",
        "quantize {model} --calibration {data} --output q --checkpoint-dir {data}",
        "quantize {model} --calibration {data} --output q --html q",
        "quantize {model} --calibration {data} --output q --report q",
        "quantize {model} --calibration {data} --output {model}",
        "no-such-command",
        "up --port 70000",
    ],
)
def test_usage_errors_exit_with_2(quantmill, tiny, command, tmp_path):
    before = tiny.model.read_bytes()
    quantmill(*(word.format(model=tiny.model, data=tiny.calibration) for word in command.split()), code=2)
    assert not list(tmp_path.iterdir())
    assert tiny.model.read_bytes() == before


def test_a_bad_setting_is_named(quantmill):
    done = quantmill("reconcile", "--once", QUANTMILL_WORKER_SLOTS="many", code=1)
    assert "error[invalid-settings]" in done.stderr
    assert "QUANTMILL_WORKER_SLOTS" in done.stderr


@pytest.mark.slow
def test_doctor_finds_a_fresh_folder_in_order_and_says_what_is_wrong(quantmill):
    done = quantmill("doctor", "--data-dir", "home", code=0)
    for word in ("python", "storage", "database", "broker", "onnxruntime", "cpu", "runner"):
        assert word in done.stdout
    assert "BAD" not in done.stdout
    done = quantmill(
        "doctor", "--no-engine",
        QUANTMILL_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none", QUANTMILL_BROKER_URL="redis://127.0.0.1:1/0",
        QUANTMILL_STORAGE_DIR="/proc/nowhere", code=1,
    )  # fmt: skip
    assert done.stdout.count("BAD") == 3
    assert "onnxruntime" not in done.stdout


@pytest.mark.parametrize(("flags", "slow"), [("avx2 fma avx_vnni", False), ("asimddp", False), ("sse4_2 avx2", True)])
def test_doctor_says_where_products_of_eight_bits_are_slow(monkeypatch, flags, slow):
    path = SimpleNamespace(exists=lambda: True, read_text=lambda: f"flags: {flags}")
    monkeypatch.setattr(doctor, "Path", lambda _: path)
    (finding,) = doctor._cpu(Settings())
    assert ("no int8 dot products" in finding.detail) == slow


def test_without_data_random_inputs_have_to_be_asked_for(quantmill, tiny, tmp_path):
    done = quantmill("quantize", tiny.model, "--output", "q.onnx", code=1)
    assert "error[calibration-missing]" in done.stderr
    assert "random_calibration" in done.stderr
    assert not (tmp_path / "q.onnx").exists()
    (tmp_path / "config.json").write_text(json.dumps({"random_calibration": {"samples": 2}}))
    options = ("--config", "config.json", "--output", "q.onnx", "--report", "r.json")
    done = quantmill("quantize", tiny.model, *options, code=0)
    assert "not measured: random data shows nothing about accuracy" in done.stdout
    assert Report.model_validate_json((tmp_path / "r.json").read_text()).fidelity.source == "random"
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"))

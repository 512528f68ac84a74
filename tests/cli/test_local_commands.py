"""quantize and evaluate in the calling process: results, and what a user sees when something is wrong."""

from __future__ import annotations

import hashlib
import json

import numpy as np
import onnx
import pytest

from service.contracts.report import Report
from service.contracts.version import VERSION
from tests.cli.conftest import ROOT
from tests.support.provenance import without_provenance
from tests.support.tiny import make_model, make_nothing_to_quantize


def test_quantize_writes_a_model_and_a_report(quantmill_process, tiny, tmp_path):
    done = quantmill_process(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--evaluation", tiny.evaluation,
        "--output", "q.onnx", "--report", "r.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"))
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert report.manifest.output_sha256 == hashlib.sha256((tmp_path / "q.onnx").read_bytes()).hexdigest()
    assert "top1" in report.quantized.metrics
    assert f"{report.quantized.metrics['top1']:.2f}" in done.stdout
    for word in ("SQNR", "smaller", "latency", "verdict", "Worst", "q.onnx", "r.json"):
        assert word in done.stdout
    for stage in ("load", "statistics", "evaluation"):
        assert stage in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["q.onnx", "r.json"]


def test_the_same_input_gives_the_same_bytes(quantmill, quantmill_process, tiny, tmp_path):
    for run, name in ((quantmill, "a.onnx"), (quantmill_process, "b.onnx")):
        done = run("quantize", tiny.model, "--calibration", tiny.calibration, "--output", name)
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_a_config_file_and_its_gate_decide_the_verdict(quantmill, tiny, tmp_path):
    config = {"preset": "int8_per_tensor", "evaluation": {"gate": {"metric": "top1_agreement", "min_sqnr_db": 500}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = quantmill(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--config", "config.json", "--output", "q.onnx",
        "--report", "r.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert report.verdict == "fail"
    assert report.manifest.config.weight.granularity == "per_tensor"
    assert "BROKEN" in done.stdout


def test_a_model_with_external_data(quantmill, tiny, tmp_path):
    make_model(tmp_path / "net.onnx", external="weights.bin")
    done = quantmill("quantize", "net.onnx", "--calibration", tiny.calibration, "--output", "q.onnx")
    assert done.returncode == 0, done.stderr
    inline = quantmill("quantize", tiny.model, "--calibration", tiny.calibration, "--output", "p.onnx")
    assert inline.returncode == 0
    made = [without_provenance((tmp_path / name).read_bytes()) for name in ("q.onnx", "p.onnx")]
    assert made[0] == made[1]


def test_preprocessing_as_text_and_as_file_give_the_same(quantmill, tiny, tmp_path):
    images = np.random.default_rng(2).integers(0, 256, (16, 8, 8, 3)).astype(np.uint8)
    np.savez(tmp_path / "images.npz", x=images)
    spec = json.dumps({"inputs": {"x": {"layout": "NHWC", "scale": 1 / 255, "mean": [0.5], "std": [0.25]}}})
    (tmp_path / "spec.json").write_text(spec)
    for name, given in (("a.onnx", spec), ("b.onnx", "spec.json")):
        done = quantmill(
            "quantize", tiny.model, "--calibration", "images.npz", "--preprocessing", given, "--output", name
        )
        assert done.returncode == 0, done.stderr
    assert (tmp_path / "a.onnx").read_bytes() == (tmp_path / "b.onnx").read_bytes()


def test_nothing_to_quantize_succeeds_and_says_so(quantmill, tmp_path):
    make_nothing_to_quantize(tmp_path / "n.onnx")
    np.savez(tmp_path / "c.npz", x=np.ones((4, 4), np.float32))
    done = quantmill("quantize", "n.onnx", "--calibration", "c.npz", "--output", "q.onnx", "--report", "r.json")
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json((tmp_path / "r.json").read_text())
    assert "othing" in report.summary + " ".join(report.notes)
    assert "left in float" in done.stdout


def test_evaluate_prints_json_alone_on_standard_output(quantmill_process, tiny):
    done = quantmill_process("evaluate", tiny.model, "--evaluation", tiny.evaluation, "--reference", tiny.model)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["samples"] == 40
    assert result["fidelity"]["top1_agreement"] == 100.0
    assert result["model"]["metrics"] == result["reference"]["metrics"]
    assert "reference" in done.stderr


ERRORS = {
    "unknown key": (["--config", "{config}"], {"activaton": {}}, "invalid-config", ["/activaton", "activation"]),
    "unknown preset": (["--preset", "int9"], None, "invalid-config", ["int9", "int8"]),
    "bad preprocessing": (["--preprocessing", '{"inputs": {"x": {"std": [0]}}}'], None, "invalid-request", ["std"]),
    "unknown node": (["--config", "{config}"], {"exclude": [{"node": "nope"}]}, "", ["nope"]),
}


@pytest.mark.parametrize("name", ERRORS)
def test_typed_errors_are_told_in_words(quantmill, tiny, tmp_path, name):
    options, config, code, words = ERRORS[name]
    (tmp_path / "config.json").write_text(json.dumps(config))
    options = [option.replace("{config}", "config.json") for option in options]
    done = quantmill("quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx", *options)
    assert done.returncode == 1
    assert f"error[{code}" in done.stderr
    assert all(word in done.stderr for word in words), done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "q.onnx").exists()


def test_a_broken_model_leaves_no_output(quantmill_process, tiny, tmp_path):
    (tmp_path / "broken.onnx").write_bytes(tiny.model.read_bytes()[:200])
    done = quantmill_process("quantize", "broken.onnx", "--calibration", tiny.calibration, "--output", "q.onnx")
    assert done.returncode == 1
    assert "error[" in done.stderr
    assert "Traceback" not in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["broken.onnx"]


def test_data_that_does_not_fit_names_the_input(quantmill, tiny, tmp_path):
    np.savez(tmp_path / "c.npz", x=np.ones((4, 3, 9, 9), np.float32))
    done = quantmill("quantize", tiny.model, "--calibration", "c.npz", "--output", "q.onnx")
    assert done.returncode == 1
    assert "error[dataset-mismatch]" in done.stderr
    assert "'x'" in done.stderr


def test_a_config_that_is_no_json(quantmill, tiny, tmp_path):
    (tmp_path / "config.json").write_text("preset: int8")
    done = quantmill(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--config", "config.json", "--output", "q.onnx"
    )
    assert done.returncode == 1
    assert "not a JSON document" in done.stderr


def test_a_file_that_cannot_be_read_is_named(quantmill, tiny):
    done = quantmill(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx", "--preprocessing", "none.json"
    )
    assert done.returncode == 1
    assert "error[file-access]: none.json: No such file" in done.stderr
    assert "Traceback" not in done.stderr


def test_without_the_engine_the_error_says_how_to_get_it(quantmill_process, tiny, tmp_path):
    """As where only the front desk is installed."""
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text("import sys; sys.modules['onnx'] = None\n")
    done = quantmill_process(
        "quantize", tiny.model, "--calibration", tiny.calibration, "--output", "q.onnx",
        PYTHONPATH=f"{tmp_path / 'hidden'}:{ROOT}",
    )  # fmt: skip
    assert done.returncode == 1
    assert "error[engine-missing]: onnx" in done.stderr
    assert "quantmill[worker]" in done.stderr
    assert "Traceback" not in done.stderr


def test_too_little_memory_is_a_resource_limit(quantmill_process, tiny, tmp_path):
    (tmp_path / "hidden").mkdir()
    (tmp_path / "hidden" / "sitecustomize.py").write_text(
        "import resource; resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))\n"
    )
    np.savez(tmp_path / "big.npz", x=np.zeros((1 << 10, 3, 8, 8), np.float32))
    make_model(tmp_path / "wide.onnx", channels=1 << 20)
    done = quantmill_process(
        "quantize", "wide.onnx", "--calibration", "big.npz", "--output", "q.onnx",
        PYTHONPATH=f"{tmp_path / 'hidden'}:{ROOT}",
    )  # fmt: skip
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "error[resource-limit]" in done.stderr, done.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ["quantize"],
        ["quantize", "missing.onnx", "--calibration", "c.npz", "--output", "q.onnx"],
        ["quantize", "{model}", "--calibration", "{data}", "--output", "nowhere/q.onnx"],
        ["quantize", "{model}", "--calibration", "{data}", "--output", "."],
        ["quantize", "{model}", "--calibration", "{data}", "--output", "q", "--preset", "int8", "--config", "{data}"],
        ["quantize", "{model}", "--calibration", "{data}", "--output", "q", "--server", "http://x", "--threads", "1"],
        ["quantize", "{model}", "--calibration", "{data}", "--output", "q", "--threads", "0"],
        ["no-such-command"],
        ["up", "--port", "70000"],
    ],
)
def test_usage_errors_exit_with_2(quantmill, tiny, arguments):
    done = quantmill(*(word.format(model=tiny.model, data=tiny.calibration) for word in arguments))
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr


def test_a_bad_setting_is_named(quantmill, tiny):
    done = quantmill("reconcile", "--once", QUANTMILL_WORKER_SLOTS="many")
    assert done.returncode == 1
    assert "error[invalid-settings]" in done.stderr
    assert "QUANTMILL_WORKER_SLOTS" in done.stderr


def test_version(quantmill):
    assert quantmill("version").stdout.strip() == VERSION


def test_doctor_finds_a_fresh_folder_in_order(quantmill, tmp_path):
    done = quantmill("doctor", "--data-dir", "home")
    assert done.returncode == 0, done.stdout + done.stderr
    for word in ("python", "storage", "database", "broker", "onnxruntime", "cpu", "runner"):
        assert word in done.stdout
    assert "BAD" not in done.stdout


def test_doctor_says_what_is_wrong(quantmill, tmp_path):
    done = quantmill(
        "doctor", "--no-engine",
        QUANTMILL_DATABASE_URL="postgresql://nobody@127.0.0.1:1/none", QUANTMILL_BROKER_URL="redis://127.0.0.1:1/0",
        QUANTMILL_STORAGE_DIR="/proc/nowhere",
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stdout.count("BAD") == 3
    assert "onnxruntime" not in done.stdout
    assert "Traceback" not in done.stderr


def test_help_is_quick_and_loads_no_engine(quantmill_process):
    done = quantmill_process("--help", PYTHONPROFILEIMPORTTIME="1")
    assert done.returncode == 0
    assert not any(f" {name}\n" in done.stderr for name in ("torch", "onnxruntime", "onnx", "fastapi", "celery"))


def test_without_data_random_inputs_have_to_be_asked_for(quantmill, tiny, tmp_path):
    done = quantmill("quantize", tiny.model, "--output", "q.onnx")
    assert done.returncode == 1
    assert "calibration-missing" in done.stderr
    assert "random_calibration" in done.stderr
    assert not (tmp_path / "q.onnx").exists()
    (tmp_path / "config.json").write_text(json.dumps({"random_calibration": {"samples": 2}}))
    options = ("--config", "config.json", "--output", "q.onnx", "--report", "r.json")
    done = quantmill("quantize", tiny.model, *options)
    assert done.returncode == 0, done.stderr
    assert "RANDOM DATA, NO ACCURACY" in done.stdout
    assert Report.model_validate_json((tmp_path / "r.json").read_text()).fidelity.source == "random"
    onnx.checker.check_model(onnx.load(tmp_path / "q.onnx"))

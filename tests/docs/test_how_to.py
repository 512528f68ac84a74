"""The how-to guides do what they say: on the real models that they are about, or on a small one where any will do."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.docs.blocks import HOW_TO, ROOT, check_quantized, fenced, run_block
from tests.support import services
from tests.support.data import required_data_dir, requires_data

pytestmark = [pytest.mark.slow, pytest.mark.long]

# What needs a cluster is not run; tests/worker/test_chart.py judges the chart.
NOT_RUN = {"kubernetes"}
SHELL = {"mobilenet-npu", "transformer", "language-model", "from-quark", "from-vitis-ai", "own-metric"}


@pytest.fixture(autouse=True)
def _tools() -> None:
    services.require(services.tools_trouble())


def run_page(name: str, folder: Path) -> None:
    """The blocks of a page, one after the other: together some take longer than a busy machine gives a block."""
    for block in fenced(ROOT / "docs" / "how-to" / f"{name}.md", "bash"):
        done = run_block(f"set -euo pipefail\n{block}", folder)
        assert done.returncode == 0, done.stdout[-2000:] + done.stderr


def quantized(path: Path, metric: str) -> float:
    """A metric of the quantized model, by a report."""
    report: dict[str, Any] = json.loads(path.read_text())
    return float(report["quantized"]["metrics"][metric])


def test_every_page_is_run() -> None:
    by_language = {kind: {page.stem for page in HOW_TO if fenced(page, kind)} for kind in ("bash", "python")}
    assert by_language == {"bash": SHELL, "python": {"pytorch"}}
    assert {page.stem for page in HOW_TO} == {*SHELL, "pytorch", *NOT_RUN}


@requires_data
def test_a_mobilenet_that_collapsed_is_repaired(folder: Path) -> None:
    data = required_data_dir() / "imagenet"
    shutil.copy(data / "mobilenet_v1_0.75_224.onnx", folder / "mobilenet.onnx")
    shutil.copy(data / "calibration.npz", folder)
    with np.load(data / "evaluation.npz") as stored:  # every other image: the difference that is looked for is large
        np.savez(folder / "evaluation.npz", **{name: array[::2] for name, array in stored.items()})
    run_page("mobilenet-npu", folder)
    assert quantized(folder / "collapsed.json", "top1") < 10
    assert quantized(folder / "repaired-report.json", "top1") > 80
    assert json.loads((folder / "accurate-report.json").read_text())["verdict"] == "pass"


@requires_data
def test_a_transformer_keeps_its_accuracy_at_int8(folder: Path) -> None:
    data = required_data_dir() / "speech"
    shutil.copy(data / "kwt1.onnx", folder / "transformer.onnx")
    for name in ("calibration", "evaluation"):
        with np.load(data / f"kwt1_{name}.npz") as stored:
            np.savez(folder / f"{name}.npz", input=stored["inputs"], labels=stored["labels"])
    run_page("transformer", folder)
    assert quantized(folder / "dynamic.json", "top1") > 96.5
    assert json.loads((folder / "static-report.json").read_text())["verdict"] == "pass"


@requires_data
def test_a_language_model_at_4_bits(folder: Path) -> None:
    data = required_data_dir() / "text"
    shutil.copy(data / "stories260K.onnx", folder / "language-model.onnx")
    for name, stored in (("calibration", "stories_c"), ("evaluation", "stories_e")):
        shutil.copy(data / f"{stored}.npz", folder / f"{name}.npz")
    run_page("language-model", folder)
    assert 3.6 < quantized(folder / "plain-report.json", "perplexity") < 3.9
    assert json.loads((folder / "accurate-report.json").read_text())["verdict"] == "pass"


@pytest.mark.parametrize("name", ["from-quark", "own-metric"])
def test_a_page_about_any_model(name: str, folder: Path) -> None:
    run_page(name, folder)
    report = json.loads((folder / "report.json").read_text())
    assert report["verdict"] == "pass"
    if name == "own-metric":
        check_quantized(folder / "quantized.onnx", folder)
    else:
        assert json.loads((folder / "translated.json").read_text())["target"] == "amd_npu_cnn"


def test_a_script_for_vitis_ai(folder: Path) -> None:
    run_page("from-vitis-ai", folder)
    assert {path.name for path in (folder / "quantize_result").iterdir()} >= {"quant_info.json", "MobileNet_int.onnx"}


def test_a_module_and_two_loaders(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    (block,) = fenced(ROOT / "docs" / "how-to" / "pytorch.md", "python")
    names: dict[str, Any] = {}
    exec(compile(block, "pytorch.md", "exec"), names)
    assert capsys.readouterr().out.startswith("pass ")
    assert names["scores"].shape == (5, 10)

"""The examples of examples/torch, as a user runs them."""

from __future__ import annotations

import importlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import onnx
import onnxruntime
import pytest

from tests.support.patience import PATIENCE_SECONDS
from tests.support.source import ROOT

pytestmark = pytest.mark.slow  # starts processes, which train networks

EXAMPLES = ROOT / "examples" / "torch"


def on_one_core() -> None:
    cores = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, {cores[os.getpid() % len(cores)]})


def run(folder: Path, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / command[0]), *command[1:]],
        preexec_fn=on_one_core, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def top1(told: str) -> list[float]:
    return [float(number) for number in re.findall(r"([0-9.]+) %", told)]


def modules(node: onnx.NodeProto) -> str:
    """The module that a node stands in, the outermost."""
    scopes = {entry.key: entry.value for entry in node.metadata_props}.get("pkg.torch.onnx.name_scopes", "['', '']")
    return re.findall(r"'([^']*)'", scopes)[1]


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """The examples as modules of this process."""
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module


def test_partial_quantization_quantizes_what_the_stubs_enclose(
    tmp_path: Path, scripts: Callable[[str], ModuleType], capsys: pytest.CaptureFixture[str]
) -> None:
    scripts("partial_quantization").main(["--output_dir", str(tmp_path)])
    before, after = top1(capsys.readouterr().out)
    assert before > 96
    assert after > before - 1.5
    graph = onnx.load(tmp_path / "WholeModule_int.onnx").graph
    makers = {name: node for node in graph.node for name in node.output}
    weights = {tensor.name for tensor in graph.initializer}
    layers = [node for node in graph.node if node.op_type in ("Conv", "Gemm", "Add", "GlobalAveragePool")]
    assert {modules(node) for node in layers} == {"subm0", "subm1", "subm2"}
    for node in layers:
        read = [makers[name] for name in node.input if name in makers]
        dequantized = [maker.op_type == "DequantizeLinear" for maker in read]
        if modules(node) == "subm1":
            behind = [reader for reader in graph.node if node.output[0] in reader.input]
            is_last = node.op_type == "Add"
            assert [reader.op_type == "QuantizeLinear" for reader in behind] == [is_last]
            assert node.op_type != "Conv" or node.input[1] in weights
        else:
            assert all(dequantized)
            assert node.op_type == "Add" or len(read) == len(node.input) or node.op_type == "GlobalAveragePool"
    first = next(node for node in graph.node if "input" in node.input and node.op_type != "Shape")
    assert first.op_type == "QuantizeLinear"
    assert makers["output"].op_type == "DequantizeLinear"


def check_deployed(path: Path) -> None:
    model = onnx.load(path)
    onnx.checker.check_model(model)
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_value == 64
    layers = [node for node in model.graph.node if node.op_type in ("Conv", "Gemm")]
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    assert len(layers) == 8
    assert {makers[name] for node in layers for name in node.input} == {"DequantizeLinear"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the examples of one network find its parameters, once one has been run."""
    return tmp_path_factory.mktemp("digits")


@pytest.mark.long
def test_ptq_calibrates_tests_and_deploys(tmp_path: Path, trained: Path, scripts: Callable[[str], ModuleType]) -> None:
    ptq = scripts("ptq")
    options = ["--model_dir", str(trained), "--output_dir", str(tmp_path)]
    float_accuracy = ptq.main(["--quant_mode", "float", *options])
    ptq.main(["--quant_mode", "calib", *options])
    accuracy = ptq.main(["--quant_mode", "test", "--deploy", *options])
    assert float_accuracy > 0.96
    assert accuracy > float_accuracy - 0.015
    check_deployed(tmp_path / "MobileNet_int.onnx")


@pytest.mark.long
def test_fast_finetuning_calibrates_in_one_process_and_tests_in_another(tmp_path: Path, trained: Path) -> None:
    options = ["--fast_finetune", "--model_dir", str(trained)]
    run(tmp_path, "ptq.py", "--quant_mode", "calib", *options)
    told = run(tmp_path, "ptq.py", "--quant_mode", "test", "--deploy", *options)
    assert top1(told)[0] > 95
    assert json.loads((tmp_path / "quantize_result" / "quant_info.json").read_text())["fast_finetuned"]
    check_deployed(tmp_path / "quantize_result" / "MobileNet_int.onnx")


@pytest.mark.long
def test_quantization_aware_training_ends_in_the_accuracy_that_is_deployed(
    tmp_path: Path, scripts: Callable[[str], ModuleType]
) -> None:
    qat = scripts("qat")
    options = ["--model_dir", str(tmp_path), "--output_dir", str(tmp_path)]
    float_accuracy, trained_accuracy, deployed = qat.main(options)
    assert float_accuracy > 0.96
    assert trained_accuracy > float_accuracy - 0.01
    assert deployed == trained_accuracy
    written = tmp_path / "QatMobileNet_int.onnx"
    check_deployed(written)
    assert in_onnxruntime(tmp_path / "QatMobileNet_deployable.onnx") == trained_accuracy
    first = written.read_bytes()
    assert qat.main(["--mode", "deploy", *options])[2] == trained_accuracy
    assert written.read_bytes() == first


def in_onnxruntime(path: Path) -> float:
    """Share of the digits that no network has seen which the model at ``path`` recognizes."""
    digits = importlib.import_module("digits")
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (entry,) = session.get_inputs()
    right = sum(
        int((session.run(None, {entry.name: images.numpy()})[0].argmax(1) == labels.numpy()).sum())
        for images, labels in digits.load_data(train=False)
    )
    return right / 597

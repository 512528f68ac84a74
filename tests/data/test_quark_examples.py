"""The scripts of Quark's documentation, with the import changed, on a real network and real pictures."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import onnx
import pytest

from tests.support.data import DATA_MARKS, required_data_dir
from tests.support.source import ROOT

pytestmark = DATA_MARKS

EXAMPLES = ROOT / "examples" / "quark"
# Points of top-1 that may be lost on 200 pictures, of which one is half a point.
MAX_LOSS = {
    "int8_cle": 4.0, "xint8_adaround": 2.5, "auto_mixprecision": 3.0, "smooth_quant": 4.0, "qconfig_adaround": 2.0,
}  # fmt: skip


@pytest.fixture(autouse=True)
def examples(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    yield
    for name in ("common", *MAX_LOSS):
        sys.modules.pop(name, None)


@pytest.mark.long
@pytest.mark.parametrize("name", MAX_LOSS)
def test_accuracy_is_kept(name: str, tmp_path: Path) -> None:
    data, output = required_data_dir() / "cifar10", tmp_path / "quantized.onnx"
    sizes = ["--calibration_samples", "32", "--evaluation_samples", "200"]
    found = importlib.import_module(name).main([str(data), "--model_output", str(output), *sizes])
    assert found["float"] > 75.0
    assert found["float"] - found["quantized"] <= MAX_LOSS[name]
    types = {node.op_type for node in onnx.load(output).graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= types

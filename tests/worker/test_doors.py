"""The doors of other libraries on services: the same bytes as in this process, and nobody's functions."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from quantmill import quark
from quantmill.torch import Quantized, quantize
from service.client import ApiError, Client
from tests.support.torch_networks import batches, images, made
from tests.unit.quantizer.toolbox import data, network

pytestmark = [pytest.mark.slow, pytest.mark.long]  # starts processes

SAMPLES = images(12, 32)
RANDOM = {"UseRandomData": True, "RandomDataReaderInputDataRange": {"x": [-1, 1]}}
MIXING = {"ActTargetQuantType": quark.QuantType.QInt8, "Top1AccTarget": 0.1, "EvaluateFunction": lambda outputs: 1.0}


class Reader(quark.CalibrationDataReader):
    def __init__(self) -> None:
        self.images = iter(data(8)["x"])

    def get_next(self) -> dict[str, Any] | None:
        image = next(self.images, None)
        return None if image is None else {"x": image[None]}


def by_quark(client: Client | None, reader: Any, **options: Any) -> bytes:
    config = quark.QuantizationConfig(activation_type=quark.QuantType.QUInt8, extra_options=options)
    quantizer = quark.ModelQuantizer(config, client=client, threads=1)
    model = quantizer.quantize_model(network(), None, reader)
    assert model is not None and quantizer.report is not None
    assert quantizer.report.notes[0].startswith("RANDOM DATA") == (reader is None)
    return bytes(model.SerializeToString(deterministic=True))


def test_quarks_names_give_the_same_bytes_here_and_there(embedded):
    assert by_quark(embedded.client, Reader()) == by_quark(None, Reader())
    assert by_quark(embedded.client, None, **RANDOM) == by_quark(None, None, **RANDOM)
    mixed = quark.QuantizationConfig(
        activation_type=quark.VitisQuantType.QInt16, include_auto_mp=True, extra_options={"AutoMixprecision": MIXING}
    )
    with pytest.raises(ApiError) as caught:
        quark.ModelQuantizer(mixed, client=embedded.client).quantize_model(network(), None, Reader())
    assert "ONNX graph" in (caught.value.hint or "")


def by_torch(output: Path, client: Client | None = None) -> Quantized:
    module = made(lambda: nn.Sequential(nn.Flatten(), nn.Linear(3 * 32 * 32, 5)))
    config = {"preset": "int8", "evaluation": {"latency_runs": 1}}
    result = quantize(module, SAMPLES[:1], batches(SAMPLES, 4), config, client=client, output=output, threads=1)
    assert hashlib.sha256(output.read_bytes()).hexdigest() == result.report.manifest.output_sha256
    return result


@pytest.mark.parametrize("where", ["embedded", pytest.param("deployed", marks=pytest.mark.postgres)])
def test_a_module_gives_the_same_bytes_here_and_on_a_service(request, tmp_path, where):
    here = by_torch(tmp_path / "here.onnx")
    there = by_torch(tmp_path / "there.onnx", request.getfixturevalue(where).client)
    assert here.report.manifest.output_sha256 == there.report.manifest.output_sha256
    assert here.report.fidelity == there.report.fidelity
    assert there.load()(SAMPLES[:2]).equal(here.load()(SAMPLES[:2]))

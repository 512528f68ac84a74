"""Quark's names on a service: the same bytes as in this process, without data too, and nobody's functions."""

from __future__ import annotations

from typing import Any

import pytest

import quantmill.quark as door
from service.client import ApiError, Client
from tests.unit.quantizer.toolbox import data, network

pytestmark = [pytest.mark.slow, pytest.mark.long]

RANDOM = {"UseRandomData": True, "RandomDataReaderInputDataRange": {"x": [-1, 1]}}
MIXING = {
    "ActTargetQuantType": door.QuantType.QInt8,
    "Top1AccTarget": 0.1,
    "EvaluateFunction": lambda outputs: 1.0,
}


class Reader(door.CalibrationDataReader):
    def __init__(self) -> None:
        self.images = iter(data(8)["x"])

    def get_next(self) -> dict[str, Any] | None:
        image = next(self.images, None)
        return None if image is None else {"x": image[None]}


def made(client: Client | None, reader: Any, **options: Any) -> bytes:
    config = door.QuantizationConfig(activation_type=door.QuantType.QUInt8, extra_options=options)
    quantizer = door.ModelQuantizer(config, client=client, threads=1)
    model = quantizer.quantize_model(network(), None, reader)
    assert model is not None and quantizer.report is not None
    assert quantizer.report.notes[0].startswith("RANDOM DATA") == (reader is None)
    return bytes(model.SerializeToString(deterministic=True))


def test_the_same_bytes_here_and_there(embedded):
    assert made(embedded.client, Reader()) == made(None, Reader())
    assert made(embedded.client, None, **RANDOM) == made(None, None, **RANDOM)
    mixed = door.QuantizationConfig(
        activation_type=door.VitisQuantType.QInt16, include_auto_mp=True, extra_options={"AutoMixprecision": MIXING}
    )
    with pytest.raises(ApiError) as caught:
        door.ModelQuantizer(mixed, client=embedded.client).quantize_model(network(), None, Reader())
    assert "ONNX graph" in (caught.value.hint or "")

"""A module quantized in this process, on the embedded service, and on PostgreSQL and Redis: the same bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from quantmill.torch import Quantized, quantize
from service.client import Client
from tests.support.torch_networks import VisionTransformer, batches, images, made

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.slow, pytest.mark.long]

SAMPLES = images(12, 32)


def door(output: Path, client: Client | None = None) -> Quantized:
    module = made(lambda: VisionTransformer(size=32, layers=1))
    config = {"preset": "int8", "evaluation": {"latency_runs": 1}}
    loader = batches(SAMPLES, 4)
    return quantize(module, SAMPLES[:1], loader, config, client=client, output=output, threads=1)


def sha256(result: Quantized) -> str:
    digest = hashlib.sha256(result.onnx_path.read_bytes()).hexdigest()
    assert digest == result.report.manifest.output_sha256
    return digest


def test_here_and_on_both_services_the_same_bytes(embedded, deployed, tmp_path):
    here = door(tmp_path / "here.onnx")
    small = door(tmp_path / "embedded.onnx", embedded.client)
    large = door(tmp_path / "deployed.onnx", deployed.client)
    assert sha256(here) == sha256(small) == sha256(large)
    assert here.report.fidelity == small.report.fidelity == large.report.fidelity
    assert large.load()(SAMPLES[:2]).equal(here.load()(SAMPLES[:2]))

"""A module quantized in this process, on the embedded service, and on PostgreSQL and Redis: the same bytes."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from quantmill.torch import Quantized, quantize
from service.client import QuantmillClient
from tests.support.services import (
    new_postgres_database,
    own_redis_database,
    postgres_trouble,
    redis_trouble,
    require,
)
from tests.support.torch_networks import VisionTransformer, batches, images, made
from tests.worker.running import Service

pytestmark = [pytest.mark.postgres, pytest.mark.redis, pytest.mark.slow]

SAMPLES = images(12, 32)


def door(output: Path, client: QuantmillClient | None = None) -> Quantized:
    module = made(lambda: VisionTransformer(size=32, layers=1))
    config = {"preset": "int8", "evaluation": {"latency_runs": 1}}
    loader = batches(SAMPLES, 4)
    return quantize(module, SAMPLES[:1], loader, config, client=client, output=output, threads=1)


def sha256(result: Quantized) -> str:
    digest = hashlib.sha256(result.onnx_path.read_bytes()).hexdigest()
    assert digest == result.report.manifest.output_sha256
    return digest


def test_here_and_on_both_services_the_same_bytes(tmp_path):
    require(postgres_trouble())
    require(redis_trouble())
    here = door(tmp_path / "here.onnx")
    with Service(tmp_path / "embedded") as service:
        embedded = door(tmp_path / "embedded.onnx", service.client)
    with own_redis_database() as broker, new_postgres_database() as database:
        urls = {"QUANTMILL_DATABASE_URL": database, "QUANTMILL_BROKER_URL": broker}
        with Service(tmp_path / "deployed", **urls) as service:
            deployed = door(tmp_path / "deployed.onnx", service.client)
    assert sha256(here) == sha256(embedded) == sha256(deployed)
    assert here.report.fidelity == embedded.report.fidelity == deployed.report.fidelity
    assert deployed.load()(SAMPLES[:2]).equal(here.load()(SAMPLES[:2]))

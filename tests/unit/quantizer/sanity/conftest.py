"""A tiny labelled network, and what is found in data for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest

from service.contracts.config import parse_config
from service.contracts.report.layers import Finding
from tests.support.tiny import make_model
from worker.quantizer.data import ArrayDataset
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.intake.inspect import open_model
from worker.quantizer.refine.draft import Case
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.run.services import Services
from worker.quantizer.sanity.examine import examine


@dataclass(frozen=True)
class Bench:
    """The tiny network with evaluation inputs x, its own decisions y, and cases of data that it is right about."""

    case: Callable[..., Case]
    findings: Callable[..., tuple[Finding, ...]]
    x: np.ndarray
    y: np.ndarray

    def codes(self, **data: object) -> set[str]:
        return {finding.code for finding in self.findings(**data)}


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    path = tmp_path_factory.mktemp("bench") / "net.onnx"
    make_model(path)
    uploaded = open_model(path)
    session = uploaded.session(threads=1, what="float model", model=uploaded.model)
    rng = np.random.default_rng(7)
    x = _samples(rng, 160)
    y = session.run({"x": x})[0].argmax(axis=1)
    calibration = _samples(rng, 40)

    def case(
        calibration: np.ndarray = calibration,
        x: np.ndarray = x,
        labels: np.ndarray | None = y,
        config: dict[str, object] | None = None,
    ) -> Case:
        parsed = parse_config({"preset": "int8", **(config or {})})
        metrics = Metrics(parsed.evaluation, uploaded.summary.outputs)
        data = ArrayDataset({"x": calibration}), ArrayDataset({"x": x}, labels)
        return Case(parsed, uploaded.summary, *data, session, metrics=metrics)

    def findings(**data: object) -> tuple[Finding, ...]:
        return examine(case(**data), uploaded.model, Services(run=SilentRun(), threads=1))  # type: ignore[arg-type]

    return Bench(case, findings, x, y)


def _samples(rng: np.random.Generator, count: int) -> np.ndarray:
    """Every sample with its own colour, so that the network decides for several classes."""
    colour = rng.normal(0, 1.5, (count, 3, 1, 1))
    return (colour + rng.normal(0, 0.5, (count, 3, 8, 8))).astype(np.float32)

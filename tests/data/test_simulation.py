"""What every emitted model of the data folder computes, layer by layer, is what its plan says: to within one step."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir
import pytest

from benchmarks.cases import CASES
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.model import TensorInfo
from tests.data.test_zoo import QUANTIZED
from tests.data.zoo import feeds_of, model_path, mostly_long, whole_inputs
from tests.support.data import DATA_MARKS, required_data_dir
from tests.support.simulator import layer_distances
from worker.quantizer.data import OpenDataset, choose_batch_size, open_dataset
from worker.quantizer.emit import Emitted, emit
from worker.quantizer.intake.inspect import open_model
from worker.quantizer.intake.loading import load_model
from worker.quantizer.modes.registry import wanted_opset
from worker.quantizer.plan.build import build_plan
from worker.quantizer.plan.grids import fill_activations
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.targets import edit_graph, move_grids
from worker.quantizer.plan.types import PlanLog, QuantizationPlan
from worker.quantizer.preparation.prepare import Prepared, prepare
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.statistics.collect import Request, collect
from worker.quantizer.statistics.ranges import range_observer

pytestmark = DATA_MARKS

CONFIGS: dict[str, dict[str, Any]] = {
    "int8": {}, "xint8": {"preset": "xint8"}, "a16w8": {"preset": "a16w8"},
    "int4_blocks": {"weight": {"dtype": "int4", "granularity": "per_block", "block_size": 32}},
    "float8": {"activation": {"dtype": "float8_e4m3fn"}, "weight": {"dtype": "float8_e4m3fn"}},
    "bfp16": {"activation": {"dtype": "bfp16"}, "weight": {"dtype": "bfp16"}},
}  # fmt: skip
LABELLED = {case.name: case for case in CASES}
SAMPLES = 2
ONE_STEP = 1.01  # a value on a 16-bit grid, as float32, is only nearly a multiple of the step


@dataclass(frozen=True)
class Material:
    path: Path
    inputs: tuple[TensorInfo, ...]
    data: OpenDataset

    def feeds(self) -> Mapping[str, np.ndarray]:
        size = choose_batch_size(self.inputs, self.data, 1)
        return next(iter(self.data.batches(self.inputs, size, samples=range(size)))).feeds


@pytest.fixture(scope="module")
def materials(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("feeds")

    @cache
    def find(name: str) -> Material:
        if name in LABELLED:
            case = LABELLED[name]
            path = required_data_dir() / case.model
            data = open_dataset(required_data_dir() / case.calibration[0], case.calibration[1])
        else:
            path = model_path(name)
            data = open_dataset(whole_inputs(feeds_of(name, SAMPLES), folder / f"{name}.npz"), PreprocessingSpec())
        return Material(path, open_model(path).summary.inputs, data)

    return find


@lru_cache(maxsize=4)  # the types of one model come one after the other
def once_prepared(path: Path, opset: int) -> Prepared:
    return prepare(load_model(path), opset=opset)


def prepared_as(path: Path, opset: int) -> Prepared:
    prepared = once_prepared(path, opset)
    return replace(prepared, model=ir.from_proto(ir.to_proto(prepared.model)))


def quantized(material: Material, config: QuantizationConfig) -> tuple[Prepared, QuantizationPlan, Emitted]:
    """Prepared, planned, filled and emitted, with nothing measured on the way."""
    prepared = prepared_as(material.path, wanted_opset(config))
    edit_graph(prepared, config)
    plan = build_plan(prepared.graph, config, prepared.facts)
    observers = {tensor: range_observer(spec, samples=SAMPLES) for tensor, spec in plan.sources().items()}
    requests = [Request(tensor, observer) for tensor, observer in observers.items()]
    collect(
        prepared.model, requests, material.data, material.inputs, limit=SAMPLES, threads=1, run=SilentRun()
    )  # fmt: skip
    fill_activations(prepared.graph, plan, {tensor: observer.result() for tensor, observer in observers.items()})
    Parameters(prepared.graph, plan).fill()
    move_grids(prepared.graph, plan, config, PlanLog())
    return prepared, plan, emit(ir.from_proto(ir.to_proto(prepared.model)), plan)


@pytest.mark.parametrize("kind", CONFIGS)
@pytest.mark.parametrize("name", mostly_long([*LABELLED, *QUANTIZED], "keypoint_classifier"))
def test_every_layer_is_within_one_step_of_the_plan(name: str, kind: str, materials: Any) -> None:
    material = materials(name)
    prepared, plan, emitted = quantized(material, parse_config({"preset": "plain", "algorithms": [], **CONFIGS[kind]}))
    distances = layer_distances(prepared.model, plan, emitted, material.feeds())
    assert len(distances) >= len(plan.activations)
    assert {tensor: steps for tensor, steps in distances.items() if steps > ONE_STEP} == {}

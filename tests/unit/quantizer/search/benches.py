"""A calibrated draft and what a step works with, without files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx

from service.contracts.config import QuantizationConfig
from service.contracts.errors import CanceledError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.model import ModelSummary, TensorInfo
from tests.unit.quantizer.toolbox import Arrays, config, input_infos, make_model, normal, plan_for, rng
from worker.quantizer.data import ArrayDataset
from worker.quantizer.evaluation.metrics import Metrics
from worker.quantizer.modes.registry import step_of
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.refine.step import Toolkit, calibrate
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.interface import Run, SilentRun
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session

SAMPLES = 48


class Listener(SilentRun):
    """Remembers stage, step and values of every metric that it is told, and every message of the log."""

    def __init__(self) -> None:
        self.told: list[tuple[str, int, dict[str, float | None]]] = []
        self.words: list[str] = []

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        self.told.append((stage, step, dict(values)))

    def log(self, message: str, *_: Any) -> None:
        self.words.append(message)


class Canceling(SilentRun):
    """Cancels the run when a stage has told its progress so many times."""

    def __init__(self, stage: str, times: int) -> None:
        self._stage, self._left = stage, times

    def progress(self, stage: str, *_args: Any, **_kwargs: Any) -> None:
        self._left -= stage == self._stage

    def check(self) -> None:
        if self._left <= 0:
            raise CanceledError("stop")


def chain_of_convolutions(layers: int = 4, *, batch: str = "N", outlier: int | None = None) -> onnx.ModelProto:
    """Convolutions with Relu, a pool and a classifier; one channel of layer ``outlier`` is a hundred times larger."""
    weights, text, source = {}, "", "x"
    for k in range(layers):
        weight = normal(6, 3 if k == 0 else 6, 3, 3, seed=k, scale=0.25)
        if k == outlier:
            weight[0] *= 100.0
        weights[f"w{k}"] = weight
        text += f"[conv{k}] c{k} = Conv<pads=[1,1,1,1]>({source}, w{k}) [relu{k}] r{k} = Relu(c{k}) "
        source = f"r{k}"
    weights["k"] = normal(6, 5, seed=99, scale=0.4)
    text += f"[pool] p = GlobalAveragePool({source}) [flat] f = Flatten(p) [dense] y = MatMul(f, k)"
    return make_model(f"(float[{batch},3,8,8] x) => (float[{batch},5] y) {{ {text} }}", weights)


def branches(outlier: float = 1.0) -> onnx.ModelProto:
    """Two convolutions that read one tensor and are added; a channel of the first is ``outlier`` times larger."""
    weights = {"w0": normal(4, 3, 3, 3), "w1": normal(4, 4, 1, 1, seed=1), "w2": normal(4, 4, 1, 1, seed=2)}
    weights["w1"][3] *= outlier
    text = (
        "[a] t = Conv<pads=[1,1,1,1]>(x, w0) [r] u = Relu(t) [b] v = Conv(u, w1) [c] z = Conv(u, w2) "
        "[add] s = Add(v, z) [pool] p = GlobalAveragePool(s) [flat] f = Flatten(p) [dense] y = MatMul(f, k)"
    )
    return make_model(f"(float[N,3,8,8] x) => (float[N,5] y) {{ {text} }}", {**weights, "k": normal(4, 5)})


def residual_blocks(*, relu: bool = False, outlier: float = 1.0) -> onnx.ModelProto:
    """Three blocks of two convolutions; a channel of the second block is ``outlier`` times larger."""
    weights, text, source = {"w": normal(6, 3, 3, 3, scale=0.3)}, "[stem] s0 = Conv<pads=[1,1,1,1]>(x, w) ", "s0"
    for k in range(3):
        weights |= {
            f"a{k}": normal(12, 6, 1, 1, seed=k, scale=0.4),
            f"b{k}": normal(6, 12, 1, 1, seed=k + 50, scale=0.2),
        }
        weights[f"b{k}"][0] *= outlier if k == 1 else 1.0
        text += f"[up{k}] u{k} = Conv({source}, a{k}) [act{k}] r{k} = Relu(u{k}) [down{k}] d{k} = Conv(r{k}, b{k}) "
        last = f"j{k}" if relu else f"s{k + 1}"
        text += f"[add{k}] {last} = Add(d{k}, {source}) " + (f"[top{k}] s{k + 1} = Relu({last}) " if relu else "")
        source = f"s{k + 1}"
    weights["k"] = normal(6, 5, seed=99, scale=0.4)
    text += f"[pool] p = GlobalAveragePool({source}) [flat] f = Flatten(p) [dense] y = MatMul(f, k)"
    return make_model(f"(float[N,3,8,8] x) => (float[N,5] y) {{ {text} }}", weights)


def samples(count: int = SAMPLES, seed: int = 0) -> Arrays:
    return {"x": normal(count, 3, 8, 8, seed=seed), "labels": rng(seed).integers(0, 5, count)}


def toolkit_for(
    model: onnx.ModelProto,
    settings: QuantizationConfig | None = None,
    *,
    held_back: int = 8,
    run: Run | None = None,
    checkpoint: CheckpointStore | None = None,
    labels: np.ndarray | None = None,
    x: np.ndarray | None = None,
) -> tuple[Draft, Toolkit]:
    """The draft of ``settings`` without algorithms, and a toolkit; data as ``samples`` gives them if not given."""
    settings = settings or config()
    prepared, plan = plan_for(model, settings)
    arrays = samples()
    data = ArrayDataset({"x": arrays["x"] if x is None else x}, arrays["labels"] if labels is None else labels)
    infos = input_infos(model)
    outputs = (TensorInfo(name="y", dtype="float32", shape=(None, 5)),)
    case = Case(
        config=settings,
        summary=ModelSummary.model_construct(inputs=infos, outputs=outputs),
        calibration=data,
        evaluation=None,
        float_session=Session(model.SerializeToString(), threads=1),
        metrics=Metrics(EvaluationSpec(), outputs),
    )
    services = Services(run or SilentRun(), threads=1, checkpoint=checkpoint or CheckpointStore(None))
    draft = calibrate(Draft(prepared, plan), case, services)
    return draft, Toolkit(case, services, range(held_back), step_of)

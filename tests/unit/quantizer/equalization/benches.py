"""A calibrated draft, a toolkit and an applied step, without files."""

from __future__ import annotations

import re

import numpy as np
import onnx
import onnx_ir as ir

from service.contracts.algorithms import Algorithm
from service.contracts.config import QuantizationConfig
from service.contracts.model import ModelSummary
from tests.unit.quantizer.toolbox import Arrays, config, input_infos, plan_for, run_onnx, sqnr_db
from worker.quantizer.data import ArrayDataset
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.modes.registry import MODES, step_of
from worker.quantizer.refine.draft import Case, Draft
from worker.quantizer.refine.step import StepResult, Toolkit, calibrate
from worker.quantizer.run.interface import SilentRun
from worker.quantizer.run.services import Services
from worker.quantizer.runtime.session import Session


class Bench:
    """A model with its data, of which the step does not learn from those held back; it is not applied yet."""

    def __init__(
        self,
        model: onnx.ModelProto,
        feeds: Arrays,
        algorithm: Algorithm,
        settings: QuantizationConfig | None = None,
        *,
        held_back: int = 0,
    ) -> None:
        settings = settings or config()
        self.model, self.feeds = model, feeds
        self.step = step_of(algorithm.variants()[0])
        prepared, plan = plan_for(model, settings)
        infos = input_infos(model)
        case = Case(
            config=settings,
            summary=ModelSummary.model_construct(inputs=infos),
            calibration=ArrayDataset(feeds),
            evaluation=None,
            float_session=Session(model.SerializeToString(), threads=1),
        )
        services = Services(SilentRun(), threads=1)
        self.draft = calibrate(Draft(prepared, plan, form=MODES[settings.mode].form), case, services, (self.step,))
        self.toolkit = Toolkit(case, services, range(held_back), step_of)

    def apply(self) -> StepResult:
        """The step at work."""
        return self.step.apply(self.draft, self.toolkit)


def float_outputs(draft: Draft, feeds: Arrays) -> dict[str, np.ndarray]:
    """What the draft's float network computes."""
    return run_onnx(ir.to_proto(draft.prepared.model), feeds)


def emitted(draft: Draft) -> onnx.ModelProto:
    """The draft's quantized model."""
    return onnx.load_from_string(to_bytes(draft.emitted().model))


def quantized_outputs(draft: Draft, feeds: Arrays) -> dict[str, np.ndarray]:
    """What the draft's quantized model computes in onnxruntime, every Q/DQ pair carried out."""
    return run_onnx(emitted(draft), feeds, optimized=False)


def used(weights: Arrays, text: str) -> dict[str, np.ndarray]:
    """Those weights that the text names."""
    names = set(re.findall(r"\w+", text))
    return {name: array for name, array in weights.items() if name in names}


def gain_db(it: Bench, draft: Draft) -> float:
    """By how much the quantized network got nearer to the float one, which has to compute what it did."""
    expected, got = float_outputs(it.draft, it.feeds)["y"], float_outputs(draft, it.feeds)["y"]
    assert np.abs(got - expected).max() < 1e-4 * np.abs(expected).max()
    before, after = (sqnr_db(expected, quantized_outputs(of, it.feeds)["y"]) for of in (it.draft, draft))
    return after - before

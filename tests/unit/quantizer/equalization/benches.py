"""A calibrated draft, a workshop and an applied step, without files."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx
import onnx_ir as ir

from service.contracts.algorithms import Algorithm
from service.contracts.config import QuantizationConfig
from service.contracts.model import ModelSummary
from tests.unit.quantizer.toolbox import Arrays, config, input_infos, plan_for, run_onnx
from worker.quantizer.context import Context
from worker.quantizer.data import ArrayDataset
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.measure import Stages
from worker.quantizer.plan.build import build_plan
from worker.quantizer.refine.calibration import calibrate, take_over
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Step, Workshop
from worker.quantizer.refine.steps import step_of
from worker.quantizer.run import SilentRun
from worker.quantizer.runtime import Session, to_bytes


class Bench:
    """A model with its data, and a step that has not been applied yet.

    Args:
        model: float.
        feeds: calibration data, first axis = samples.
        algorithm: what is to be applied.
        settings: the config; without algorithms.
        held_back: samples that the step must not learn from.
    """

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
        self.step = step_of(algorithm)
        prepared, plan = plan_for(model, settings)
        infos = input_infos(model)
        context = Context(
            config=settings,
            summary=ModelSummary.model_construct(inputs=infos),
            calibration=ArrayDataset(feeds),
            evaluation=None,
            float_session=Session(model.SerializeToString(), threads=1),
            stages=Stages(),
            run=SilentRun(),
            threads=1,
        )
        steps: Sequence[Step] = (self.step,)

        def recalibrate(changed: Prepared, *, base: Draft | None = None, touched: Collection[str] = ()) -> Draft:
            fresh = build_plan(changed.graph, settings, changed.op_types)
            kept = {} if base is None else take_over(base.plan, fresh, touched)
            return calibrate(changed, fresh, context, steps, {}, kept=kept)

        self.draft = calibrate(prepared, plan, context, steps, {})
        self.workshop = Workshop(context, recalibrate, held_back, step_of)

    def apply(self) -> Change:
        """The step at work."""
        return self.step.apply(self.draft, self.workshop)


def float_outputs(draft: Draft, feeds: Arrays) -> dict[str, np.ndarray]:
    """What the draft's float network computes."""
    return run_onnx(ir.to_proto(draft.prepared.model), feeds)


def emitted(draft: Draft) -> onnx.ModelProto:
    """The draft's quantized model."""
    return onnx.load_from_string(to_bytes(draft.emitted()))


def quantized_outputs(draft: Draft, feeds: Arrays) -> dict[str, np.ndarray]:
    """What the draft's quantized model computes in onnxruntime, every Q/DQ pair carried out."""
    return run_onnx(emitted(draft), feeds, optimized=False)

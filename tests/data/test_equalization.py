"""Equalization of the real models: the float network stays what it was, and a quantized MobileNet works again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.contracts.algorithms import CrossLayerEqualization
from service.contracts.config import QuantizationConfig
from tests.data.test_preparation import LABELLED, case_of
from tests.data.test_zoo import QUANTIZED
from tests.data.zoo import Feeds, mostly_long, run, session_of
from tests.support.data import DATA_MARKS
from tests.unit.quantizer.toolbox import config
from worker.quantizer.equalization.cross_layer.limiting import choose_policy
from worker.quantizer.equalization.cross_layer.step import CrossLayerEqualizationStep, Equalizer
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.intake.loading import load_model
from worker.quantizer.plan.build import build_plan
from worker.quantizer.preparation.prepare import prepare
from worker.quantizer.refine.draft import Draft
from worker.quantizer.runtime.session import Session, with_outputs

pytestmark = DATA_MARKS

PER_TENSOR = config(preset="plain", weight={"granularity": "per_tensor"})
# Models in which there is nothing to equalize: recurrent, transformers, normalizations by instance.
NOTHING = ("dtln_model_1", "styletransfer_mosaic_nc8_128", "speech/kwt1.onnx")


def observed(path: Path, feeds: list[Feeds], spec: CrossLayerEqualization, settings: QuantizationConfig) -> Draft:
    """A draft with what the step asks for, collected on ``feeds``."""
    prepared = prepare(load_model(path), settings.preparation)
    draft = Draft(prepared, build_plan(prepared.graph, settings, prepared.facts))
    requests = CrossLayerEqualizationStep(spec).requests(draft)
    tensors = [request.tensor for request in requests]
    if tensors:
        session = Session(with_outputs(prepared.model, tensors), threads=1, optimized=False)
        for sample in feeds:
            values = dict(zip(session.output_names, session.run(sample), strict=True))
            for request in requests:
                request.reducer.update(values[request.tensor], 1)
    draft.statistics[spec.method] = requests
    return draft


def assert_function_kept(path: Path, feeds: list[Feeds], *, changes: bool) -> None:
    for mode in ("per_channel", "never"):
        spec = CrossLayerEqualization(replace_relu6=mode, silent_channels="keep")
        draft = observed(path, feeds, spec, PER_TENSOR)
        work = Equalizer(spec, choose_policy(spec, PER_TENSOR), draft, draft.prepared.model.clone())
        work.run()
        assert bool(work.nodes) == changes
        before, after = (session_of(to_bytes(model), optimized=False) for model in (draft.prepared.model, work.model))
        for sample in feeds:
            expected, got = run(before, sample), run(after, sample)
            for name, array in expected.items():
                if array.dtype.kind == "f":
                    atol = 1e-4 * float(np.abs(array).max(initial=0)) + 1e-6  # a Sigmoid's own rounding
                    np.testing.assert_allclose(got[name], array, rtol=0, atol=atol, err_msg=f"{name}, {mode}")
                else:
                    np.testing.assert_array_equal(got[name], array, err_msg=f"{name}, {mode}")


@pytest.mark.parametrize("name", mostly_long([*LABELLED, *QUANTIZED], "mnist/mnist_cntk_opset8.onnx", "dtln_model_1"))
def test_models_compute_the_same(name: str) -> None:
    assert_function_kept(*case_of(name)[:2], changes=name not in NOTHING)

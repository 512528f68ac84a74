"""Equalization of the real models: the float network stays what it was, and a quantized MobileNet works again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from service.contracts.algorithms import CrossLayerEqualization
from service.contracts.config import QuantizationConfig
from tests.data.test_accuracy import CASES, first, source
from tests.data.test_preparation import LABELLED, ZOO, case_of
from tests.data.zoo import Feeds, run, session_of
from tests.support.data import DATA_MARKS, required_data_dir
from tests.unit.quantizer.toolbox import config
from worker.quantizer.equalization.cross_layer.limiting import choose_policy
from worker.quantizer.equalization.cross_layer.step import CrossLayerEqualizationStep, Equalizer
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.intake.loading import load_model
from worker.quantizer.pipeline import quantize
from worker.quantizer.plan.build import build_plan
from worker.quantizer.preparation.prepare import prepare
from worker.quantizer.refine.draft import Draft
from worker.quantizer.run.interface import SilentRun
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


@pytest.mark.parametrize("name", [*LABELLED, *ZOO])
def test_models_compute_the_same(name: str) -> None:
    assert_function_kept(*case_of(name)[:2], changes=name not in NOTHING)


# Seconds count here, so that fewer images are looked at than in the benchmarks: one of 80 is 1.25 points.
IMAGES = 80
CALIBRATION_IMAGES = 40
RECIPES = {
    "exact limits": ({"preset": "int8_per_tensor"}, {}),
    "limits as they are": ({"preset": "int8_per_tensor"}, {"replace_relu6": "never"}),
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_a_depthwise_network_works_with_one_scale_per_tensor(recipe: str, tmp_path: Path) -> None:
    settings, options = RECIPES[recipe]
    steps = [{"method": "cross_layer_equalization", **options}, {"method": "bias_correction"}]
    case, folder = CASES["mobilenet_v1"], required_data_dir()
    resolved = config(
        **settings,
        algorithms=steps,
        calibration_samples=CALIBRATION_IMAGES,
        evaluation={"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0},
    )
    sources = source(folder, case.calibration), first(IMAGES, case.evaluation, tmp_path)
    report = quantize(folder / case.model, resolved, *sources, run=SilentRun(), threads=1).report
    step = report.algorithms[0]
    assert step.kept and step.before is not None and step.after is not None
    assert step.before.sqnr_db is not None and step.after.sqnr_db is not None
    assert step.after.sqnr_db > step.before.sqnr_db + 3
    assert report.quantized.metrics["top1"] > report.float_.metrics["top1"] - 5
    widest = max(row.spread_before or 0 for row in step.ranges if row.kind == "weight")
    assert widest > 5 * max(row.spread_after or 0 for row in step.ranges if row.kind == "weight")

"""No advice breaks the rules of a target, whatever was planted, and none changes the target."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import onnx_ir as ir
import pytest

from service.contracts.config import QuantizationConfig, advised_config, parse_config
from service.contracts.targets import TargetName
from tests.unit.quantizer.advice.planted import chain, product
from worker.quantizer.advice.advise import Fitting
from worker.quantizer.advice.damage import KIND_WORDS, Damage, Harm, HarmKind, HarmPlace
from worker.quantizer.advice.table import RULES, AdviceContext
from worker.quantizer.graph.serialized import copy_of
from worker.quantizer.modes.planning import plan_model, prepare_model
from worker.quantizer.pages import advice_page
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import QuantizedDraft
from worker.quantizer.run.interface import Run

MODELS = {name: ir.from_proto(model) for name, model in (("chain", chain()), ("product", product()))}
BAD: dict[str, dict[str, Any]] = {
    "as it comes": {},
    "per tensor": {"weight": {"granularity": "per_tensor"}},
    "4 bits": {"weight": {"dtype": "int4"}, "activation": {"dtype": "uint4"}},
    "shifts": {
        "activation": {"dtype": "int8", "symmetric": True, "scale": "power_of_two", "calibration": {"method": "mse"}},
        "weight": {"granularity": "per_tensor", "scale": "power_of_two"},
        "bias": {"dtype": "int8"},
        "preparation": {"clip6_to_relu": True},
        "algorithms": [{"method": "cross_layer_equalization", "steps": 1, "replace_relu6": "relu"}],
    },
    "tuned": {"algorithms": [{"method": "smooth_quant"}, {"method": "adaround"}]},
}


class Planner:
    """Plans one model, and quantizes nothing."""

    def __init__(self, model: ir.Model) -> None:
        self._model = model

    def planned(self, config: QuantizationConfig) -> QuantizationPlan:
        return plan_model(prepare_model(copy_of(self._model), config)[0], config).plan

    def again(self, config: QuantizationConfig, run: Run) -> QuantizedDraft:
        raise AssertionError("nothing is tried here")


def hurt_everywhere(layers: list[str]) -> Damage:
    harms = {kind: Harm(kind, 1.0, (HarmPlace(layers[0], 1.0, "planted"),)) for kind in HarmKind}
    return Damage(harms, {name: 1.0 / (k + 1) for k, name in enumerate(layers)})


def asked_for(patch: Mapping[str, Any], *path: str) -> Any:
    found: Any = patch
    for key in path:
        found = found.get(key, {}) if isinstance(found, Mapping) else {}
    return found or None


@pytest.mark.parametrize(("sqnr_db", "goal"), [(None, 15.0), (3.2, 15.0), (27.3, 34.0)])
def test_few_layers_in_float_are_to_gain_something(sqnr_db: float | None, goal: float) -> None:
    document = parse_config({"preset": "int8"}).model_dump(mode="json")
    (rule,) = [rule for rule in RULES if "few layers in float" in rule.message]
    changed = rule.edit(document, AdviceContext("onnxruntime_cpu", hurt_everywhere(["fc"]), sqnr_db))
    (mixed,) = [step for step in changed["algorithms"] if step["method"] == "mixed_precision"]
    assert mixed["goal"]["limit"] == goal


@pytest.mark.slow
@pytest.mark.parametrize("bad", sorted(BAD))
@pytest.mark.parametrize("target", get_args(TargetName))
@pytest.mark.parametrize("turn", [0, pytest.param(1, marks=pytest.mark.long)])
def test_what_is_advised_is_what_the_target_does(target: str, bad: str, turn: int) -> None:
    model = sorted(MODELS)[(get_args(TargetName).index(target) + sorted(BAD).index(bad) + turn) % 2]
    config = parse_config({"preset": "plain", "target": target, **BAD[bad]})
    planner = Planner(MODELS[model])
    before = planner.planned(config)
    setting = AdviceContext(target, hurt_everywhere([weight.node for weight in before.weights.values()]))
    fitting = Fitting(config, planner)
    given = 0
    for rule in RULES:
        changed = rule.edit(fitting.document, setting)
        fitted = None if changed is None or rule.by_hand else fitting.fit(changed)
        if fitted is None:
            continue
        given += 1
        assert fitted.config == advised_config(config, fitted.patch)
        assert fitted.config.target == config.target
        # the one option that tells what the CPU can do, not what the target may
        options = {name: on for name, on in fitted.config.target_options.items() if name != "x86_without_vnni"}
        assert options == config.target_options
        assert "target" not in fitted.patch and "preset" not in fitted.patch
        after = planner.planned(fitted.config)
        _kept(target, rule.code, fitted.patch, before, after)
    assert given  # under any target there is something to say


def _kept(target: str, code: str, patch: Mapping[str, Any], before: QuantizationPlan, after: QuantizationPlan) -> None:
    """What the patch asks for stands in the plan, of at least one tensor; what the target has to have does."""
    for field in ("dtype", "granularity"):
        wanted = asked_for(patch, "weight", field)
        if wanted is not None:
            assert wanted in {getattr(entry.spec, field) for entry in after.weights.values()}, code
    if asked_for(patch, "activation", "dtype") is not None:
        bits = {entry.spec.dtype.lstrip("u") for entry in after.activations.values()}
        assert asked_for(patch, "activation", "dtype").lstrip("u") in bits, code
    if asked_for(patch, "bias", "dtype") is not None:
        assert "int32" in {entry.spec.dtype for entry in after.biases.values()}, code
    if target == "amd_npu_cnn":
        assert not {"exclude", "include", "overrides", "bias"} & set(patch), code
        for entry in (*after.activations.values(), *after.weights.values()):
            spec = entry.spec
            assert (spec.dtype, spec.symmetric, spec.scale, spec.granularity) == (
                "int8", True, "power_of_two", "per_tensor",
            ), code  # fmt: skip
        assert {entry.spec.dtype for entry in after.biases.values()} <= {"int8"}
        assert [name for name, node in after.nodes.items() if node.quantized] == [
            name for name, node in before.nodes.items() if node.quantized
        ]
    if target in ("tensorrt", "onnxruntime_gpu"):
        assert {entry.spec.symmetric for entry in after.activations.values()} <= {True}
    if target == "qnn":
        assert all(entry.spec.dtype.startswith("u") for entry in after.activations.values())


def test_every_cause_has_words_and_a_rule_and_stands_on_the_page() -> None:
    assert set(KIND_WORDS) == set(HarmKind)
    assert {kind for rule in RULES for kind in rule.treats} == set(HarmKind)
    assert len({rule.code for rule in RULES}) == len(RULES)
    # the page is current and names every advice
    assert PAGE.read_text() == advice_page(), "run: python -m worker.quantizer.pages advice > docs/advice.md"
    assert all(f"`{rule.code}`" in advice_page() for rule in RULES)


PAGE = Path(__file__).parents[4] / "docs" / "advice.md"

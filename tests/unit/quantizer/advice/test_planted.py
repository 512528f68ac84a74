"""Every advice of the table is found where its damage was planted, and helps there, applied as it stands."""

from __future__ import annotations

from itertools import permutations
from pathlib import Path
from typing import Any

import pytest

from service.contracts.config import advised_config, parse_config
from service.contracts.report import Report
from tests.support.exact_sums import make_sums_as_here
from tests.unit.quantizer.advice.planted import (
    NPU,
    PER_TENSOR,
    PLANTED,
    Planted,
    chain,
    healthy,
    images,
    large_bias,
    rows,
    wide_output,
)
from tests.unit.quantizer.toolbox import quantize_file
from worker.quantizer.advice.damage import Damage
from worker.quantizer.advice.table import RULES, AdviceContext
from worker.quantizer.runtime.host import saturates_pairs

pytestmark = pytest.mark.slow  # quantizes many times

# A gate that int8 cannot keep: advice is looked for whatever the damage did.
QUICK = {"latency_runs": 1, "layer_samples": 1, "gate": {"min_sqnr_db": 70.0}}


def quantized(folder: Path, case: Planted, *, seconds: float = 0.0, config: Any = None) -> Report:
    settings = {"algorithms": [], **case.settings, "evaluation": {**QUICK, "advice_seconds": seconds}}
    found = config or parse_config(settings)
    return quantize_file(folder, case.model, case.calibration, found, evaluation=case.evaluation).report


def test_every_rule_has_its_case() -> None:
    assert {rule.code for rule in RULES} == set(PLANTED)


@pytest.mark.parametrize("code", sorted(PLANTED))
def test_an_advice_is_found_where_its_damage_is_and_helps_as_it_stands(code, tmp_path, monkeypatch) -> None:
    if code == "seven-bit-weights":
        if not saturates_pairs():
            pytest.skip("this CPU adds 8-bit products exactly: there is no damage to plant")
        make_sums_as_here(monkeypatch)
    case = PLANTED[code]()
    report = quantized(tmp_path, case)
    assert report.fidelity.sqnr_db is not None
    listed = {advice.code: advice for advice in report.advice}
    assert code in listed
    advice = listed[code]
    assert (advice.status, advice.helped, advice.figure) == ("untried", None, None)
    assert "SQNR" in advice.because
    if code == "more-calibration-data":
        assert advice.config == {}
        return
    config = advised_config(report.manifest.config, advice.config)
    assert config.target == report.manifest.config.target
    after = quantized(tmp_path, case, config=config).fidelity.sqnr_db
    assert after is not None and after > report.fidelity.sqnr_db + 1.0


@pytest.mark.parametrize("model", [chain(spread=1000.0), wide_output()], ids=["chain", "product"])
def test_no_advice_lists_an_algorithm_that_another_leaves_nothing_to_do(model: Any, tmp_path: Path) -> None:
    data = images() if model.graph.input[0].type.tensor_type.shape.dim[1].dim_value == 3 else rows()
    case = Planted(model, data, None, PER_TENSOR)
    report = quantized(tmp_path, case)
    assert report.advice
    for advice in (one for one in report.advice if "algorithms" in one.config):
        after = quantized(tmp_path, case, config=advised_config(report.manifest.config, advice.config))
        codes = {algorithm.method: algorithm.reason_code for algorithm in after.algorithms}
        assert "outliers-left-to-equalization" not in codes.values(), (advice.code, codes)


def test_outliers_of_weights_alone_are_left_to_equalization_in_any_order() -> None:
    edits = {rule.code: rule.edit for rule in RULES}
    document = parse_config({"algorithms": []}).model_dump(mode="json")
    for kinds, together in (({"weight"}, False), ({"activation"}, True), ({"weight", "activation"}, True)):
        setting = AdviceContext("cpu", Damage({}, {}, frozenset(kinds)))
        for codes in permutations(("equalize", "treat-outlier-channels")):
            changed = document
            for code in codes:
                changed = edits[code](changed, setting) or changed
            methods = {entry["method"] for entry in changed["algorithms"]}
            assert "cross_layer_equalization" in methods
            assert ("outlier_channels" in methods) is together, codes


def test_a_healthy_network_gets_none(tmp_path: Path) -> None:
    quick = {"evaluation": {"latency_runs": 1, "layer_samples": 1}}
    report = quantized(tmp_path, healthy(), config=parse_config({"preset": "int8", **quick}))
    assert report.fidelity.sqnr_db is not None and report.fidelity.sqnr_db > 20.0
    assert report.advice == ()
    assert "advice" not in [stage.name for stage in report.stages]


@pytest.mark.parametrize("damage", ["silent channel", pytest.param("spread", marks=pytest.mark.long)])
def test_on_the_npu_advice_keeps_to_its_rules_and_helps(damage: str, tmp_path: Path) -> None:
    model = large_bias(-300.0) if damage == "silent channel" else chain(spread=1000.0)
    report = quantized(tmp_path, Planted(model, images(), None, NPU), seconds=600.0)
    assert report.advice
    best = report.advice[0]
    assert best.status == "tried" and best.helped and best.figure is not None
    assert set(best.config) <= {"algorithms", "activation", "weight"}
    config = advised_config(report.manifest.config, best.config)
    assert config.target == "amd_npu_cnn" and config.target_options == report.manifest.config.target_options
    again = quantized(tmp_path, Planted(model, images()), config=config)
    # the figure is what comes out where the advice is applied
    assert again.fidelity.sqnr_db == pytest.approx(best.figure.after)
    assert best.figure.before == report.fidelity.sqnr_db
    assert best.figure.after is not None and best.figure.after > report.fidelity.sqnr_db + 3.0

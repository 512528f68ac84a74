"""Every advice of the table is found where its damage was planted, and helps there, applied as it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from service.contracts.config import advised_config, parse_config
from service.contracts.report import Report
from tests.support.exact_sums import make_sums_as_here
from tests.unit.quantizer.advice.planted import NPU, PLANTED, Planted, chain, healthy, images, large_bias
from tests.unit.quantizer.toolbox import quantize_file
from worker.quantizer.advice.table import RULES
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

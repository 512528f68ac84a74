"""What the float model's outputs alone tell."""

from __future__ import annotations

import numpy as np
import pytest

from worker.quantizer.evaluation.metrics.distances import Agreement
from worker.quantizer.sanity.chance import hits_of
from worker.quantizer.sanity.labels import decision_findings
from worker.quantizer.sanity.outputs import output_findings

VARIED = np.random.default_rng(0).normal(size=(16, 10)).astype(np.float32)
CONSTANT = np.full((16, 1), 100.0, np.float32)


def codes(*outputs: np.ndarray) -> list[str]:
    return [finding.code for finding in output_findings([f"y{k}" for k in range(len(outputs))], outputs)]


def test_outputs_that_never_change_are_told() -> None:
    assert codes(CONSTANT) == ["float-output-constant"]
    # an output that could not be looked at may differ
    assert codes(CONSTANT, VARIED) == codes(CONSTANT, np.zeros((0,), np.float32)) == []


def test_nan_leaves_nothing_to_say_about_accuracy() -> None:
    lost = VARIED.copy()
    lost[:4, 3] = np.nan
    (finding,) = output_findings(["y"], [lost])
    assert (finding.code, finding.where) == ("float-output-not-finite", {"output": "y"})
    assert finding.undermines_verdict and "25 % of 16" in finding.message


def test_scores_with_nan_agree_with_nothing() -> None:
    lost = VARIED.copy()
    lost[:4] = np.nan
    agreement = Agreement()
    assert agreement.update(lost, lost)
    assert agreement.percent == 75.0


@pytest.mark.parametrize("large", [10**6, 10**13])
def test_class_numbers_of_any_size_take_no_memory(large: int) -> None:
    labels = np.array([0, 0, 1, large] * 5, np.int64)
    decided = np.array([0, large, large + 1, -1] * 5, np.int64)
    hits = hits_of(decided[:, None], labels)
    assert hits.hits == 5
    assert hits.expected == pytest.approx((0.5 + 0.25 + 0 + 0) / 4)
    assert list(decision_findings(decided, labels)) == []

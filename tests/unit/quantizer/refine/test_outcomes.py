"""What became of an algorithm: kept, undone, or without anything to do; the last two with a code."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.contracts.report import AlgorithmFigures
from tests.unit.quantizer.toolbox import config, data, network, quantize_file
from worker.quantizer.refine.judge import SQNR_WORSE, Judge

WORSE = SQNR_WORSE(before=30.0, after=20.0)


def outcome(folder: Path, **algorithm: object) -> AlgorithmFigures:
    report = quantize_file(folder, network(), data(), config(algorithms=[algorithm])).report
    return report.algorithms[0]


def test_what_is_undone_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Judge, "worse", lambda self, after, before: WORSE)
    undone = outcome(tmp_path, method="bias_correction")
    assert (undone.kept, undone.reason_code) == (False, WORSE.code)
    assert undone.summary.startswith(f"undone, as it made the network worse: {WORSE.words}; ")
    kept = outcome(tmp_path, method="bias_correction", accept="always")
    assert (kept.kept, kept.reason_code) == (True, None)


@pytest.mark.parametrize(
    "algorithm",
    [
        {"method": "adaround", "target_op_type": ["ConvTranspose"]},
        {"method": "adaround", "target_op_type": ["ConvTranspose"], "solver": "gradient"},
    ],
)
def test_what_has_nothing_to_do_says_why(algorithm: dict[str, object], tmp_path: Path) -> None:
    found = outcome(tmp_path, **algorithm)
    assert (found.kept, found.reason_code, found.nodes) == (False, "no-layer-of-type", 0)
    assert "ConvTranspose" in found.summary


def test_a_solver_that_refuses_all_layers_says_why(tmp_path: Path) -> None:
    algorithm = {"method": "adaquant", "solver": "moments"}
    settings = config(algorithms=[algorithm], weight={"dtype": "mx6"}, bias={"dtype": "float32"})
    (found,) = quantize_file(tmp_path, network(), data(), settings).report.algorithms
    assert (found.kept, found.reason_code, found.nodes) == (False, "no-integer-weight", 0)
    assert "left out: its weight is not stored as integers" in found.summary

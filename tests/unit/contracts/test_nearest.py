"""The name that was meant; whatever was written, the search is bounded."""

from __future__ import annotations

import pytest

from service.contracts import nearest
from service.contracts.nearest import nearest_key, nearest_name


def test_a_name_with_a_slip_is_found_among_many() -> None:
    known = [f"/model/layers/{number}/conv" for number in range(5000)]
    assert nearest_name("/model/layers/4711/cnov", known) == "/model/layers/4711/conv"
    assert nearest_name("/MODEL/layers/17/conv", known) == "/model/layers/17/conv"


def test_only_names_that_are_near_are_offered() -> None:
    known = ["algorithms", "calibration_samples", "seed", "weight"]
    near = {"algorithm": "algorithms", "calibration-samples": "calibration_samples", "sede": "seed", "see": "seed"}
    near |= dict.fromkeys(("calibrationSamples", "calib"), "calibration_samples")
    for key, expected in [*near.items(), ("overrides", None), ("x", None), ("", None)]:
        assert nearest_key(key, known) == expected, key
    assert nearest_name("zzz", ["conv", "relu"]) is None


def test_so_many_names_are_looked_at_and_no_more_and_none_that_nobody_typed(monkeypatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(nearest.process, "extractOne", lambda *_, **__: pytest.fail("compared"))
        for search in (nearest_key, nearest_name):
            assert search("n" * 10_000, ["n" * 9_999]) is None
    looked: list[int] = []
    monkeypatch.setattr(nearest.process, "extractOne", lambda _, names, **__: looked.append(len(names)))
    nearest_name("n", [f"name{number}" for number in range(200_000)])
    nearest_name("n", ["x" * 10_000] * 10)
    assert looked == [20_000, 0]

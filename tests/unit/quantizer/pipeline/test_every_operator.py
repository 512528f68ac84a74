"""Every operator that ONNX tests is quantized, or refused for a reason; all of their cases: benchmarks/nodes.py."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.golden.nodes import RENEW, RUNS, differences, outcomes_of, read
from tests.support.node_cases import PRESETS, node_cases, sample

KEPT = read()
PARTS = 8
ELSEWHERE = "the table of outcomes knows no other versions of onnx and onnxruntime"


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_operators_are_quantized_or_refused_for_a_reason(part: int) -> None:
    found, failures = outcomes_of(sample(node_cases())[part::PARTS])
    assert failures == []
    if not KEPT.holds_here:
        pytest.skip(ELSEWHERE)
    assert differences(found, KEPT) == [], RENEW


@pytest.mark.slow
def test_the_table_counts_the_whole_sample() -> None:
    if not KEPT.holds_here:
        pytest.skip(ELSEWHERE)
    names = {case.name for case in sample(node_cases())}
    assert set(KEPT.others) <= names, RENEW
    for preset in PRESETS:
        counts = Counter(KEPT.of(name)[preset] for name in names)
        assert KEPT.counts[preset] == counts, RENEW
        assert counts[RUNS] > len(names) * 0.7

"""Every operator that ONNX tests is quantized, or refused for a reason; all of their cases: benchmarks/nodes.py."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.golden.nodes import RENEW, differences, outcomes_of, read
from tests.support.node_cases import node_cases, sample
from tests.unit.quantizer.random_networks import RandomNetwork
from tests.unit.quantizer.toolbox import config, normal, prepare_proto, quantize_model, run_onnx, sqnr_db

KEPT = read()
PARTS = 16
ELSEWHERE = "the table of outcomes knows no other versions of onnx and onnxruntime"


@pytest.mark.slow
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, PARTS))])
def test_operators_are_quantized_or_refused_for_a_reason(part: int) -> None:
    found, failures = outcomes_of(sample(node_cases())[part::PARTS])
    assert failures == []
    if not KEPT.holds_here:
        pytest.skip(ELSEWHERE)
    assert differences(found, KEPT) == [], RENEW


@pytest.mark.slow
def test_most_of_the_sample_runs() -> None:
    if not KEPT.holds_here:
        pytest.skip(ELSEWHERE)
    names = {case.name for case in sample(node_cases())}
    assert set(KEPT.others) <= names, RENEW
    assert len(KEPT.others) < len(names) * 0.3


pytestmark = pytest.mark.slow  # quantizes many networks

SETTINGS = [
    config(), config(weight={"granularity": "per_tensor"}), config(activation={"dtype": "int8", "symmetric": True}),
    config(activation={"dtype": "int8"}),
]  # fmt: skip
BLOCKS, BLOCK = 8, 25


@pytest.mark.parametrize("block", [0, *(pytest.param(block, marks=pytest.mark.long) for block in range(1, BLOCKS))])
def test_random_networks(block: int) -> None:
    ratios = []
    for seed in range(block * BLOCK, (block + 1) * BLOCK):
        network = RandomNetwork(seed)
        feeds = {name: normal(6, 3, 8, 8, seed=seed + k) for k, name in enumerate(network.inputs)}
        expected = run_onnx(network.model, feeds, optimized=False)
        prepared = run_onnx(prepare_proto(network.model)[1], feeds, optimized=False)
        _, plan, emitted = quantize_model(network.model, feeds, SETTINGS[seed % len(SETTINGS)])
        onnx.checker.check_model(emitted, full_check=True)
        assert [value.name for value in emitted.graph.output] == list(expected), seed
        assert all(entry.quantized or entry.reason for entry in plan.nodes.values()), seed
        got = run_onnx(emitted, feeds, optimized=False)
        optimized = run_onnx(emitted, feeds)
        for name, array in expected.items():
            np.testing.assert_allclose(
                prepared[name], array, rtol=0, atol=1e-4 * np.abs(array).max() + 1e-7, err_msg=f"seed {seed}"
            )
            assert optimized[name].shape == got[name].shape == array.shape, seed
            assert np.isfinite(got[name]).all(), seed
            assert np.isfinite(optimized[name]).all(), seed
            ratios.append(min(sqnr_db(array, got[name]), 100.0))
    # a single network may well be hard to quantize, half of them are not
    assert np.median(ratios) > 30
    assert np.percentile(ratios, 5) > 15

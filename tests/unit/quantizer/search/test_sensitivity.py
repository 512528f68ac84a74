"""Every layer's error at the output, against models in which that layer alone is quantized."""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from pydantic import ValidationError

from service.contracts.algorithms import SensitivityAnalysis
from service.contracts.algorithms.precision import Level
from service.contracts.config import parse_config
from service.contracts.costs import held_back_samples, spread
from service.contracts.search import Sensitivity
from service.contracts.specs import ActivationSpec, WeightSpec
from tests.support.provenance import without_provenance
from tests.unit.quantizer.search.benches import SAMPLES, branches, chain_of_convolutions, samples, toolkit_for
from tests.unit.quantizer.toolbox import config, quantize_file, run_onnx
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Toolkit
from worker.quantizer.run.cache import Cache
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.search import sensitivity
from worker.quantizer.search.levels import find_layers
from worker.quantizer.search.sensitivity import Analysis, analyse, analysis_of, level_weight

LOW = Level(activation=ActivationSpec(), weight=WeightSpec(granularity="per_tensor"))
HIGH = Level(activation=ActivationSpec(dtype="int16", symmetric=True), weight=WeightSpec(dtype="int16"))
LEVELS = {"high": HIGH, "low": LOW}
HELD_BACK, USED = 8, 6


def ranked(model: onnx.ModelProto) -> tuple[Draft, Sensitivity]:
    draft, toolkit = toolkit_for(model, config(weight={"granularity": "per_tensor"}), held_back=HELD_BACK)
    return draft, analyse(analysis(draft, toolkit, samples=USED))


def analysis(draft: Draft, toolkit: Toolkit, samples: int, levels: dict[str, Level] = LEVELS) -> Analysis:
    layers = find_layers(draft.graph, draft.plan)
    return analysis_of(draft, layers, levels, toolkit, samples=samples, output=0, verify=0)


def brute_force(draft: Draft, node: str, *, weight: bool, activation: bool) -> float:
    """Error power over signal power of the float network in which one layer alone is rounded."""
    proto = ir.to_proto(draft.prepared.model)
    free = [number for number in range(SAMPLES) if number >= HELD_BACK]
    feeds = {"x": samples()["x"][[free[k] for k in spread(len(free), USED)]]}
    expected = run_onnx(proto, feeds)["y"].astype(np.float64)
    layer = next(layer for layer in find_layers(draft.graph, draft.plan) if layer.node == node)
    graph_node = next(one for one in draft.graph if one.name == node)
    if weight:
        rounded = level_weight(graph_node, LOW)
        tensor = next(tensor for tensor in proto.graph.initializer if tensor.name == layer.weight)
        tensor.CopyFrom(onnx.numpy_helper.from_array(rounded, tensor.name))
    if activation:
        (source,) = layer.sources
        grid = draft.plan.activations[source].quantization
        clean = onnx.ModelProto()
        clean.CopyFrom(proto)
        clean.graph.output.append(onnx.ValueInfoProto(name=source))
        values = feeds["x"] if source == "x" else run_onnx(clean, feeds)[source]
        proto.graph.input.append(onnx.helper.make_tensor_value_info(f"{source}_rounded", 1, None))
        for one in proto.graph.node:
            one.input[:] = [f"{source}_rounded" if name == source else name for name in one.input]
        feeds = {**feeds, f"{source}_rounded": grid.fake(values)}
        if source == "x":
            del feeds["x"]
            del proto.graph.input[0]
    got = run_onnx(proto, feeds, optimized=False)["y"].astype(np.float64)
    return float(((got - expected) ** 2).sum() / (expected**2).sum())


@pytest.fixture(scope="module")
def usual() -> tuple[Draft, Sensitivity]:
    return ranked(chain_of_convolutions())


def test_errors_are_those_of_the_network_with_one_layer_rounded(usual: tuple[Draft, Sensitivity]) -> None:
    draft, found = usual
    for row in found.layers:
        kinds = row.levels["low"]
        assert kinds.weight == pytest.approx(brute_force(draft, row.node, weight=True, activation=False), rel=1e-3)
        assert kinds.activation == pytest.approx(brute_force(draft, row.node, weight=False, activation=True), rel=1e-3)


@pytest.mark.parametrize("batch", ["1", "8"])  # of the last one six are used, and two fill up
def test_a_fixed_batch_has_the_errors_of_a_free_one(usual: tuple[Draft, Sensitivity], batch: str) -> None:
    _, found = ranked(chain_of_convolutions(batch=batch))
    for one, other in zip(found.layers, usual[1].layers, strict=True):
        assert one.node == other.node
        assert one.levels["low"].both == pytest.approx(other.levels["low"].both, rel=1e-4)


def test_more_bits_leave_less_error_and_the_table_has_all_rows(usual) -> None:
    _, found = usual
    for row in found.layers:
        # 8 more bits: 2^16 times less power, were errors uniform
        assert row.levels["high"].weight < row.levels["low"].weight / 2000
        assert row.levels["high"].activation < row.levels["low"].activation / 2000
    # the table has a row per layer and level
    rows = list(csv.DictReader(io.StringIO(found.to_csv())))
    assert [row["node"] for row in rows[::2]] == [row.node for row in found.layers]
    assert {row["level"] for row in rows} == {"high", "low"}
    assert float(rows[1]["both"]) == pytest.approx(found.layers[0].levels["low"].both, rel=1e-5)
    assert Sensitivity.model_validate_json(found.model_dump_json()) == found


def test_branches_and_shared_inputs() -> None:
    draft, found = ranked(branches())
    layers = {row.node: row for row in found.layers}
    assert layers["b"].group == layers["c"].group != layers["a"].group
    # the tensor that both read is disturbed once, for both
    assert layers["b"].levels["low"].activation == layers["c"].levels["low"].activation
    expected = brute_force(draft, "b", weight=False, activation=True)
    assert layers["b"].levels["low"].activation == pytest.approx(expected, rel=1e-3)


def test_a_ranking_is_taken_over_for_the_same_network_samples_and_levels(tmp_path, monkeypatch) -> None:
    draft, toolkit = toolkit_for(chain_of_convolutions(), config(weight={"granularity": "per_tensor"}))
    toolkit = replace(
        toolkit, services=replace(toolkit.services, checkpoint=CheckpointStore(None, shared=Cache(tmp_path)))
    )
    first = sensitivity.analyse_once(analysis(draft, toolkit, samples=4))
    assert sensitivity.analyse_once(analysis(draft, toolkit, samples=5)).samples == 5

    def never(_: Analysis) -> Sensitivity:
        raise AssertionError("ranked again")

    monkeypatch.setattr(sensitivity, "analyse", never)
    assert sensitivity.analyse_once(analysis(draft, toolkit, samples=4)) == first
    other = {**LEVELS, "high": LOW}
    with pytest.raises(AssertionError, match="ranked again"):
        sensitivity.analyse_once(analysis(draft, toolkit, samples=4, levels=other))


@pytest.mark.slow
def test_the_head_of_the_ranking_is_checked_by_real_models(tmp_path: Path) -> None:
    spec = {"method": "sensitivity", "verify": 2, "samples": 8}
    settings = parse_config({"preset": "plain", "weight": {"granularity": "per_tensor"}, "algorithms": [spec]})
    result = quantize_file(tmp_path, chain_of_convolutions(outlier=2), samples(), settings)
    (outcome,) = result.report.algorithms
    assert outcome.kept and "'conv2'" in outcome.summary
    found = Sensitivity.model_validate_json(result.files[0].content)
    assert list(found.layers[0].levels) == ["A16W16", "A8W16", "A16W8", "A8W8"]
    assert [row.rank for row in found.layers] == [1, 2, 3, 4, 5]
    assert found.layers[0].levels["A8W8"].both > 5 * found.layers[1].levels["A8W8"].both  # the one with an outlier
    assert [row.verified is not None for row in found.layers] == [True, True, False, False, False]
    head = [row.verified for row in found.layers[:2]]
    assert head == sorted(head, reverse=True)
    others = [{"node": name} for name in ("conv0", "conv1", "conv3", "dense")]
    alone = {**settings.model_dump(mode="json"), "algorithms": [], "exclude": others}
    held_back = held_back_samples(SAMPLES)
    free = [number for number in range(SAMPLES) if number not in held_back]
    feeds = {"x": samples()["x"][[free[k] for k in spread(len(free), 8)]]}
    quantized = quantize_file(tmp_path, chain_of_convolutions(outlier=2), samples(), parse_config(alone)).model
    expected = run_onnx(chain_of_convolutions(outlier=2), feeds)["y"].astype(np.float64)
    got = run_onnx(quantized, feeds)["y"].astype(np.float64)
    assert found.layers[0].node == "conv2"
    assert head[0] == pytest.approx(((got - expected) ** 2).sum() / (expected**2).sum(), rel=1e-3)
    plain = parse_config({**settings.model_dump(mode="json"), "algorithms": []})
    without = quantize_file(tmp_path, chain_of_convolutions(outlier=2), samples(), plain)
    assert without_provenance(result.model) == without_provenance(without.model)


def test_a_level_in_float_has_no_errors_to_propagate() -> None:
    float_ = {"activation": "float32", "weight": "float32"}
    low = {"activation": {}, "weight": {}}
    with pytest.raises(ValidationError, match="cannot be float32"):
        SensitivityAnalysis.model_validate({"levels": {"low": low, "high": float_}})
    assert SensitivityAnalysis.model_validate({"levels": {"high": float_, "low": low}}).levels["high"].is_float

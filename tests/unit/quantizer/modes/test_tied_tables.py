"""A table that is the weight of a layer too: one tensor in the file, and the layer computes with its integers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.config import parse_config
from tests.support.each import each
from tests.support.encoder import Head, encoder, texts
from tests.unit.quantizer.modes.lookups import ROWS, emitted, large, rounded, table_of
from tests.unit.quantizer.toolbox import (
    config,
    make_model,
    normal,
    op_types,
    plan_for,
    quantize_file,
    run_onnx,
    sqnr_db,
)
from worker.quantizer.numerics.integer import IntegerGrid
from worker.quantizer.plan.types import QuantizationPlan

_HEADS = {"shared": "Gemm<transB=1>(x, table)", "copied": "MatMul(x, turned)"}
_ROW = {"symmetric": True, "granularity": "per_channel", "block_size": 4, "calibration": {"method": "minmax"}}
# Embeddings that are mixed as well.
_MIXED = (
    "(int64[N] ids, float[N,11] z) => (float[N,8] y, float[N,8] x) "
    "{ [look] x = Gather(table, ids) [mix] y = MatMul(z, table) }"
)
IDS = {"ids": np.arange(ROWS)}


def tied(head: str, columns: int = 8, opset: int = 17) -> onnx.ModelProto:
    table = table_of(columns=columns)
    weights = {"table": table} if head == "shared" else {"table": table, "turned": np.ascontiguousarray(table.T)}
    text = f"(int64[N] ids) => (float[N,{ROWS}] y) {{ [look] x = Gather(table, ids) [head] y = {_HEADS[head]} }}"
    return make_model(text, weights, opset=opset)


@each(
    ("head", "spec", "columns"),
    itertools.product(
        _HEADS,
        [
            {**_ROW, "dtype": "int8"},
            {**_ROW, "dtype": "uint8", "symmetric": False, "granularity": "per_tensor"},
            {**_ROW, "dtype": "uint4", "symmetric": False},
            {**_ROW, "dtype": "int4", "granularity": "per_block"},
            {**_ROW, "dtype": "uint4", "symmetric": False, "granularity": "per_block", "scale": "float16"},
        ],
        (7, 8),
    ),
)
def test_a_head_in_float_reads_the_tables_integers(head: str, spec: dict[str, Any], columns: int) -> None:
    found, planned = emitted(tied(head, columns), mode="weights_only", weight=spec)
    values = rounded(table_of(columns=columns), spec)[2].astype(np.float32)
    for optimized in (True, False):
        made = run_onnx(found, IDS, optimized=optimized)["y"]
        np.testing.assert_allclose(made, values @ values.T, rtol=1e-4, atol=1e-4)
    width = columns if spec["dtype"].endswith("8") else -(-columns // 2)
    (stored,) = large(found, ROWS * width)
    assert stored.shape == (ROWS, width) and all(
        entry.spec == planned.plan.weights["table"].spec for entry in planned.plan.weights.values()
    )


@each(("head", "symmetric", "granularity"), itertools.product(_HEADS, (True, False), ("per_channel", "per_tensor")))
def test_a_dynamic_head_computes_with_the_tables_integers(head: str, symmetric: bool, granularity: str) -> None:
    spec = {**_ROW, "dtype": "int8", "symmetric": symmetric, "granularity": granularity}
    found, _ = emitted(tied(head), mode="dynamic", weight=spec)
    x = rounded(table_of(), spec)[2].astype(np.float32)
    scale = np.float32((max(x.max(), 0) - min(x.min(), 0)) / 255)
    zero = np.round(-min(x.min(), 0) / scale)
    rows = (np.clip(np.rint(x / scale) + zero, 0, 255) - zero) * scale
    made = run_onnx(found, IDS)["y"]
    np.testing.assert_allclose(made, rows @ x.T, rtol=1e-4, atol=1e-4 * np.abs(made).max())
    assert [array.shape for array in large(found, ROWS * 8)] == [(ROWS, 8)]


@each("head", _HEADS)
def test_a_dynamic_head_keeps_8_bits_beside_a_table_of_4(head: str) -> None:
    """No integer product reads 4 bits: the table of embeddings has them, the layer has integers of its own."""
    table = {**_ROW, "dtype": "int4"}
    found, planned = emitted(tied(head), mode="dynamic", embedding=table, weight={**_ROW, "dtype": "int8"})
    float_head = run_onnx(tied(head), IDS)["y"]
    assert {entry.spec.dtype for entry in planned.plan.weights.values()} <= {"int4", "int8"}
    assert sqnr_db(float_head, run_onnx(found, IDS)["y"]) > 10


@each("granularity", ["per_channel", "per_tensor"])
def test_a_dynamic_layer_reads_a_table_as_it_lies_there(granularity: str) -> None:
    """The table is [inputs, outputs], so that nothing is transposed."""
    model = make_model(_MIXED, {"table": table_of()})
    found, _ = emitted(model, mode="dynamic", weight={**_ROW, "dtype": "int8", "granularity": granularity})
    feeds = {**IDS, "z": normal(ROWS, ROWS)}
    made, wanted = run_onnx(found, feeds), run_onnx(model, feeds)
    assert all(sqnr_db(wanted[name], made[name]) > 30 for name in wanted)
    assert [array.shape for array in large(found, ROWS * 8)] == [(ROWS, 8)] and "Transpose" not in op_types(found)


@each("head", _HEADS)
def test_a_head_in_float_keeps_the_table_it_shares(head: str) -> None:
    found, planned = emitted(tied(head), mode="weights_only", exclude=[{"node": "head"}])
    reason = planned.plan.nodes["look"].reason
    assert (reason.code if reason else None) == ("table-computed-with" if head == "shared" else None)
    assert len(large(found, ROWS * 8)) == (1 if head == "shared" else 2)


@pytest.mark.parametrize("what", ["integers", "scale"])
@pytest.mark.parametrize("mode", ["weights_only", "dynamic"])
def test_a_head_that_was_changed_is_stored_by_itself(mode: str, what: str) -> None:
    def change(plan: QuantizationPlan) -> None:
        entry = plan.weights["turned"]
        assert isinstance(entry.quantization, IntegerGrid) and entry.integers is not None
        if what == "scale":
            entry.quantization = replace(entry.quantization, scale=entry.quantization.scale * 2)
        else:
            entry.integers = entry.integers // 2

    spec = {**_ROW, "dtype": "int8"}
    found, _ = emitted(tied("copied"), change, mode=mode, weight=spec)
    steps, scale, values = rounded(table_of(), spec)
    head = 2 * values if what == "scale" else steps // 2 * scale
    assert sqnr_db(values @ head.T, run_onnx(found, IDS)["y"]) > 35
    assert sorted(array.shape for array in large(found, ROWS * 8)) == [(8, ROWS), (ROWS, 8)]


@pytest.mark.parametrize("granularity", ["per_channel", "per_block"])
def test_a_static_head_with_a_bias(granularity: str, tmp_path: Path) -> None:
    """An int32 bias has no grid beside a weight with scales per block, and is left in float."""
    text = "(int64[N] ids) => (float[N,11] y) { [look] x = Gather(table, ids) [head] y = Gemm<transB=1>(x, table, b) }"
    model = make_model(text, {"table": table_of(), "b": normal(ROWS)})
    settings = config(weight={**_ROW, "dtype": "int8"}, embedding={**_ROW, "dtype": "int8", "granularity": granularity})
    result = quantize_file(tmp_path, model, IDS, settings)
    assert sqnr_db(run_onnx(model, IDS)["y"], run_onnx(bytes(result.model), IDS)["y"]) > 25
    (code,) = (row.bias_reason_code for row in result.report.layers if row.name == "head")
    assert code == (None if granularity == "per_channel" else "bias-needs-integer-weight")


@pytest.mark.parametrize("dtype", ["bfp16", "float16", "int2"])
def test_a_table_whose_layer_has_another_kind_of_weight_stays_in_float(dtype: str) -> None:
    model, embedding = make_model(_MIXED, {"table": table_of()}), {"dtype": "int8"}
    _, planned = emitted(model, mode="weights_only", weight={"dtype": dtype}, embedding=embedding)
    reason = planned.plan.nodes["look"].reason
    assert reason is not None and reason.code == "table-dtype" and dtype in reason.words


@each("head", _HEADS)
def test_the_spec_of_embeddings_counts_for_what_is_tied_to_them(head: str) -> None:
    embedding = {**_ROW, "dtype": "int8"}
    weight = {**_ROW, "dtype": "uint4", "symmetric": False, "granularity": "per_block"}
    found, planned = emitted(tied(head), mode="weights_only", embedding=embedding, weight=weight)
    assert {entry.spec.dtype for entry in planned.plan.weights.values()} == {"int8"}
    values = rounded(table_of(), embedding)[2]
    np.testing.assert_allclose(run_onnx(found, IDS)["y"], values @ values.T, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("head", _HEADS)
def test_a_static_head_reads_the_table_as_well(head: str, tmp_path: Path) -> None:
    settings = config(weight={**_ROW, "dtype": "int8"})
    result = quantize_file(tmp_path, tied(head), IDS, settings)
    found = onnx.load_from_string(result.model)
    made, plain = run_onnx(found, IDS)["y"], run_onnx(found, IDS, optimized=False)["y"]
    step = np.ptp(plain) / 255
    assert np.abs(made - plain).max() <= 1.01 * step
    assert sqnr_db(run_onnx(tied(head), IDS)["y"], made) > 25
    assert [array.shape for array in large(found, ROWS * 8)] == [(ROWS, 8)]


@pytest.mark.parametrize("head", ["copied", "shared"])
@pytest.mark.parametrize("preset", ["int8_weights", "int8_dynamic", "int4_weights"])
def test_an_encoder_with_a_tied_head_is_a_quarter(head: Head, preset: str, tmp_path: Path) -> None:
    model = encoder(layers=1, hidden=32, heads=2, tokens=3000, positions=16, head=head)
    result = quantize_file(tmp_path, model, texts(4, 12, tokens=3000), parse_config({"preset": preset}))
    feeds = texts(4, 12, tokens=3000, seed=1)
    reference, made = run_onnx(model, feeds)["result"], run_onnx(bytes(result.model), feeds)["result"]
    assert sqnr_db(reference, made) > (10 if preset.startswith("int4") else 22)
    # the token table once, with a scale for each row; some 40 thousand bytes of everything else
    assert len(result.model) < 3000 * 32 + 4 * 3000 + 60_000
    assert {row.reason_code for row in result.report.layers if row.name.endswith("_of_ids")} == {None}


@each("head", _HEADS)
def test_a_rule_of_the_target_counts_for_a_tied_head(head: str) -> None:
    """CPUs without VNNI add products of 8 bits in 16, which saturates: the layer's integers keep to 7 bits."""
    _, plan = plan_for(tied(head), config(target_options={"x86_without_vnni": True}))
    head_weight = plan.weights["table" if head == "shared" else "turned"]
    assert head_weight.spec.reduce_range and plan.nodes["look"].quantized
    assert plan.weights["table"].spec.reduce_range == (head == "shared")


# --- rounding that learns ---


def test_rounding_that_learns_beats_plain_rounding_of_weights(tmp_path: Path) -> None:
    generator = np.random.default_rng(0)
    weights = {"a": generator.normal(0, 0.2, (24, 32)), "b": generator.normal(0, 0.2, (32, 10))}
    text = "(float[N,24] x) => (float[N,10] y) { [one] h = MatMul(x, a) r = Relu(h) [two] y = MatMul(r, b) }"
    model = make_model(text, {name: array.astype(np.float32) for name, array in weights.items()})
    mixing = generator.normal(0, 1, (6, 24))
    data = (generator.normal(0, 1, (300, 6)) @ mixing).astype(np.float32)
    learned, new = {"x": data[:200]}, {"x": data[200:]}
    reference, errors = run_onnx(model, new)["y"], {}
    for name, steps in (("plain", []), ("learned", [{"method": "adaround"}])):
        settings = config(mode="weights_only", weight={**_ROW, "dtype": "int4"}, algorithms=steps)
        result = quantize_file(tmp_path, model, learned, settings)
        errors[name] = float(np.square(run_onnx(bytes(result.model), new)["y"] - reference).mean())
    assert errors["learned"] < 0.7 * errors["plain"]


_LEARNING = {
    "by moments": {"method": "adaround"},
    "by gradients": {"method": "adaround", "solver": "gradient", "num_iterations": 8},
    "adaquant": {"method": "adaquant", "num_iterations": 8},
}


@pytest.mark.parametrize("learning", _LEARNING.values(), ids=_LEARNING)
@pytest.mark.parametrize("head", _HEADS)
def test_rounding_that_learns_leaves_tied_tables_alone(head: str, learning: dict[str, Any], tmp_path: Path) -> None:
    settings = config(mode="weights_only", weight={**_ROW, "dtype": "int4"}, algorithms=[learning])
    result = quantize_file(tmp_path, tied(head), {"ids": np.resize(np.arange(ROWS), 64)}, settings)
    found = onnx.load_from_string(result.model)
    values = rounded(table_of(), {**_ROW, "dtype": "int4"})[2]
    np.testing.assert_allclose(run_onnx(found, IDS)["y"], values @ values.T, rtol=1e-4, atol=1e-3)
    assert [array.shape for array in large(found, ROWS * 4)] == [(ROWS, 4)]

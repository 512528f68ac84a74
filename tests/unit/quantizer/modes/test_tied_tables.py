"""A table that is the weight of a layer too: one tensor in the file, and the layer computes with its integers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from tests.support.each import each
from tests.unit.quantizer.modes.test_embeddings import ROWS, emitted, large, rounded, table_of
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
_HALF_SCALES = {"symmetric": False, "granularity": "per_block", "scale": "float16"}
IDS = {"ids": np.arange(ROWS)}


def tied(head: str, columns: int = 8, opset: int = 17) -> onnx.ModelProto:
    table = table_of(columns=columns)
    weights = {"table": table} if head == "shared" else {"table": table, "turned": np.ascontiguousarray(table.T)}
    text = f"(int64[N] ids) => (float[N,{ROWS}] y) {{ [look] x = Gather(table, ids) [head] y = {_HEADS[head]} }}"
    return make_model(text, weights, opset=opset)


@each(
    ("head", "spec", "columns"),
    [
        *(("shared", {**_ROW, "dtype": "int8"}, columns) for columns in (7, 8)),
        ("copied", {**_ROW, "dtype": "uint8", "symmetric": False, "granularity": "per_tensor"}, 8),
        ("shared", {**_ROW, "dtype": "uint4", "symmetric": False}, 7),
        ("copied", {**_ROW, "dtype": "int4", "granularity": "per_block"}, 7),
        *((head, {**_ROW, "dtype": "uint4", **_HALF_SCALES}, 8) for head in _HEADS),
    ],
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


@each("granularity", ["per_channel", "per_tensor"])
def test_a_dynamic_layer_reads_a_table_as_it_lies_there(granularity: str) -> None:
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


@each("dtype", ["bfp16", "float16", "int2"])
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


@each("weight", ["table", "twin"])
def test_a_bias_stays_in_float_beside_a_table_in_blocks(weight: str) -> None:
    text = f"[look] x = Gather(table, ids) [head] y = Gemm<transB=1>(x, {weight}, bias)"
    arrays = {"bias": normal(ROWS)} | {name: table_of() for name in ("table", weight)}
    model = make_model(f"(int64[N] ids) => (float[N,{ROWS}] y) {{ {text} }}", arrays)
    embedding = {**_ROW, "dtype": "int8", "granularity": "per_block"}
    _, plan = plan_for(model, config(embedding=embedding, weight={**_ROW, "dtype": "int8"}))
    assert {entry.spec.granularity for entry in plan.weights.values()} == {"per_block"}
    reason = plan.biases["head"].reason
    assert reason is not None and reason.code == "bias-needs-integer-weight"


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


@each("head", _HEADS)
def test_a_rule_of_the_target_counts_for_a_tied_head(head: str) -> None:
    """CPUs without VNNI add products of 8 bits in 16, which saturates: the layer's integers keep to 7 bits."""
    _, plan = plan_for(tied(head), config(target_options={"x86_without_vnni": True}))
    head_weight = plan.weights["table" if head == "shared" else "turned"]
    assert head_weight.spec.reduce_range and plan.nodes["look"].quantized
    assert plan.weights["table"].spec.reduce_range == (head == "shared")


_LEARNING = {
    "by moments": ("shared", {"method": "adaround"}),
    "by gradients": ("copied", {"method": "adaround", "solver": "gradient", "num_iterations": 8}),
    "adaquant": ("shared", {"method": "adaquant", "num_iterations": 8}),
}


@pytest.mark.parametrize(("head", "learning"), _LEARNING.values(), ids=_LEARNING)
def test_rounding_that_learns_leaves_tied_tables_alone(head: str, learning: dict[str, Any], tmp_path: Path) -> None:
    settings = config(mode="weights_only", weight={**_ROW, "dtype": "int4"}, algorithms=[learning])
    result = quantize_file(tmp_path, tied(head), {"ids": np.resize(np.arange(ROWS), 64)}, settings)
    found = onnx.load_from_string(result.model)
    values = rounded(table_of(), {**_ROW, "dtype": "int4"})[2]
    np.testing.assert_allclose(run_onnx(found, IDS)["y"], values @ values.T, rtol=1e-4, atol=1e-3)
    assert [array.shape for array in large(found, ROWS * 4)] == [(ROWS, 4)]

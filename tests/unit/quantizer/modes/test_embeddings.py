"""Tables that rows are looked up of: stored as integers in every mode, restored exactly, or left with a reason."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from service.contracts.config import parse_config
from service.contracts.errors import CalibrationMissingError, InvalidConfigError
from tests.support.each import each
from tests.unit.quantizer.modes.lookups import ROWS, arrays, emitted, indices, lookup, rounded, table_of
from tests.unit.quantizer.toolbox import config, make_model, normal, op_types, quantize_file, run_onnx
from worker.quantizer.inspection import inspect_nodes
from worker.quantizer.pipeline import quantize
from worker.quantizer.run.interface import SilentRun

_TYPES = [("int8", True), ("int8", False), ("uint8", False), ("int4", True), ("int4", False), ("uint4", False)]
_GRANULARITIES = ["per_tensor", "per_channel", "per_block"]
_MODES = ["static", "dynamic", "weights_only"]


def spec_of(dtype: str, symmetric: bool, granularity: str, **more: Any) -> dict[str, Any]:
    method = {"calibration": {"method": "minmax"}}
    return {"dtype": dtype, "symmetric": symmetric, "granularity": granularity, "block_size": 4, **method, **more}


@pytest.mark.parametrize("opset", [17, 21])
@each(("kind", "granularity", "columns"), itertools.product(_TYPES, _GRANULARITIES, (7, 8)))
def test_rows_are_what_numpy_makes_of_the_table(
    kind: tuple[str, bool], granularity: str, columns: int, opset: int
) -> None:
    spec, ids = spec_of(*kind, granularity), indices(8, 3)
    found, _ = emitted(lookup(columns, opset), mode="weights_only", embedding=spec)
    steps, _, values = rounded(table_of(columns=columns), spec)
    np.testing.assert_array_equal(run_onnx(found, {"ids": ids})["y"], values[ids])
    np.testing.assert_array_equal(run_onnx(found, {"ids": ids}, optimized=False)["y"], values[ids])
    # the integers are there, and nothing else of the table's size
    width = columns if kind[0].endswith("8") else -(-columns // 2)
    floats = [array for array in arrays(found).values() if array.dtype.kind == "f"]
    (stored,) = [array for array in arrays(found).values() if array.shape == (ROWS, width) and array.dtype.kind in "iu"]
    assert stored.dtype.itemsize == 1 and all(array.size < steps.size for array in floats)


@each(
    ("mode", "kind", "granularity"),
    itertools.product(_MODES, [("int8", True), ("uint4", False)], ["per_channel", "per_block"]),
)
def test_every_mode_stores_tables(mode: str, kind: tuple[str, bool], granularity: str) -> None:
    spec, ids = spec_of(*kind, granularity), indices(4, 3)
    found, planned = emitted(lookup(7), mode=mode, embedding=spec)
    assert planned.plan.nodes["look"].quantized and not planned.plan.activations
    np.testing.assert_array_equal(run_onnx(found, {"ids": ids})["y"], rounded(table_of(columns=7), spec)[2][ids])


@pytest.mark.parametrize("mode", _MODES)
def test_a_job_stores_the_table_and_says_so(mode: str, tmp_path: Path) -> None:
    columns = 64
    model = make_model(
        "(int64[N] ids) => (float[N,5] y) { [look] x = Gather(table, ids) [fc] y = MatMul(x, w) }",
        {"table": table_of(200, columns), "w": normal(columns, 5)},
    )
    data = {"ids": np.arange(200)}
    result = quantize_file(tmp_path, model, data, config(mode=mode, embedding=spec_of("int8", True, "per_channel")))
    row = next(row for row in result.report.layers if row.name == "look")
    assert (row.weight_dtype, row.reason) == ("int8", None)
    # integers, and at most a scale of 4 bytes for each row
    assert 200 * columns <= (row.weight_bytes or 0) <= 200 * columns + 4 * 200
    assert row.float_weight_bytes == 4 * 200 * columns


def test_one_table_is_stored_once_for_all_that_look_it_up() -> None:
    model = make_model(
        "(int64[N] a, int64[N,2] b) => (float[N,8] y, float[N,2,8] z) "
        "{ [one] y = Gather(table, a) [two] z = Gather(table, b) }",
        {"table": table_of()},
    )
    spec = spec_of("uint4", False, "per_channel")
    found, planned = emitted(model, mode="weights_only", embedding=spec)
    ids = {"a": np.arange(ROWS), "b": indices(ROWS, 2)}
    made, values = run_onnx(found, ids), rounded(table_of(), spec)[2]
    for name, index in (("y", "a"), ("z", "b")):
        np.testing.assert_array_equal(made[name], values[ids[index]])
    assert len(planned.plan.weights) == 1 and sum(array.size == ROWS * 4 for array in arrays(found).values()) == 1


# --- what the user asks for ---


@each(
    ("settings", "dtype"),
    [
        ({}, "int8"),  # as weights are
        ({"weight": {"dtype": "int4"}}, "int4"),
        ({"weight": {"dtype": "int4"}, "embedding": {"dtype": "uint8", "symmetric": False}}, "uint8"),
        ({"overrides": [{"match": {"node": "look"}, "weight": {"dtype": "uint4"}}]}, "uint4"),
        (
            {
                "embedding": {"dtype": "int4"},
                "overrides": [{"match": {"op_type": "Gather"}, "weight": {"dtype": "int16"}}],
            },
            "int16",
        ),
        (
            {"embedding": {"dtype": "int4"}, "overrides": [{"match": {"node": "fc"}, "weight": {"dtype": "int16"}}]},
            "int4",
        ),
    ],
)
def test_overrides_win_over_embedding_and_embedding_over_weight(settings: dict[str, Any], dtype: str) -> None:
    model = make_model(
        "(int64[N] ids) => (float[N,5] y) { [look] x = Gather(table, ids) [fc] y = MatMul(x, w) }",
        {"table": table_of(), "w": normal(8, 5)},
    )
    _, planned = emitted(model, mode="weights_only", **settings)
    assert planned.plan.weights["table"].spec.dtype == dtype


_FLOAT: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "computed with": (
        "(int64[N] ids, float[11,8] x) => (float[N,8] y, float[11,8] z) "
        "{ [look] y = Gather(table, ids) [sum] z = Add(x, table) }",
        {},
        "table-computed-with",
    ),
    "rotary": (
        "(int64[N] ids, float[N,4,8] x) => (float[N,4,8] y) "
        "{ [look] c = Gather(table, ids) u = Unsqueeze(c, one) y = Mul(x, u) }",
        {},
        "factors-looked-up",
    ),
    "excluded": (
        "(int64[N] ids) => (float[N,8] y) { [look] y = Gather(table, ids) }",
        {"exclude": [{"op_type": "Gather"}]},
        "excluded",
    ),
    "2 bits": (
        "(int64[N] ids) => (float[N,8] y) { [look] y = Gather(table, ids) }",
        {"embedding": {"dtype": "int2"}},
        "table-dtype",
    ),
    "not finite": ("(int64[N] ids) => (float[N,8] y) { [look] y = Gather(bad, ids) }", {}, "weight-not-finite"),
    "scaled by a constant": (
        "(int64[N] ids) => (float[N,8] y) { [look] c = Gather(table, ids) y = Mul(c, root) }",
        {},
        None,
    ),
}


@each(("case", "mode"), itertools.product(_FLOAT, _MODES))
def test_what_stays_in_float_has_its_reason(case: str, mode: str) -> None:
    text, settings, code = _FLOAT[case]
    constants = {
        "table": table_of(),
        "bad": np.full((ROWS, 8), np.nan, np.float32),
        "one": np.asarray([1]),
        "root": np.asarray(8, np.float32),
    }
    used = {name: array for name, array in constants.items() if f"({name}" in text or f", {name})" in text}
    model = make_model(text, used)
    nodes, _ = inspect_nodes(ir.from_proto(model), config(mode=mode, **settings))
    found = next(node for node in nodes if node.name == "look")
    assert (found.reason_code, found.quantized) == (code, code is None)


def test_a_table_in_float_is_left_as_it_is() -> None:
    text, _, _ = _FLOAT["computed with"]
    model = make_model(text, {"table": table_of()})
    found, planned = emitted(model, mode="weights_only")
    feeds = {"ids": np.arange(ROWS), "x": normal(ROWS, 8)}
    assert not planned.plan.weights and "Gather" in op_types(found)
    for name, array in run_onnx(model, feeds).items():
        np.testing.assert_array_equal(run_onnx(found, feeds)[name], array)


# --- scales of 16 bits ---


@each(("kind", "granularity"), itertools.product([("int8", True), ("uint4", False)], _GRANULARITIES))
def test_scales_of_16_bits_are_stored_so_and_rounded_with(kind: tuple[str, bool], granularity: str) -> None:
    spec, ids = spec_of(*kind, granularity, scale="float16"), indices(8, 3)
    found, _ = emitted(lookup(8, 21), mode="weights_only", embedding=spec)
    _, scales, values = rounded(table_of(), spec)
    stored = [array for array in arrays(found).values() if array.dtype.kind == "f"]
    assert [array.dtype for array in stored] == [np.float16]
    np.testing.assert_array_equal(np.unique(stored[0].astype(np.float32)), np.unique(scales))
    np.testing.assert_array_equal(run_onnx(found, {"ids": ids})["y"], values[ids])


@each("granularity", _GRANULARITIES)
def test_weights_of_layers_have_scales_of_16_bits_too(granularity: str) -> None:
    weights, feeds = table_of(8, 6).T.copy(), {"x": np.eye(6, dtype=np.float32)}
    model = make_model("(float[N,6] x) => (float[N,8] y) { [fc] y = MatMul(x, w) }", {"w": weights}, opset=21)
    spec = spec_of("uint4", False, granularity, scale="float16")
    found, _ = emitted(model, mode="weights_only", weight=spec)
    assert [a.dtype for a in arrays(found).values() if a.dtype.kind == "f"] == [np.float16]
    # blocks run along the inputs, which are the columns of the transposed weight
    np.testing.assert_array_equal(run_onnx(found, feeds, optimized=False)["y"], rounded(weights.T, spec)[2].T)


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"weight": {"scale": "float16"}}, "mode static has no scales of 16 bits"),
        ({"mode": "dynamic", "embedding": {"scale": "float16"}}, "mode dynamic has no scales of 16 bits"),
        (
            {"mode": "weights_only", "algorithms": [{"method": "smooth_quant"}]},
            "no algorithms but awq, bias_correction, adaround, adaquant",
        ),
        (
            {"mode": "dynamic", "algorithms": [{"method": "awq"}]},
            "no algorithms but smooth_quant, bias_correction, adaround, adaquant",
        ),
        ({"mode": "float16", "algorithms": [{"method": "adaround"}]}, "runs no algorithms"),
        ({"mode": "weights_only", "weight": {"dtype": "float16", "scale": "float16"}}, "needs an integer dtype"),
    ],
)
def test_contradictions_are_refused(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(InvalidConfigError, match=says):
        config(**settings)


def test_rounding_that_learns_is_refused_without_data(tmp_path: Path) -> None:
    onnx.save(lookup(), tmp_path / "float.onnx")
    preset = parse_config({"preset": "int4_weights_accurate"})
    with pytest.raises(CalibrationMissingError) as refusal:
        quantize(tmp_path / "float.onnx", preset, None, None, run=SilentRun(), threads=1)
    assert refusal.value.code == "calibration-missing" and "adaround learns from it" in str(refusal.value)

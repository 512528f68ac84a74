"""Tables that rows are looked up of: stored as integers in every mode, restored exactly, or left with a reason."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import numpy_helper

from service.contracts.config import parse_config
from service.contracts.errors import CalibrationMissingError, InvalidConfigError
from tests.support.each import each
from tests.unit.quantizer.toolbox import config, make_model, normal, quantize_file, rng, run_onnx
from worker.quantizer.graph.serialized import copy_of, to_bytes
from worker.quantizer.modes.planning import Planned, inspect_nodes, plan_model, prepare_model
from worker.quantizer.modes.registry import MODES
from worker.quantizer.pipeline import quantize
from worker.quantizer.plan.parameters import Parameters
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.run.interface import SilentRun

ROWS = 11
LIMITS = {"int8": (-128, 127), "uint8": (0, 255), "int4": (-8, 7), "uint4": (0, 15)}


def table_of(rows: int = ROWS, columns: int = 8) -> np.ndarray:
    """Rows of very different size, one of them positive, none of zeros."""
    table = normal(rows, columns, seed=5) * np.exp(rng(6).uniform(-3, 3, (rows, 1)))
    table[1] = np.abs(table[1])
    return table.astype(np.float32)


def lookup(columns: int = 8, opset: int = 17) -> onnx.ModelProto:
    return make_model(
        f"(int64[N,3] ids) => (float[N,3,{columns}] y) {{ [look] y = Gather(table, ids) }}",
        {"table": table_of(columns=columns)},
        opset=opset,
    )


def indices(samples: int = 4, *shape: int, rows: int = ROWS) -> np.ndarray:
    """Every row, some of them counted from the end."""
    found = rng(1).permutation(np.arange(samples * int(np.prod(shape))) % (2 * rows) - rows)
    return found.reshape(samples, *shape)


def emitted(
    model: onnx.ModelProto, edit: Callable[[QuantizationPlan], None] = lambda plan: None, **settings: Any
) -> tuple[onnx.ModelProto, Planned]:
    """The quantized model of a config that plans no activations, and its plan, which ``edit`` may change at last."""
    chosen, copy = config(**settings), onnx.ModelProto()
    copy.CopyFrom(model)
    prepared, _ = prepare_model(ir.from_proto(copy), chosen)
    planned = plan_model(prepared, chosen)
    Parameters(prepared.graph, planned.plan).fill()
    edit(planned.plan)
    made = MODES[chosen.mode].form.emit(copy_of(prepared.model), planned.plan).model
    prepared.restore_interface(made)
    found = onnx.load_from_string(to_bytes(made))
    onnx.checker.check_model(found)
    return found, planned


def rounded(table: np.ndarray, spec: Mapping[str, Any]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """What MinMax makes of a table [rows, columns]: steps from the zero point, scale of every element, values."""
    width = {"per_tensor": table.size, "per_channel": table.shape[1]}.get(spec["granularity"], spec.get("block_size"))
    source = table.reshape(1, -1) if spec["granularity"] == "per_tensor" else table
    low, high = np.zeros((2, *source.shape))
    for first in range(0, source.shape[1], width or 1):
        part = np.s_[:, first : first + (width or 1)]
        low[part] = np.minimum(source[part].min(1, keepdims=True), 0)
        high[part] = np.maximum(source[part].max(1, keepdims=True), 0)
    smallest, largest = LIMITS[spec["dtype"]]
    if spec["symmetric"]:
        high = np.maximum(-low, high)
        low, smallest = -high, -largest if smallest else 0
    scale = (high - low) / (largest - smallest)
    if spec.get("scale") == "float16":
        scale = scale.astype(np.float16).astype(np.float64)
    zero = np.round((smallest + largest) / 2) if spec["symmetric"] else np.round(smallest - low / scale)
    scale, zero = scale.astype(np.float32), np.clip(zero, smallest, largest).astype(np.float32)
    steps = np.clip(np.rint(source / scale), smallest - zero, largest - zero)
    return tuple(array.reshape(table.shape) for array in (steps, scale, steps * scale))


def arrays(model: onnx.ModelProto) -> dict[str, np.ndarray]:
    return {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}


def large(model: onnx.ModelProto, elements: int) -> list[np.ndarray]:
    """The constants of that many elements or more, as they are stored; indices left out."""
    return [array for array in arrays(model).values() if array.size >= elements and array.dtype != np.int64]


_TYPES = [("int8", True), ("int8", False), ("uint8", False), ("int4", True), ("int4", False), ("uint4", False)]
_GRANULARITIES = ["per_tensor", "per_channel", "per_block"]
_MODES = ["static", "dynamic", "weights_only"]


def spec_of(dtype: str, symmetric: bool, granularity: str, **more: Any) -> dict[str, Any]:
    method = {"calibration": {"method": "minmax"}}
    return {"dtype": dtype, "symmetric": symmetric, "granularity": granularity, "block_size": 4, **method, **more}


@pytest.mark.slow
@each(
    ("kind", "granularity", "columns", "opset"),
    [
        (kind, granularity, columns, opset)
        for kind, granularity in itertools.product(_TYPES, _GRANULARITIES)
        for columns, opset in ((7, 21), (8, 17))
    ],
)
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


def test_overrides_win_over_embedding_and_embedding_over_weight() -> None:
    model = make_model(
        "(int64[N] ids) => (float[N,5] y) { [look] x = Gather(table, ids) [fc] y = MatMul(x, w) }",
        {"table": table_of(), "w": normal(8, 5)},
    )
    int4, uint8 = {"dtype": "int4"}, {"dtype": "uint8", "symmetric": False}
    cases: list[tuple[dict[str, Any], str]] = [
        ({}, "int8"),  # as weights are
        ({"weight": int4}, "int4"),
        ({"weight": int4, "embedding": uint8}, "uint8"),
        ({"overrides": [{"match": {"node": "look"}, "weight": {"dtype": "uint4"}}]}, "uint4"),
        ({"embedding": int4, "overrides": [{"match": {"op_type": "Gather"}, "weight": {"dtype": "int16"}}]}, "int16"),
    ]
    for settings, dtype in cases:
        _, planned = emitted(model, mode="weights_only", **settings)
        assert planned.plan.weights["table"].spec.dtype == dtype


_LOOKED_UP = "(int64[N] ids) => (float[N,8] y) { [look] y = Gather(table, ids) }"
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
    "excluded": (_LOOKED_UP, {"exclude": [{"op_type": "Gather"}]}, "excluded"),
    "2 bits": (_LOOKED_UP, {"embedding": {"dtype": "int2"}}, "table-dtype"),
    "not finite": (_LOOKED_UP.replace("table", "bad"), {}, "weight-not-finite"),
    "scaled": ("(int64[N] ids) => (float[N,8] y) { [look] c = Gather(table, ids) y = Mul(c, root) }", {}, None),
}


@each(
    ("case", "mode"), [*((case, "static") for case in _FLOAT), ("computed with", "dynamic"), ("rotary", "weights_only")]
)
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


def test_contradictions_are_refused() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"weight": {"scale": "float16"}}, "mode static has no scales of 16 bits"),
        ({"mode": "dynamic", "embedding": {"scale": "float16"}}, "mode dynamic has no scales of 16 bits"),
        ({"mode": "weights_only", "weight": {"dtype": "float16", "scale": "float16"}}, "needs an integer dtype"),
    ]
    for settings, says in cases:
        with pytest.raises(InvalidConfigError, match=says):
            config(**settings)


def test_rounding_that_learns_is_refused_without_data(tmp_path: Path) -> None:
    onnx.save(lookup(), tmp_path / "float.onnx")
    preset = parse_config({"preset": "int4_weights_accurate"})
    with pytest.raises(CalibrationMissingError) as refusal:
        quantize(tmp_path / "float.onnx", preset, None, None, run=SilentRun(), threads=1)
    assert refusal.value.code == "calibration-missing" and "adaround learns from it" in str(refusal.value)

"""Does a dataset, a selection or a preparation fit a model? Dtypes, ranks, shapes, layouts, labels and names."""

from __future__ import annotations

from itertools import product
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.compatibility import (
    can_feed,
    check_batch,
    check_dataset,
    check_float,
    check_selected,
    fed_shape,
    fixed_batch,
)
from service.contracts.config import parse_config
from service.contracts.dataset import ArraySummary, DatasetSummary, InputSpec, LabelSummary, PreprocessingSpec
from service.contracts.errors import (
    AlreadyQuantizedError,
    DatasetMismatchError,
    InvalidConfigError,
    UnsupportedModelError,
)
from service.contracts.model import ModelSummary, TensorInfo, Work
from service.contracts.preparation import PreparationSpec, brought_op_types, fixed_inputs
from service.estimates.prior import prior_of
from tests.support.each import each
from tests.unit.contracts.refusals import problems

IMAGENET = {"scale": 1 / 255, "mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)}


def tensor(name: str, dtype: str, *shape: int | str | None) -> TensorInfo:
    return TensorInfo(name=name, dtype=dtype, shape=shape)


def model(*inputs: TensorInfo, outputs: tuple[TensorInfo, ...] = ()) -> ModelSummary:
    return ModelSummary(
        ir_version=8, opset={"ai.onnx": 17}, producer="", inputs=inputs, outputs=outputs, node_count=1, op_counts={},
        parameter_count=0, size_bytes=1, sha256="",
    )  # fmt: skip


def dataset(
    labels: tuple[int, int] | None = None, specs: Any = None, **arrays: tuple[str, tuple[int, ...]]
) -> DatasetSummary:
    found = {name: ArraySummary(dtype=dtype, shape=shape) for name, (dtype, shape) in arrays.items()}
    return DatasetSummary(
        format="npz",
        samples=4,
        arrays=found,
        labels=labels and LabelSummary(array="labels", count=4, minimum=labels[0], maximum=labels[1]),
        preprocessing=PreprocessingSpec(inputs=specs or {}),
        size_bytes=1,
        sha256="",
    )


def mismatch(m: ModelSummary, d: DatasetSummary) -> DatasetMismatchError:
    with pytest.raises(DatasetMismatchError) as caught:
        check_dataset(m, d, pointer="/calibration_dataset_id", role="calibration dataset")
    error = caught.value
    assert error.hint
    assert all(problem.pointer == "/calibration_dataset_id" for problem in error.errors)
    return error


def codes(error: DatasetMismatchError) -> list[str]:
    return [problem.code for problem in error.errors]


def floats(*shape: int | str | None) -> ModelSummary:
    """A model with the input x of floats."""
    return model(tensor("x", "float32", *shape))


IMAGE = floats("n", 3, 8, 8)


@pytest.mark.parametrize(
    ("m", "d"),
    [
        (IMAGE, dataset(x=("float32", (4, 3, 8, 8)))),
        (IMAGE, dataset(x=("float16", (4, 3, 8, 8)))),
        (IMAGE, dataset(x=("uint8", (4, 8, 8, 3)), specs={"x": InputSpec(layout="NHWC", **IMAGENET)})),
        (IMAGE, dataset(images=("uint8", (4, 8, 8, 3)), specs={"x": InputSpec(array="images", layout="NHWC")})),
        (floats(1, 3, 8, 8), dataset(x=("float32", (4, 3, 8, 8)))),
        (floats("n", 1, 8, 8), dataset(x=("uint8", (4, 8, 8)), specs={"x": InputSpec(layout="NHW")})),
        (floats("n", "c", None), dataset(x=("float32", (4, 17, 99)))),
        (model(TensorInfo(name="x", dtype="float32", shape=None)), dataset(x=("float32", (4, 17)))),
        (model(tensor("x", "int64", "n", 5)), dataset(x=("uint8", (4, 5)))),
        (model(tensor("state", "float32", 2, "n", 8)), dataset(state=("float32", (4, 2, 1, 8)))),
        (model(tensor("rate", "int64")), dataset(rate=("int64", (4,)))),
        (floats("n", 5), dataset(x=("float32", (4, 5)), unused=("int8", (4, 99)))),
        (model(), dataset()),
    ],
)  # fmt: skip
def test_fitting_datasets(m: ModelSummary, d: DatasetSummary) -> None:
    check_dataset(m, d)


@pytest.mark.parametrize(
    ("m", "d", "code", "says"),
    [
        (IMAGE, dataset(images=("float32", (4, 3, 8, 8))), "array-missing",
         r"input 'x' (float32[n, 3, 8, 8]) has no array 'x'; the calibration dataset contains 'images'"),
        (IMAGE, dataset(x=("float32", (4, 3, 8, 8)), specs={"x": InputSpec(array="y")}), "array-missing",
         "no array 'y'"),
        (IMAGE, dataset(x=("float32", (4, 3, 8, 8)), specs={"z": InputSpec()}), "input-unknown",
         "preprocessing names input 'z'; the model's inputs are 'x'"),
        (IMAGE, dataset(x=("uint8", (4, 3, 8, 8))), "dtype", "dtype is uint8, the model needs float32"),
        (IMAGE, dataset(x=("int64", (4, 3, 8, 8)), specs={"x": InputSpec(array="x")}), "dtype", "int64"),
        (model(tensor("x", "uint8", "n", 5)), dataset(x=("uint8", (4, 5)), specs={"x": InputSpec(scale=2.0)}), "dtype",
         "uint8"),
        (IMAGE, dataset(x=("float32", (4, 8, 8))), "rank", "rank is 3 ([4, 8, 8]), the model needs 4 ([n, 3, 8, 8])"),
        (IMAGE, dataset(x=("float32", (4, 8, 8)), specs={"x": InputSpec(layout="NHWC")}), "rank",
         "layout NHWC does not fit shape [4, 8, 8]"),
        (IMAGE, dataset(x=("float32", (4, 8, 8, 3))), "shape",
         "axis 1 is 8, the model needs 3 (fed shape [4, 8, 8, 3], needed [n, 3, 8, 8])"),
        (IMAGE, dataset(x=("float32", (4, 5, 3, 8, 9))), "shape", "axis 4 is 9"),
        (model(tensor("state", "float32", 2, "n", 8)), dataset(state=("float32", (4, 3, 1, 8))), "shape",
         "axis 1 is 3"),
        (IMAGE, dataset(x=("uint8", (4, 8, 8, 3)), specs={"x": InputSpec(layout="NHWC", mean=(1.0, 2.0))}),
         "preprocessing", "mean has 2 values for 3 channels"),
        (floats("n", 5), dataset(x=("float32", (4, 5)), specs={"x": InputSpec(std=(1.0, 2.0))}),
         "preprocessing", "mean and std per channel need a layout"),
    ],
)  # fmt: skip
def test_mismatches_say_which_and_how(m: ModelSummary, d: DatasetSummary, code: str, says: str) -> None:
    error = mismatch(m, d)
    assert code in codes(error)
    assert says in error.detail


@pytest.mark.parametrize(
    ("m", "d", "says"),
    [
        (IMAGE, dataset(x=("float32", (4, 8, 8, 3))), "set layout NHWC in"),
        (IMAGE, dataset(x=("float32", (4, 3, 8, 8)), specs={"x": InputSpec(layout="NHWC")}), "set layout NCHW in"),
        (floats("n", 8, 8, 3), dataset(x=("float32", (4, 3, 8, 8))), "set layout NCHW and model_layout NHWC"),
        (floats("n", 1, 8, 9), dataset(x=("float32", (4, 8, 9))), "set layout NHW in"),
        (floats("n", 98, 40), dataset(x=("float32", (4, 40, 98))), ".transpose(0, 2, 1)"),
        (IMAGE, dataset(x=("float32", (4, 3, 8, 9))), None),
        (IMAGE, dataset(x=("float32", (4, 192))), None),
        (floats("n", 5), dataset(x=("float32", (4, 6))), None),
    ],
)  # fmt: skip
def test_the_order_of_axes_is_spoken_of_where_it_is_the_matter(
    m: ModelSummary, d: DatasetSummary, says: str | None
) -> None:
    hint = str(mismatch(m, d).hint)
    if says is None:
        assert "layout" not in hint
        assert "transpose" not in hint
    else:
        assert says in hint


@given(
    shape=st.lists(st.integers(2, 5), min_size=3, max_size=3),
    wanted=st.lists(st.integers(2, 5), min_size=3, max_size=3),
)
def test_an_order_is_told_if_and_only_if_there_is_one(shape: list[int], wanted: list[int]) -> None:
    m, d = floats("n", *wanted), dataset(x=("float32", (4, *shape)))
    if shape == wanted:
        check_dataset(m, d)
        return
    hint = str(mismatch(m, d).hint)
    assert ("in another order" in hint) == (sorted(shape) == sorted(wanted))


def test_every_input_has_its_own_problem() -> None:
    m = model(tensor("a", "float32", "n", 5), tensor("b", "int64", "n"), tensor("c", "float32", "n", 2))
    error = mismatch(m, dataset(a=("uint8", (4, 6)), c=("float32", (4, 2))))
    assert codes(error) == ["dtype", "shape", "array-missing"]


@pytest.mark.parametrize(
    ("output", "labels", "fits"),
    [
        (tensor("y", "float32", "n", 10), (0, 9), True),
        (tensor("y", "float32", "n", 10), (0, 10), False),
        (tensor("y", "float32", "n", 10), (-1, 9), False),
        (tensor("y", "float32", "n", "classes"), (0, 999), True),
        (tensor("y", "float32", "n", 1), (0, 1), True),  # a single score is no list of classes
        (tensor("y", "int64", "n"), (0, 77), True),
        (TensorInfo(name="y", dtype="float32", shape=None), (0, 77), True),
        (TensorInfo(name="y", dtype="other", shape=None), (0, 77), True),
    ],
)
def test_labels_have_to_lie_within_the_classes(output: TensorInfo, labels: tuple[int, int], fits: bool) -> None:
    m, d = model(tensor("x", "float32", "n", 5), outputs=(output,)), dataset(labels=labels, x=("float32", (4, 5)))
    if fits:
        check_dataset(m, d)
    else:
        error = mismatch(m, d)
        assert codes(error) == ["labels-out-of-range"]
        assert f"[{labels[0]}, {labels[1]}]" in error.detail


SMALL = ["uint8", "int8", "int16"]
FLOATS = ["float16", "float32", "float64"]
WORDS = ["bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "bfloat16", *FLOATS]


@each(("stored", "wanted"), list(product(WORDS, [*WORDS, "string", "other"])))
def test_what_feeds_an_input_loses_no_value(stored: str, wanted: str) -> None:
    allowed = can_feed(stored, wanted, InputSpec())
    # computed values need a float input
    assert can_feed(stored, wanted, InputSpec(scale=0.5)) == (wanted in FLOATS)
    if wanted in ("string", "other"):
        assert not allowed
        return
    have, want = (np.dtype(getattr(ml_dtypes, word, None) or word) for word in (stored, wanted))
    if stored == wanted:
        assert allowed
    if allowed:
        assert np.can_cast(have, want, "safe")
        assert have.kind == want.kind or "V" in (have.kind, want.kind) or {have.kind, want.kind} == {"i", "u"}
    # an explicit entry is consent to read small integers as floats
    if stored in SMALL and wanted in FLOATS:
        assert can_feed(stored, wanted, InputSpec(array="x"))
        assert not allowed


@pytest.mark.parametrize(
    ("layout", "model_layout", "shape", "fed"),
    [
        (None, "NCHW", (4, 7), (4, 7)),
        ("NHWC", "NCHW", (4, 8, 9, 3), (4, 3, 8, 9)),
        ("NHWC", "NHWC", (4, 8, 9, 3), (4, 8, 9, 3)),
        ("NCHW", "NHWC", (4, 3, 8, 9), (4, 8, 9, 3)),
        ("NHW", "NCHW", (4, 8, 9), (4, 1, 8, 9)),
        ("NHW", "NHWC", (4, 8, 9), (4, 8, 9, 1)),
        ("NHW", "NCHW", (4, 8, 9, 1), None),
        ("NHWC", "NCHW", (4, 8, 9), None),
    ],
)
def test_fed_shapes(layout: Any, model_layout: Any, shape: tuple[int, ...], fed: tuple[int, ...] | None) -> None:
    assert fed_shape(InputSpec(layout=layout, model_layout=model_layout), shape) == fed


def varying(
    shape: tuple[int | None, ...], shortest: tuple[int, ...], longest: tuple[int, ...], specs: Any = None
) -> DatasetSummary:
    array = ArraySummary(dtype="float32", shape=shape, shortest=shortest, longest=longest)
    return dataset(specs=specs).model_copy(update={"arrays": {"x": array}})


def test_axes_that_vary_feed_axes_that_are_free() -> None:
    d = varying((4, None, 80), (3, 80), (9, 80))
    for axes in (("n", "length", 80), (None, None, None), (4, None, 80)):
        check_dataset(floats(*axes), d)
    check_dataset(model(TensorInfo(name="x", dtype="float32", shape=None)), d)
    whole = varying((4, 1, None, 80), (1, 3, 80), (1, 9, 80))
    check_dataset(floats(1, None, 80), whole)
    pictures = varying((4, None, None, 3), (5, 6, 3), (50, 60, 3), {"x": InputSpec(layout="NHWC", **IMAGENET)})
    check_dataset(floats("n", 3, "h", "w"), pictures)
    m, empty = floats("n", "length", 80), varying((4, None, 80), (0, 80), (9, 80))  # a cache before the first step
    both = model(*m.inputs, m.inputs[0].model_copy(update={"name": "y"}))
    check_dataset(both, empty.model_copy(update={"arrays": {**empty.arrays, "y": d.arrays["x"]}}))


@pytest.mark.parametrize(
    ("m", "d", "code", "says", "hint"),
    [
        (floats("n", 8, 80), varying((4, None, 80), (3, 80), (9, 80)), "shape-varies",
         "axis 1 varies from 3 to 9, the model needs 8 (fed shape [4, ?, 80], needed [n, 8, 80])", "dynamic"),
        (floats(1, 8, 80), varying((4, 1, None, 80), (1, 3, 80), (1, 9, 80)), "shape-varies",
         "axis 2 varies from 3 to 9", "dynamic"),
        (floats("n", 3, 8, "w"),
         varying((4, None, None, 3), (5, 6, 3), (50, 60, 3), {"x": InputSpec(layout="NHWC")}), "shape-varies",
         "axis 2 varies from 5 to 50, the model needs 8", "dynamic"),
        (floats("n", 80, "length"), varying((4, None, 80), (3, 80), (9, 80)), "shape-varies",
         "axis 1 varies from 3 to 9, the model needs 80", ".transpose(0, 2, 1)"),
        (floats("n", "length", 80), varying((4, None, 80), (0, 80), (9, 80)), "sample-empty",
         "a sample is empty: the shortest axes are [0, 80]", "Leave"),
        (floats("n", "c", "h", "w"),
         varying((4, 8, 8, None), (8, 8, 1), (8, 8, 3), {"x": InputSpec(layout="NHWC", **IMAGENET)}), "preprocessing",
         "mean has 3 values for a varying number of channels", "one value"),
    ],
)  # fmt: skip
def test_samples_of_different_shapes_are_refused_in_words(
    m: ModelSummary, d: DatasetSummary, code: str, says: str, hint: str
) -> None:
    error = mismatch(m, d)
    assert codes(error)[0] == code
    assert says in error.detail
    assert hint in str(error.hint)


# --- config against model --------------------------------------------------------------------------------------------

NAMED = IMAGE.model_copy(
    update={
        "op_counts": {"MatMul": 1, "Add": 1, "Conv": 1},
        "node_names": ("stem", "dense", "bias", "Conv_0"),
        "prepared_op_types": ("Gemm",),
    }
)


@pytest.mark.parametrize(
    "settings",
    [
        {"include": [{"node": "dense"}], "exclude": [{"op_type": "Gemm"}, {"node": "bias"}]},
        {"exclude": [{"op_type": "MatMul"}, {"node": "Conv_0"}]},
        {"exclude": [{"from_nodes": ["stem"], "to_nodes": ["dense", "bias"]}]},
        {"exclude": [{"regex": "no such node"}, {"tensor": "t"}, {"module": "m"}]},  # the engine's to judge
        {"overrides": [{"match": {"node": "stem"}}]},
    ],
)
def test_selectors_may_name_what_the_uploaded_or_the_prepared_model_has(settings: Any) -> None:
    check_selected(parse_config(settings), NAMED)
    # a summary without names leaves them to the engine
    check_selected(parse_config({"exclude": [{"node": "stemm"}, {"op_type": "Nothing"}]}), IMAGE)


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"exclude": [{"node": "stemm"}]}, [("/config/exclude/0/node", "no node 'stemm'; did you mean 'stem'?")]),
        ({"include": [{"op_type": "conv"}]}, [("/config/include/0/op_type", "'conv'; did you mean 'Conv'")]),
        (
            {"include": [{"op_type": "Conv"}, {"node": "Dense"}], "exclude": [{"node": "zzzzzzzz"}]},
            [("/config/include/1/node", "did you mean 'dense'?"), ("/config/exclude/0/node", "no node 'zzzzzzzz'")],
        ),
        (
            {"exclude": [{"from_nodes": ["stem", "stam"], "to_nodes": ["bia"]}]},
            [("/config/exclude/0/from_nodes/1", "'stem'?"), ("/config/exclude/0/to_nodes/0", "'bias'?")],
        ),
        ({"overrides": [{"match": {"node": "x"}}]}, [("/config/overrides/0/match/node", "no node 'x'")]),
    ],
)
def test_names_that_the_model_does_not_have(settings: Any, told: list[tuple[str, str]]) -> None:
    with pytest.raises(InvalidConfigError) as caught:
        check_selected(parse_config(settings), NAMED)
    assert caught.value.hint
    assert [problem.pointer for problem in caught.value.errors] == [pointer for pointer, _ in told]
    assert {problem.code for problem in caught.value.errors} == {"selector-unmatched"}
    for problem, (_, words) in zip(caught.value.errors, told, strict=True):
        assert words in problem.message


UNDONE = ("QuantizeLinear", "QLinearConv", "MatMulInteger", "QGemm", "MatMulNBits")
LASTING = ("QAttention", "QLinearTanh", "QOrderedMatMul", "MatMulBnb4")


@each(("op_type", "can_be_undone"), [*product(UNDONE, [True]), *product(LASTING, [False])])
def test_a_quantized_model_is_refused_by_its_operators_unless_they_can_be_undone(
    op_type: str, can_be_undone: bool
) -> None:
    check_float(NAMED, pointer="/model_id")
    alone = NAMED.model_copy(update={"op_counts": {"Conv": 1, op_type: 2}})
    with pytest.raises(AlreadyQuantizedError, match=f"it contains 2 {op_type}") as caught:
        check_float(alone, pointer="/model_id")
    assert caught.value.errors[0].pointer == "/model_id"
    mixed = NAMED.model_copy(update={"op_counts": {"Conv": 1, "DequantizeLinear": 3, op_type: 2}})
    with pytest.raises(AlreadyQuantizedError) as caught:
        check_float(mixed, PreparationSpec(), pointer="/model_id")
    assert ("set preparation.dequantize" in str(caught.value.hint)) == can_be_undone
    if can_be_undone:
        check_float(mixed, PreparationSpec(dequantize=True), pointer="/model_id")
        return
    with pytest.raises(AlreadyQuantizedError) as caught:
        check_float(mixed, PreparationSpec(dequantize=True), pointer="/model_id")
    assert caught.value.where["op_type"] == op_type
    assert f"preparation.dequantize cannot undo {op_type}" in str(caught.value.hint)


# --- preparation: every switch is taken, shapes are judged before any job runs ---

INPUTS = (tensor("x", "float32", "N", 3, None, None), TensorInfo(name="a/b", dtype="int64", shape=None))
MODEL = model(*INPUTS).model_copy(update={"op_counts": {"Split": 1}, "node_names": ("part",), "prepared_op_types": ()})


@each("name", list(PreparationSpec.model_fields))
def test_every_setting_is_taken(name: str) -> None:
    default = getattr(PreparationSpec(), name)
    other: dict[str, Any] = {"opset": 21, "fixed_shapes": {"x": (1, 3, 8, 8)}}
    settings = parse_config({"preparation": {name: other.get(name, not default)}})
    assert getattr(settings.preparation, name) == other.get(name, not default)


def test_shapes_are_taken_over_by_name_unless_a_length_is_out_of_bounds() -> None:
    for length in (0, 2**31):
        found = problems({"preparation": {"fixed_shapes": {"x": [length, 3, 8, 8]}}})
        assert found[0][0] == "/config/preparation/fixed_shapes/x/0"
    spec = PreparationSpec(fixed_shapes={"a/b": (5,), "x": (2, 3, 8, 9)})
    assert [(one.name, one.shape) for one in fixed_inputs(INPUTS, spec)] == [("x", (2, 3, 8, 9)), ("a/b", (5,))]
    assert fixed_inputs(INPUTS, PreparationSpec()) == INPUTS


def test_every_shape_that_does_not_fit_is_named() -> None:
    spec = PreparationSpec(fixed_shapes={"x": (1, 4, 8, 8), "y~": (1,), "a/b": (1, 2, 3)})
    with pytest.raises(InvalidConfigError) as caught:
        fixed_inputs(INPUTS, spec)
    assert [(problem.pointer, problem.message) for problem in caught.value.errors] == [
        ("/config/preparation/fixed_shapes/x", "input 'x': axis 1 is 3 in the model and cannot become 4"),
        ("/config/preparation/fixed_shapes/y~0", "input 'y~': the model has no such input; it has 'x', 'a/b'"),
    ]


def test_selectors_may_name_what_a_switch_brings_in() -> None:
    selecting = {"exclude": [{"op_type": "Slice"}]}
    check_selected(parse_config({**selecting, "preparation": {"split_to_slice": True}}), MODEL)
    with pytest.raises(InvalidConfigError, match="no operator 'Slice'"):
        check_selected(parse_config(selecting), MODEL)
    assert brought_op_types(PreparationSpec()) == frozenset()


def _work(largest: int) -> Work:
    return Work(multiply_adds=1, activation_bytes=largest, largest_activation_bytes=largest, nodes=1, matrices=())


def test_a_fixed_batch_that_no_memory_takes_is_refused_with_its_size() -> None:
    fixed, free = (model(tensor("x", "float32", axis, 3, 224, 224)) for axis in (100_000, "N"))
    assert (fixed_batch(fixed), fixed_batch(free), fixed_batch(model())) == (100_000, 1, 1)
    with pytest.raises(UnsupportedModelError) as caught:
        check_batch(fixed, _work(2**40), pointer="/model_id")
    assert "The batch axis is fixed at 100000: one forward pass needs at least 2,048.0 GiB" in str(caught.value)
    assert "dynamic batch axis" in (caught.value.hint or "")
    check_batch(fixed, _work(2**30))
    check_batch(free, _work(2**40))
    with pytest.raises(UnsupportedModelError, match=r"needs at least 56\.1 GiB of memory, 1\.0 GiB are"):
        check_batch(fixed, most_bytes=2**30)


def test_a_fixed_batch_is_not_counted_twice_in_an_estimate() -> None:
    config, data = parse_config({"preset": "int8"}), dataset(x=("float32", (64, 3, 8, 8)))
    one, many = (
        prior_of(
            config,
            model(tensor("x", "float32", batch, 3, 8, 8)).model_copy(update={"work": _work(batch * 10**8)}),
            data,
            None,
        )
        for batch in (1, 32)
    )
    # a pass holds 32 samples in place of a batch of 4
    assert many.memory_bytes < 8 * one.memory_bytes

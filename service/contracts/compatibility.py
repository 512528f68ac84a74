"""Do a model, a dataset and a config fit each other? One rule for the API server and the engine."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from math import prod

from service.contracts.base import MOST_SUGGESTIONS, nearest_name
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import COLOURS, ArraySummary, DatasetSummary, InputSpec, LabelSummary
from service.contracts.errors import (
    AlreadyQuantizedError,
    DatasetMismatchError,
    FieldProblem,
    InvalidConfigError,
    UnsupportedModelError,
)
from service.contracts.feeding import mapping_hint
from service.contracts.model import ModelSummary, TensorInfo, Work
from service.contracts.preparation import PreparationSpec, brought_op_types
from service.contracts.preprocessing import ANY_INPUT
from service.contracts.selectors import NodeSelector, OpTypeSelector, SubgraphSelector
from service.contracts.validation import MOST_TOLD

PAIR_OP_TYPES = frozenset({"QuantizeLinear", "DequantizeLinear"})
# What preparation.dequantize knows how to make float; whether it can is for the node in question to tell.
UNDONE_OP_TYPES = PAIR_OP_TYPES | {
    "ConvInteger",
    "DynamicQuantizeLSTM",
    "DynamicQuantizeLinear",
    "DynamicQuantizeMatMul",
    "GatherBlockQuantized",
    "MatMulInteger",
    "MatMulIntegerToFloat",
    "MatMulNBits",
    "QGemm",
    "QLinearAdd",
    "QLinearAveragePool",
    "QLinearConcat",
    "QLinearConv",
    "QLinearGlobalAveragePool",
    "QLinearLeakyRelu",
    "QLinearMatMul",
    "QLinearMul",
    "QLinearReduceMean",
    "QLinearSigmoid",
    "QLinearSoftmax",
    "QLinearWhere",
}
# Others of onnxruntime's own domain, and all whose names begin so.
QUANTIZED_OP_TYPES = (
    UNDONE_OP_TYPES
    | {"MatMulBnb4", "MatMulFpQ4", "MatMulInteger16", "MulInteger", "QAttention"}
    | {"QEmbedLayerNormalization", "QMoE", "ReduceSumInteger"}
)
_QUANTIZED_PREFIXES = ("QLinear", "QOrdered")
# Axes of an array whose orders are tried.
_MOST_PERMUTED = 6

# Stored type -> input types that it may be fed to without losing a value.
_SAFE_CASTS = {
    "float16": {"float32", "float64"},
    "float32": {"float64"},
    "bfloat16": {"float32", "float64"},
    "uint8": {"int16", "int32", "int64"},
    "int8": {"int16", "int32", "int64"},
    "int16": {"int32", "int64"},
    "uint16": {"int32", "int64"},
    "int32": {"int64"},
}
_FLOATS = {"float16", "float32", "float64"}


_HINTS = {
    "array-missing": "Store one array per model input under its name, or map arrays in a preprocessing spec.",
    "dtype": "Store the model's dtype (numpy: .astype), or give scale, mean and std to normalise it.",
    "rank": "Store samples along the first axis, each of the model's input shape.",
    "shape": "Store samples of the model's input shape.",
    "shape-varies": "Pad or crop the samples to the model's length, or export the model with this axis dynamic.",
    "sample-empty": "Leave samples without a single element out.",
    "preprocessing": "Give mean and std one value, or one per channel, and a layout.",
    "labels-out-of-range": "Labels are class numbers from 0 on, in the order of the model's outputs.",
    "labels-from-one": "The labels are probably counted from 1: subtract 1 from each.",
}


def check_dataset(
    model: ModelSummary,
    dataset: DatasetSummary,
    *,
    pointer: str = "",
    role: str = "dataset",
    labels_of_first: bool = True,
) -> None:
    """Raise unless every model input is fed by an array of a fitting dtype, rank and shape, and labels are in range.

    Args:
        model: facts of the model.
        dataset: facts of the data.
        pointer: of the dataset in the request.
        role: the dataset in words.
        labels_of_first: class labels belong to the model's first output; with declared metrics, those judge them.

    Raises:
        DatasetMismatchError: one problem per input (or per unknown preprocessing entry) that does not fit.
    """
    problems: list[FieldProblem] = []
    hints: list[str | None] = []

    def fail(code: str, message: str, hint: str | None = None) -> None:
        problems.append(FieldProblem(pointer=pointer, code=code, message=message))
        hints.append(hint)

    names = {tensor.name for tensor in model.inputs}
    for name in dataset.preprocessing.inputs:
        if name not in names and name != ANY_INPUT:
            fail("input-unknown", f"preprocessing names input {name!r}; the model's inputs are {_listed(names)}")
    for tensor in model.inputs:
        spec = dataset.preprocessing.input(tensor.name)
        stored = spec.array or tensor.name
        array = dataset.arrays.get(stored)
        if array is None:
            fail(
                "array-missing",
                f"input {tensor.name!r} ({tensor.dtype}{_shape(tensor.shape)}) has no array {stored!r}; the "
                f"{role} contains {_listed(dataset.arrays)}",
                _mapping_hint(model, dataset, tensor),
            )
            continue
        for code, message in _mismatches(tensor, spec, array, alone=len(model.inputs) == 1):
            fits = _order_hint(tensor, spec, array) if code in ("rank", "shape", "shape-varies") else None
            fail(code, f"input {tensor.name!r} from array {stored!r}: {message}", fits)
    labels = dataset.labels
    if labels_of_first and labels is not None and labels.are_classes and not problems:
        found = _out_of_range(labels, class_count(model.outputs[0]) if model.outputs else None)
        if found is not None:
            from_one = labels.minimum == 1 and _out_of_range(labels, (class_count(model.outputs[0]) or 0) + 1) is None
            fail("labels-out-of-range", found, _HINTS["labels-from-one"] if from_one else None)
    if problems:
        raise DatasetMismatchError(
            "; ".join(problem.message for problem in problems),
            errors=tuple(problems),
            hint=hints[0] or _HINTS.get(problems[0].code, _HINTS["array-missing"]),
            role=None if role == "dataset" else role,
        )


def _mapping_hint(model: ModelSummary, dataset: DatasetSummary, tensor: TensorInfo) -> str | None:
    """How the one array that feeds no other input is fed to this one; None: there is none, or a choice."""
    fed = {dataset.preprocessing.input(one.name).array or one.name for one in model.inputs if one is not tensor}
    left = [name for name in dataset.arrays if name not in fed]
    if len(left) != 1:
        return None
    return mapping_hint(dataset.preprocessing, tensor, left[0], dataset.arrays[left[0]])


# A forward pass that needs more than this runs on no worker.
MOST_PASS_BYTES = 256 * 2**30
_FLOAT_BYTES = 4


def fixed_batch(model: ModelSummary) -> int:
    """Samples of one forward pass where the batch axis is fixed; 1 where it is dynamic, or unknown."""
    sizes = {tensor.shape[0] if tensor.shape else None for tensor in model.inputs}
    size = sizes.pop() if len(sizes) == 1 else None
    return size if isinstance(size, int) and size > 0 else 1


def check_batch(
    model: ModelSummary, work: Work | None = None, *, most_bytes: int = MOST_PASS_BYTES, pointer: str = ""
) -> None:
    """Refuse a model whose fixed batch axis makes one forward pass larger than memory, before any is used.

    Args:
        model: facts of the model.
        work: of its graph; default: the model's.
        most_bytes: of memory that there is.
        pointer: of the model in the request.

    Raises:
        UnsupportedModelError: the pass cannot be run.
    """
    batch = fixed_batch(model)
    if batch <= 1:
        return
    shapes = [tensor.shape for tensor in (*model.inputs, *model.outputs) if tensor.shape]
    needed = _FLOAT_BYTES * sum(prod(axis if isinstance(axis, int) else 1 for axis in shape) for shape in shapes)
    work = work or model.work
    if work is not None:  # a layer's input and its result exist at the same time
        needed = max(needed, 2 * work.largest_activation_bytes)
    if needed <= most_bytes:
        return
    raise UnsupportedModelError(
        f"The batch axis is fixed at {batch}: one forward pass needs at least {needed / 2**30:,.1f} GiB of memory, "
        f"{most_bytes / 2**30:,.1f} GiB are available.",
        hint="Export the model with a dynamic batch axis, or with a batch size of 1.",
        pointer=pointer,
    )


def is_quantized_op(op_type: str) -> bool:
    """True for operators that a float model does not contain."""
    return op_type in QUANTIZED_OP_TYPES or op_type.startswith(_QUANTIZED_PREFIXES)


def check_float(model: ModelSummary, spec: PreparationSpec | None = None, *, pointer: str) -> None:
    """Refuse a model that holds quantized operators before any work is done.

    Args:
        model: facts of the model.
        spec: how it will be prepared; with ``dequantize``, operators that can be made float are let through.
        pointer: of the model in the request.

    Raises:
        AlreadyQuantizedError: pointing at the model.
    """
    found, beyond = quantized_ops(model.op_counts), staying_ops(model.op_counts)
    if not found or (spec is not None and spec.dequantize and not beyond):
        return
    raise AlreadyQuantizedError(
        f"The model is already quantized: it contains {_counted(model.op_counts, found)}.",
        hint=already_quantized_hint(beyond),
        pointer=pointer,
        op_type=(beyond or found)[0],
    )


def quantized_ops(op_counts: Mapping[str, int]) -> list[str]:
    """Operators of a model that a float model does not contain."""
    return sorted(op for op in op_counts if is_quantized_op(op))


def staying_ops(op_counts: Mapping[str, int]) -> list[str]:
    """Quantized operators of a model that ``preparation.dequantize`` cannot undo."""
    return [op for op in quantized_ops(op_counts) if op not in UNDONE_OP_TYPES]


def model_notes(op_counts: Mapping[str, int]) -> tuple[str, ...]:
    """What to know about a model before a job runs: that it is already quantized."""
    found = quantized_ops(op_counts)
    if not found:
        return ()
    hint = already_quantized_hint(found)
    words = f"The model is already quantized: it contains {_counted(op_counts, found)}."
    return (f"{words} To quantize, {hint[:1].lower()}{hint[1:]}",)


def _counted(op_counts: Mapping[str, int], ops: Iterable[str]) -> str:
    return ", ".join(f"{op_counts[op]} {op}" for op in ops)


def already_quantized_hint(op_types: Iterable[str]) -> str:
    """What to do with a model that holds these quantized operators, or these among others."""
    hint = "Use the float model that it was created from"
    stays = sorted({op for op in op_types if op not in UNDONE_OP_TYPES})
    if stays:
        return f"{hint}; preparation.dequantize cannot undo {', '.join(stays)}."
    return f"{hint}, or set preparation.dequantize to make it float again."


def check_selected(config: QuantizationConfig, model: ModelSummary, *, pointer: str = "/config") -> None:
    """Refuse selectors that name a node or an operator which neither the uploaded nor the prepared model has.

    Only what the summary tells is judged: nodes called by name, and operators. Regular expressions, tensors and modules
    are left to the engine, and so is every name of a model whose summary lists none.

    Raises:
        InvalidConfigError: one problem per name, with the nearest that there is; the first of many.
    """
    if model.node_names is None or model.prepared_op_types is None:
        return
    names = set(model.node_names)
    op_types = {*model.op_counts, *model.prepared_op_types, *brought_op_types(config.preparation)}
    problems: list[FieldProblem] = []
    for place, kind, wanted in _named(config):
        if len(problems) == MOST_TOLD:
            break
        known = names if kind == "node" else op_types
        if wanted not in known:
            message = f"the model has no {'node' if kind == 'node' else 'operator'} {wanted!r}"
            near = nearest_name(wanted, known) if len(problems) < MOST_SUGGESTIONS else None
            message += f"; did you mean {near!r}?" if near else ""
            problems.append(FieldProblem(pointer=pointer + place, code="selector-unmatched", message=message))
    if problems:
        raise InvalidConfigError(
            "; ".join(problem.message for problem in problems[:5]),
            errors=tuple(problems),
            hint="GET /v1/models/{id} lists the names under summary.node_names and summary.op_counts.",
        )


def _named(config: QuantizationConfig) -> Iterator[tuple[str, str, str]]:
    """Every node name and operator that the config's selectors call: pointer, "node" or "op_type", the name."""
    placed = [
        *((f"/include/{k}", selector) for k, selector in enumerate(config.include)),
        *((f"/exclude/{k}", selector) for k, selector in enumerate(config.exclude)),
        *((f"/overrides/{k}/match", override.match) for k, override in enumerate(config.overrides)),
    ]
    for place, selector in placed:
        if isinstance(selector, NodeSelector):
            yield f"{place}/node", "node", selector.node
        elif isinstance(selector, OpTypeSelector):
            yield f"{place}/op_type", "op_type", selector.op_type
        elif isinstance(selector, SubgraphSelector):
            for word, ends in (("from_nodes", selector.from_nodes), ("to_nodes", selector.to_nodes)):
                yield from ((f"{place}/{word}/{k}", "node", name) for k, name in enumerate(ends))


def _mismatches(tensor: TensorInfo, spec: InputSpec, array: ArraySummary, *, alone: bool) -> list[tuple[str, str]]:
    """Codes and words; ``alone`` if the model reads nothing else."""
    found: list[tuple[str, str]] = []
    if not can_feed(array.dtype, tensor.dtype, spec):
        found.append(("dtype", f"dtype is {array.dtype}, the model needs {tensor.dtype}"))
    shape = fed_shape(spec, array.shape)
    if shape is None:
        found.append(("rank", f"layout {spec.layout} does not fit shape {_shape(array.shape)}"))
        return found
    if tensor.shape is None:
        return found
    whole = len(shape) == len(tensor.shape) + 1
    if len(shape) != len(tensor.shape) and not whole:
        found.append(
            (
                "rank",
                (
                    f"rank is {len(shape)} ({_shape(shape)}), the model needs {len(tensor.shape)} "
                    f"({_shape(tensor.shape)})"
                ),
            )
        )
        return found
    have, want = (shape[1:], tensor.shape) if whole else (shape[1:], tensor.shape[1:])
    for axis, (got, wanted) in enumerate(zip(have, want, strict=True), start=1):
        if isinstance(wanted, int) and wanted >= 0 and got != wanted:
            told = f"is {got}" if got is not None else f"varies from {_lengths(spec, array, axis)}"
            found.append(
                (
                    "shape" if got is not None else "shape-varies",
                    f"axis {axis} {told}, the model needs {wanted} (fed shape {_shape(shape)}, needed "
                    f"{_shape(tensor.shape)})",
                )
            )
            break
    # keys and values of a decoder are empty before its first step
    if alone and array.shortest is not None and 0 in array.shortest:
        found.append(("sample-empty", f"a sample is empty: the shortest axes are {_shape(array.shortest)}"))
    if spec.layout is not None:
        channels = 1 if spec.layout == "NHW" else array.shape[3 if spec.layout == "NHWC" else 1]
        for word, values in (("mean", spec.mean), ("std", spec.std)):
            if len(values) not in (1, channels):
                count = "a varying number of" if channels is None else channels
                found.append(("preprocessing", f"{word} has {len(values)} values for {count} channels"))
        if spec.channel_order == "bgr" and channels != COLOURS:
            found.append(("preprocessing", f"channel_order bgr takes {COLOURS} channels, and there are {channels}"))
    elif len(spec.mean) > 1 or len(spec.std) > 1:
        found.append(("preprocessing", "mean and std per channel need a layout"))
    return found


def _lengths(spec: InputSpec, array: ArraySummary, axis: int) -> str:
    """What an axis of the fed samples varies between, in words."""
    ends = (fed_shape(spec, (None, *(axes or ()))) for axes in (array.shortest, array.longest))
    return " to ".join(str(end[axis]) for end in ends if end is not None)


def _order_hint(tensor: TensorInfo, spec: InputSpec, array: ArraySummary) -> str | None:
    """How the array would fit with its axes in another order; None if it would not."""
    if tensor.shape is None:
        return None
    for wanted, layout in itertools.product(("NCHW", "NHWC"), ("NHWC", "NCHW", "NHW")):
        other = spec.model_copy(update={"layout": layout, "model_layout": wanted})
        shape = fed_shape(other, array.shape)
        if shape is not None and (layout, wanted) != (spec.layout, spec.model_layout) and _fits(shape, tensor.shape):
            model = "" if wanted == "NCHW" else f" and model_layout {wanted}"
            return f"The axes fit in another order: set layout {layout}{model} in the preprocessing spec."
    if len(array.shape) != len(tensor.shape) or len(array.shape) > _MOST_PERMUTED:
        return None
    for order in itertools.permutations(range(1, len(array.shape))):
        if _fits((array.shape[0], *(array.shape[axis] for axis in order)), tensor.shape):
            return f"The axes fit in another order: store the array transposed, numpy: .transpose{(0, *order)}."
    return None


def _fits(shape: tuple[int | None, ...], wanted: tuple[int | str | None, ...]) -> bool:
    """Are the axes behind the samples those that the model wants? Axes that it leaves free fit any length."""
    if len(shape) != len(wanted):
        return False
    fixed = (isinstance(axis, int) and axis >= 0 for axis in wanted[1:])
    return all(not known or got == axis for got, axis, known in zip(shape[1:], wanted[1:], fixed, strict=True))


def can_feed(stored: str, wanted: str, spec: InputSpec) -> bool:
    """May an array of dtype ``stored`` feed an input of dtype ``wanted``? Computed values need a float input."""
    if not spec.is_identity:
        return wanted in _FLOATS
    return (
        stored == wanted
        or wanted in _SAFE_CASTS.get(stored, set())
        # An explicit preprocessing entry is consent to read small integers as floats.
        or (spec != InputSpec() and stored in {"uint8", "int8", "int16"} and wanted in _FLOATS)
    )


def fed_shape(spec: InputSpec, shape: tuple[int | None, ...]) -> tuple[int | None, ...] | None:
    """Shape after the layout change, first axis = samples; None if the layout does not fit.

    Axes that differ from sample to sample are None.
    """
    if spec.layout is None:
        return shape
    if len(shape) != len(spec.layout):
        return None
    if spec.layout == "NHW":
        return (shape[0], 1, *shape[1:]) if spec.model_layout == "NCHW" else (*shape, 1)
    if spec.layout == spec.model_layout:
        return shape
    n, a, b, c = shape
    return (n, c, a, b) if spec.layout == "NHWC" else (n, b, c, a)


def _out_of_range(labels: LabelSummary, classes: int | None) -> str | None:
    """What is wrong with class numbers for a model with this number of classes, None being unknown."""
    lowest, highest = labels.minimum or 0, labels.maximum or 0
    if lowest >= 0 and (classes is None or highest < classes):
        return None
    bound = f"[0, {classes - 1}]" if classes is not None else "[0, ...)"
    return f"labels are in [{lowest}, {highest}]; the model has classes {bound}"


def class_count(output: TensorInfo) -> int | None:
    """Number of classes if the output looks like scores: float, rank 2 or more, static last axis."""
    if output.dtype not in _FLOATS or not output.shape or len(output.shape) < 2:
        return None
    last = output.shape[-1]
    return last if isinstance(last, int) and last > 1 else None


def _shape(shape: tuple[int | str | None, ...] | None) -> str:
    return "[?]" if shape is None else "[" + ", ".join("?" if axis is None else str(axis) for axis in shape) + "]"


def _listed(names: object) -> str:
    return ", ".join(repr(name) for name in sorted(names)) or "nothing"  # type: ignore[call-overload]

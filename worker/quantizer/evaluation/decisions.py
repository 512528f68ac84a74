"""What ``samples.npz`` tells of every sample: both models' decisions and metrics; which outputs hold class scores."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from service.contracts.dataset import LabelSummary
from service.contracts.evaluation import AGREEMENT, EvaluationSpec
from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import Agreement, ClassMetric, Perplexity
from service.contracts.metrics.kinds import RegressionMetric
from worker.quantizer.evaluation.certainty import CONFIDENT
from worker.quantizer.evaluation.contributions import Contributions, Sums
from worker.quantizer.evaluation.metrics.base import Array
from worker.quantizer.evaluation.metrics.distances import are_probabilities, class_scores, decisions, log_softmax
from worker.quantizer.graph.values import is_constant
from worker.quantizer.ops.table import Family, Scores, operator
from worker.quantizer.run.interface import Run
from worker.quantizer.run.services import ExtraFile, ExtraFiles

FILE_NAME = "samples.npz"
# No time of day: the same decisions give the same bytes.
_EPOCH = (1980, 1, 1, 0, 0, 0)
# A probability of 0 is a loss as large as that of the smallest float32, not an endless one.
_LEAST = float(np.finfo(np.float32).tiny)
# Of metrics that add up many columns, such as one per class, the work is bounded: samples times columns.
_MOST_ELEMENTS = 1 << 28
_FEWEST_SAMPLES = 3
# What all columns may take; the first metrics come first.
_MOST_BYTES = 64 * 1024 * 1024


class OutputDecisions:
    """OutputDecisions of one output that gives one class per sample.

    Attributes:
        fits: as long as it does.
    """

    def __init__(self) -> None:
        self.fits = True
        self._columns: dict[str, list[Array]] = {
            name: []
            for name in ("float_class", "quantized_class", "float_confidence", "float_loss", "quantized_loss", "label")
        }

    def update(self, reference: Array, twin: Array, labels: Array | None) -> None:
        """Take in one batch of both models' output without samples that fill up, and class numbers if there are any."""
        before, after = decisions(reference), decisions(twin)
        self.fits = self.fits and before is not None and after is not None and _one_each(reference, before)
        self.fits = self.fits and _holds(before) and _holds(after)
        if not self.fits or before is None or after is None:
            return
        samples = len(before)
        fitting = labels is not None and labels.size == samples and labels.dtype.kind in "iu" and _holds(labels)
        label = labels.reshape(samples) if fitting and labels is not None else None
        expected = before.reshape(samples)
        if label is not None:
            expected = np.where(label < 0, expected, label)
        columns = {
            "float_class": _narrowed(before.reshape(samples)),
            "quantized_class": _narrowed(after.reshape(samples)),
            "float_confidence": _confidence(reference, samples),
            "float_loss": _loss(reference, expected),
            "quantized_loss": _loss(twin, expected),
            "label": None if label is None else _narrowed(label),
        }
        for name, column in columns.items():
            if column is None:
                self._columns.pop(name, None)
            elif name in self._columns:
                self._columns[name].append(column)

    @property
    def arrays(self) -> dict[str, Array]:
        """By name, each [sample]; empty where the output does not give one class per sample.

        ``index``, ``float_class`` and ``quantized_class``, int32 or, where a number does not fit, int64;
        ``float_confidence``, the float model's probability of its own decision, and ``float_loss``, ``quantized_loss``,
        the cross-entropy in nats with the label, or else with that decision, float32, where it gives scores; with
        labels also ``label``, ``float_correct`` and ``quantized_correct``: -1, 0 and 0 where a sample has none.
        """
        if not self.fits or not self._columns["float_class"]:
            return {}
        found = {name: np.concatenate(blocks) for name, blocks in self._columns.items()}
        arrays = {"index": np.arange(len(found["float_class"]), dtype=np.int32), **found}
        if "label" in arrays:
            for model in ("float", "quantized"):
                right = (arrays[f"{model}_class"] == arrays["label"]) & (arrays["label"] >= 0)
                arrays[f"{model}_correct"] = right.astype(np.uint8)
        return arrays

    @property
    def confident(self) -> Array | None:
        """Which samples the float model decided with at least 90 % of its probability, bool [sample]; None: unknown."""
        confidence = self.arrays.get("float_confidence")
        return None if confidence is None else confidence >= CONFIDENT


def metric_columns(contributions: Mapping[str, Contributions], samples: int) -> dict[str, Array]:
    """By name of the metric, what each sample says of it, in its unit: float64 [sample].

    These are Tukey's pseudo-values (1958), n f - (n - 1) f_i with f_i the metric without sample i: of a mean they are
    the samples' own values, of any other function of sums what the sample moves it by, and their mean is the metric,
    but for a bias of the order 1/n. Metrics that do not tell samples apart, or are undefined without one of them, have
    none, nor have those for which there is no room.

    Args:
        contributions: of one model, by name.
        samples: how many it was asked about.
    """
    found: dict[str, Array] = {}
    most = _MOST_BYTES // (np.dtype(np.float64).itemsize * max(samples, 1))
    for name, one in contributions.items():
        if len(found) >= most:
            break
        if not isinstance(one, Sums) or not one.by_sample or one.units != samples or samples < _FEWEST_SAMPLES:
            continue
        if samples * len(one.total) > _MOST_ELEMENTS:
            continue
        column = samples * one.value - (samples - 1) * one.without(np.arange(samples))
        if np.isfinite(column).all():
            found[name] = column
    return found


def publish_samples(arrays: dict[str, Array], files: ExtraFiles, run: Run) -> None:
    """Add ``samples.npz``, if there is anything to tell, and room for it among the run's files."""
    if not arrays:
        return
    file = ExtraFile("samples", FILE_NAME, "application/octet-stream", packed(arrays))
    if files.has_room(file):
        files.add(file)
    else:
        run.log(f"{FILE_NAME} is left out: not enough space for {file.size_bytes} bytes", "warning")


def packed(arrays: dict[str, Array]) -> bytes:
    """The arrays as .npz, compressed; the same arrays give the same bytes."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, array in arrays.items():
            entry = io.BytesIO()
            np.lib.format.write_array(entry, array, allow_pickle=False)
            info = zipfile.ZipInfo(f"{name}.npy", _EPOCH)
            info.compress_type, info.create_system = zipfile.ZIP_DEFLATED, 3
            archive.writestr(info, entry.getvalue())
    return stream.getvalue()


def _one_each(output: Array, decided: Array) -> bool:
    """True if there is one decision per sample."""
    return output.ndim > 0 and len(output) > 0 and decided.size == len(output) and output.dtype.kind != "b"


def _holds(numbers: Array | None) -> bool:
    """True if int64 holds them."""
    return numbers is not None and (numbers.dtype != np.uint64 or int(numbers.max(initial=0)) <= np.iinfo(np.int64).max)


def _narrowed(numbers: Array) -> Array:
    """As int32 if it holds them, else as int64."""
    known = np.iinfo(np.int32)
    fits = not numbers.size or (int(numbers.min()) >= known.min and int(numbers.max()) <= known.max)
    found: Array = numbers.astype(np.int32 if fits else np.int64)
    return found


def _loss(output: Array, expected: Array) -> Array | None:
    """Cross-entropy with the expected class, in nats, float32 [sample]; None where there are no scores of it."""
    scores = class_scores(output)
    if scores is None:
        return None
    rows = scores.reshape(len(expected), -1)
    if int(expected.min()) < 0 or int(expected.max()) >= rows.shape[1]:
        return None
    logarithms = np.log(np.maximum(rows, _LEAST)) if are_probabilities(rows) else log_softmax(rows)
    found: Array = -np.take_along_axis(logarithms, expected.astype(np.int64)[:, None], axis=1)[:, 0].astype(np.float32)
    return found


def _confidence(output: Array, samples: int) -> Array | None:
    """Probability of the decision, float32 [sample]; None for class numbers, or scores that are not finite."""
    scores = class_scores(output)
    if scores is None:
        return None
    rows = scores.reshape(samples, -1)
    best = rows.max(axis=1) if are_probabilities(rows) else np.exp(log_softmax(rows).max(axis=1))
    found: Array = best.astype(np.float32)
    return found


# Which outputs of a model hold class scores, so that "the same decision" means something there.
#
# An output of floats holds class scores if, the first of these that speaks deciding:
#
# 1. the config says so: a metric of classes, perplexity or agreement reads it, or the gate judges top1_agreement (the
#    first output); a metric of regression that reads it says that it does not;
# 2. no metric is declared, and the labels are class numbers that fit the first output; labels that are floats say that
#    it is none, integers of another shape (those of places, filled up with -1, say) say nothing;
# 3. the network says so: behind a Softmax it does, behind a normalization, a Relu or a Tanh it does not; neither does
#    an output with the shape of an input, which a network restores or cleans;
# 4. it is [samples, classes], comes from a linear layer, a pooling or a Sigmoid, and its name speaks of nothing else.
#
# Everything else, such as maps, pictures, sounds, boxes and sequences of vectors without one of these signs, does not.
# Integers are decisions as they are.

# Between which a value is the same but for its type, or for rounding.
_SAME = ("Cast", "QuantizeLinear", "DequantizeLinear")
_NAMED_OTHERWISE = re.compile(
    r"embed|feature|hidden|state|box|coord|offset|landmark|keypoint|pose|(^|[_./])loc($|[_./])", re.IGNORECASE
)


def class_outputs(model: ir.Model, spec: EvaluationSpec, labels: LabelSummary | None) -> frozenset[str]:
    """Names of the outputs of floats that hold class scores; of the first it is left to be seen whether labels fit.

    Args:
        model: whose outputs they are.
        spec: what is measured.
        labels: of the data that it is measured on.
    """
    names = [value.name or "" for value in model.graph.outputs]
    declared = _declared(spec, names)
    integers = labels is None or labels.are_classes or (labels.dtype or "").startswith(("int", "uint"))
    if not integers and not spec.metrics and names:
        declared.setdefault(names[0], False)
    found = set()
    for name, value in zip(names, model.graph.outputs, strict=True):
        if declared[name] if name in declared else _looks_like_scores(value, model.graph):
            found.add(name)
    return frozenset(found)


def deciding_outputs(model: ir.Model, spec: EvaluationSpec, labels: LabelSummary | None) -> frozenset[str]:
    """The same, and the first output where the labels are class numbers and no metric is declared."""
    fitted = labels is not None and labels.are_classes and not spec.metrics
    names = {value.name or "" for value in model.graph.outputs[:1]} if fitted else set()
    return class_outputs(model, spec, labels) | names


def _declared(spec: EvaluationSpec, names: list[str]) -> dict[str, bool]:
    """What the config says of outputs."""
    declared: dict[str, bool] = {}
    if names and spec.gate.metric == AGREEMENT and spec.gate.judges_metric:
        declared[names[0]] = True
    for metric in spec.metrics:
        is_class = isinstance(metric, ClassMetric | Perplexity | Agreement)
        for ref in metric.output_refs().values():
            name = find_output(ref, names)
            if name is not None and (is_class or isinstance(metric, RegressionMetric)):
                declared[name] = declared.get(name, False) or is_class
    return declared


def _looks_like_scores(value: ir.Value, graph: ir.Graph) -> bool:
    maker = _maker(value)
    if maker is None:
        return False
    scores = operator(maker.op_type).scores
    if scores is Scores.YES:
        return True
    if scores is Scores.NO or (maker.op_type in ("Div", "Mul") and _is_normalized(maker)):
        return False
    if _NAMED_OTHERWISE.search(value.name or ""):
        return False
    return scores is Scores.BY_SHAPE and _is_one_row(value, maker) and not _has_shape_of_input(value, graph)


def _maker(value: ir.Value) -> ir.Node | None:
    """The node that computes a value that others only moved."""
    node = value.producer()
    while node is not None and (node.op_type in _SAME or operator(node.op_type).family is Family.REARRANGEMENT):
        before = node.inputs[0] if node.inputs else None
        node = before.producer() if before is not None else None
    return node


def _is_normalized(node: ir.Node) -> bool:
    """True for a quotient or product of two computed values, such as x / ||x||."""
    return sum(value is not None and not is_constant(value) for value in node.inputs) > 1


def _is_one_row(value: ir.Value, maker: ir.Node) -> bool:
    """True for [samples, classes]; [samples, classes, 1, 1] is the same."""
    if value.shape is None:
        return maker.op_type == "Gemm" and maker.outputs[0] is value
    axes = list(value.shape)
    while len(axes) > 2 and axes[-1] == 1:
        axes.pop()
    return len(axes) == 2 and axes[1] != 1


def _has_shape_of_input(value: ir.Value, graph: ir.Graph) -> bool:
    """True if all axes but the first are those of an input, and known."""
    own = None if value.shape is None else list(value.shape)[1:]
    if not own or not all(isinstance(axis, int) for axis in own):
        return False
    return any(put.shape is not None and list(put.shape)[1:] == own for put in graph.inputs if not put.const_value)

"""Which outputs of a model hold class scores, so that "the same decision" means something there.

An output of floats holds class scores if, the first of these that speaks deciding:

1. the config says so: a metric of classes, perplexity or agreement reads it, or the gate judges top1_agreement (the
   first output); a metric of regression that reads it says that it does not;
2. no metric is declared, and the labels are class numbers that fit the first output; labels that are floats say that
   it is none, integers of another shape (those of places, filled up with -1, say) say nothing;
3. the network says so: behind a Softmax it does, behind a normalization, a Relu or a Tanh it does not; neither does an
   output with the shape of an input, which a network restores or cleans;
4. it is [samples, classes], comes from a linear layer, a pooling or a Sigmoid, and its name speaks of nothing else.

Everything else, such as maps, pictures, sounds, boxes and sequences of vectors without one of these signs, does not.
Integers are decisions as they are.
"""

from __future__ import annotations

import re

import onnx_ir as ir

from service.contracts.dataset import LabelSummary
from service.contracts.evaluation import AGREEMENT, EvaluationSpec
from service.contracts.evaluation_checks import find_output
from service.contracts.metrics import Agreement, ClassMetric, Perplexity
from service.contracts.metrics.kinds import RegressionMetric
from worker.quantizer.graph.values import is_constant
from worker.quantizer.ops.record import Family, Scores
from worker.quantizer.ops.table import operator

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
    if labels is not None and not _are_integers(labels) and not spec.metrics and names:
        declared.setdefault(names[0], False)
    found = set()
    for name, value in zip(names, model.graph.outputs, strict=True):
        if declared[name] if name in declared else _looks_like_scores(value, model.graph):
            found.add(name)
    return frozenset(found)


def _are_integers(labels: LabelSummary) -> bool:
    return labels.are_classes or (labels.dtype or "").startswith(("int", "uint"))


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

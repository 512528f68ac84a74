"""Layers in words and groups, as CSV, and what stayed in float by its reason."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from service.contracts.report import Histogram, LayerFigures, Report, by_contribution
from service.contracts.sheets import cell
from service.reports.figures import count

# Of nodes that make no floats, so that there is nothing to quantize.
NOT_APPLICABLE = "not-applicable"
_OPERATORS = 8


@dataclass(frozen=True)
class FloatGroup:
    """Nodes that stayed in float for one reason."""

    reason: str
    code: str | None
    layers: tuple[LayerFigures, ...]

    @property
    def count(self) -> int:
        """Number of its nodes."""
        return len(self.layers)

    @property
    def operators(self) -> str:
        """Such as "12 Add, 3 Softmax"."""
        kinds = Counter(layer.op for layer in self.layers)
        told = [f"{number} {op}" for op, number in kinds.most_common(_OPERATORS)]
        return ", ".join(told) + (" …" if len(kinds) > _OPERATORS else "")


def left_in_float(report: Report) -> list[FloatGroup]:
    """Nodes left in float by reason, most nodes first; those that make no floats are left out."""
    rows = [layer for layer in report.layers if layer.reason is not None and layer.reason_code != NOT_APPLICABLE]
    return _grouped(rows, lambda layer: (layer.reason or "", layer.reason_code))


def float_activations(report: Report) -> list[FloatGroup]:
    """Nodes with quantized weights whose activations stayed in float, by reason."""
    rows = [layer for layer in report.layers if layer.activation_reason is not None]
    return _grouped(rows, lambda layer: (layer.activation_reason or "", layer.activation_reason_code))


def float_biases(report: Report) -> list[FloatGroup]:
    """Nodes with quantized weights whose bias stayed in float, by reason."""
    rows = [layer for layer in report.layers if layer.bias_reason is not None]
    return _grouped(rows, lambda layer: (layer.bias_reason or "", layer.bias_reason_code))


def without_floats(report: Report) -> int:
    """Nodes that make no floats."""
    return _nodes(layer for layer in report.layers if layer.reason_code == NOT_APPLICABLE)


def coverage(report: Report) -> str:
    """How much of the network runs quantized."""
    done = _nodes(layer for layer in report.layers if layer.reason is None)
    able = _nodes(report.layers) - without_floats(report)
    told = f"{done:,} of {count(able, 'node')} quantized"
    rest = without_floats(report)
    verb = "has" if rest == 1 else "have"
    return f"{told}; {count(rest, 'more node')} {verb} no floating-point output." if rest else f"{told}."


def _nodes(layers: Iterable[LayerFigures]) -> int:
    """How many nodes there are: those that run as one share a row."""
    return sum(len(layer.nodes) or 1 for layer in layers)


def storage_words(layer: LayerFigures) -> str:
    """Number types of a layer."""
    parts = []
    if layer.weight_dtype is not None:
        parts.append(f"weights {layer.weight_dtype}")
    if layer.activation_dtype is not None:
        parts.append(f"activations {layer.activation_dtype}")
    return ", ".join(parts) or "–"


def gain_words(layer: LayerFigures) -> str:
    """What each algorithm gained there."""
    return ", ".join(f"{method} {value:+.1f} dB" for method, value in layer.gain.items() if abs(value) >= 0.05)


def _grouped(
    rows: Sequence[LayerFigures], reason: Callable[[LayerFigures], tuple[str, str | None]]
) -> list[FloatGroup]:
    groups: dict[tuple[str, str | None], list[LayerFigures]] = {}
    for layer in rows:
        groups.setdefault(reason(layer), []).append(layer)
    found = [FloatGroup(words, code, tuple(layers)) for (words, code), layers in groups.items()]
    return sorted(found, key=lambda group: -len(group.layers))


_COLUMNS: dict[str, Callable[[LayerFigures], str | float | int | None]] = {
    "name": lambda layer: layer.name,
    "op": lambda layer: layer.op,
    "nodes": lambda layer: " ".join(layer.nodes),
    "weight_dtype": lambda layer: layer.weight_dtype,
    "activation_dtype": lambda layer: layer.activation_dtype,
    "sqnr_db": lambda layer: layer.sqnr_db,
    "error_percent": lambda layer: layer.error_percent,
    "latency_percent": lambda layer: layer.latency_percent,
    "float_weight_bytes": lambda layer: layer.float_weight_bytes,
    "weight_bytes": lambda layer: layer.weight_bytes,
    "weights_clipped_percent": lambda layer: _clipped(layer.weight_histogram),
    "activations_clipped_percent": lambda layer: _clipped(layer.activation_histogram),
    "reason_code": lambda layer: layer.reason_code,
    "reason": lambda layer: layer.reason,
    "activation_reason_code": lambda layer: layer.activation_reason_code,
    "activation_reason": lambda layer: layer.activation_reason,
    "bias_reason_code": lambda layer: layer.bias_reason_code,
    "bias_reason": lambda layer: layer.bias_reason,
}


def layers_csv(report: Report) -> str:
    """The table with a head, by error contribution, then nodes in float; ``gain_db_METHOD`` by algorithm at the end.

    Figures stand as they are, empty where there is none. A text that a spreadsheet would run as a formula begins with
    an apostrophe; control characters other than line breaks, and lone surrogates, are replaced.
    """
    methods = list(dict.fromkeys(method for layer in report.layers for method in layer.gain))
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow([*_COLUMNS, *(cell(f"gain_db_{method}") for method in methods)])
    rows = [*by_contribution(report.layers), *(layer for layer in report.layers if layer.reason is not None)]
    for layer in rows:
        cells = [column(layer) for column in _COLUMNS.values()]
        writer.writerow([cell(value) for value in (*cells, *(layer.gain.get(method) for method in methods))])
    return stream.getvalue()


def _clipped(histogram: Histogram | None) -> float | None:
    return None if histogram is None else histogram.clipped_percent

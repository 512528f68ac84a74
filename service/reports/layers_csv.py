"""Every layer as a row of CSV (RFC 4180), for spreadsheets and scripts: nothing is left out or cut short."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable

from service.contracts.report import Histogram, LayerFigures, Report
from service.contracts.spreadsheets import cell

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
    """The table with a head, in the report's order; a column ``gain_db_METHOD`` for each algorithm at the end.

    Figures stand as they are, empty where there is none. A text that a spreadsheet would run as a formula begins with
    an apostrophe; control characters other than line breaks, and lone surrogates, are replaced.
    """
    methods = list(dict.fromkeys(method for layer in report.layers for method in layer.gain))
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow([*_COLUMNS, *(cell(f"gain_db_{method}") for method in methods)])
    for layer in report.layers:
        cells = [column(layer) for column in _COLUMNS.values()]
        writer.writerow([cell(value) for value in (*cells, *(layer.gain.get(method) for method in methods))])
    return stream.getvalue()


def _clipped(histogram: Histogram | None) -> float | None:
    return None if histogram is None else histogram.clipped_percent

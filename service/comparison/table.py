"""A comparison as CSV (RFC 4180): one row per job, for spreadsheets."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Sequence
from typing import Any

import orjson

from service.comparison.schemas import ComparedJob, Comparison
from service.contracts.sheets import cell

_COLUMNS: dict[str, Callable[[ComparedJob], str | float | int | None]] = {
    "job": lambda job: job.id,
    "name": lambda job: job.name,
    "model": lambda job: job.model,
    "preset": lambda job: job.preset,
    "verdict": lambda job: job.verdict,
    "seconds": lambda job: job.seconds,
    "engine_version": lambda job: job.engine_version,
    "float_size_bytes": lambda job: job.float_size_bytes,
    "quantized_size_bytes": lambda job: job.quantized_size_bytes,
    "latency_ratio": lambda job: job.latency_ratio,
    "sqnr_db": lambda job: job.sqnr_db,
    "top1_agreement": lambda job: job.top1_agreement,
}


def comparison_csv(comparison: Comparison) -> str:
    """The table with a head: figures of each job, its metrics, what the first job's are above its, config differences.

    Figures stand as they are, empty where there is none. A text that a spreadsheet would run as a formula begins with
    an apostrophe.
    """
    names = list(dict.fromkeys(metric.name for job in comparison.jobs for metric in job.metrics))
    head: list[str] = list(_COLUMNS)
    head += [f"{name}_{part}" for name in names for part in ("float", "quantized", "drop")]
    head += ["pair_drop_percent", "pair_p_value", "lost", "won"]
    head += [f"config{difference.pointer}" for difference in comparison.config_differences]
    stream = io.StringIO(newline="")
    writer = csv.writer(stream)
    writer.writerow([cell(name) for name in head])
    for k, job in enumerate(comparison.jobs):
        writer.writerow([cell(value) for value in _row(comparison, k, job, names)])
    return stream.getvalue()


def _row(comparison: Comparison, k: int, job: ComparedJob, names: Sequence[str]) -> list[str | float | int | None]:
    row = [column(job) for column in _COLUMNS.values()]
    by_name = {metric.name: metric for metric in job.metrics}
    for name in names:
        metric = by_name.get(name)
        row += [None] * 3 if metric is None else [metric.float_, metric.quantized, metric.drop]
    pair = comparison.pairs[k - 1] if k else None
    if pair is None or pair.flips is None:
        row += [None] * 4
    else:
        row += [pair.drop_percent, pair.p_value, pair.flips.lost, pair.flips.won]
    return row + [_plain(difference.values[k]) for difference in comparison.config_differences]


def _plain(value: Any) -> str | float | int | None:
    """A value of a config as one cell."""
    if value is None or (isinstance(value, str | float | int) and not isinstance(value, bool)):
        return value
    return orjson.dumps(value).decode()

"""Jobs side by side in words: what heads a column, a figure against the baseline's, one test for each question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from service.comparison.schemas import ComparedJob, ComparedMetric, ComparedPair, Comparison, PairedMetric
from service.contracts.changes import (
    NOT_REPRESENTATIVE,
    Change,
    difference_change,
    latency_change,
    metric_change,
    p_words,
    ratio_words,
    signed,
    size_change,
    typeset,
)
from service.jobs.naming import ALGORITHM_NAMES, recipe
from service.reports.figures import figure, metric_title, name, size

# The metric whose paired test is that of the decisions, where data has labels.
TOP1 = "top1"
_RELATIVE = ("faster", "slower")
_SAME = "same as float"


def recipe_of(job: ComparedJob) -> str:
    """The recipe of a job in short."""
    return recipe(job.preset, job.algorithms)


def titles(jobs: Sequence[ComparedJob], datasets: Mapping[str, str]) -> list[str]:
    """What heads each column: that in which the jobs differ, and nothing else.

    Args:
        jobs: in their order.
        datasets: by id what a dataset is called; one that is not in it was deleted.
    """

    def data(dataset_id: str | None) -> str:
        return "no data" if dataset_id is None else datasets.get(dataset_id, f"deleted dataset …{dataset_id[-6:]}")

    parts = (
        [job.model or f"deleted model …{(job.model_id or '')[-6:]}" for job in jobs],
        [recipe_of(job) for job in jobs],
        [f"calibrated on {data(job.calibration_dataset_id)}" for job in jobs],
        [f"evaluated on {data(job.evaluation_dataset_id)}" for job in jobs],
    )
    differing = [words for words in parts if len(set(words)) > 1]
    if not differing:
        return [job.name or recipe_of(job) for job in jobs]
    return [", ".join(words) for words in zip(*differing, strict=True)]


def targets(found: Comparison) -> list[str]:
    """The targets of the jobs in their order, of each what it is called; empty where all have the same one."""
    row = next((one for one in found.config_differences if one.pointer == "/target"), None)
    return [] if row is None else ["none" if one is None else name(one) for one in row.values]


class Cell(NamedTuple):
    """A figure of one job, and how it compares with that of the baseline."""

    value: str
    change: Change | None = None  # against the baseline; None: it is the baseline's, or there is nothing to compare
    note: str = ""


_NONE = Cell(figure(None))


def rows(found: Comparison) -> list[tuple[str, list[Cell]]]:
    """The figures, metric by metric, then agreement, SQNR, bytes and latency."""
    first, others = found.jobs[0], found.jobs[1:]
    pairs = {pair.second: pair for pair in found.pairs}
    told: list[tuple[str, list[Cell]]] = []
    for key in dict.fromkeys((metric.name, metric.unit) for one in found.jobs for metric in one.metrics):
        metrics = [next((m for m in one.metrics if (m.name, m.unit) == key), None) for one in found.jobs]
        cells = [_metric_cell(metrics[0], None, None)]
        for one, metric in zip(others, metrics[1:], strict=True):
            cells.append(_metric_cell(metric, metrics[0], paired_of(pairs[one.id], key[0])))
        told.append((metric_title(key[0]), cells))
    told.append(("Top-1 agreement", [_agreement_cell(one, first, pairs.get(one.id)) for one in found.jobs]))
    told.append(("SQNR", [_sqnr_cell(one, first) for one in found.jobs]))
    told.append(("Size", [_size_cell(one, first) for one in found.jobs]))
    told.append(("Latency", [_latency_cell(one, first) for one in found.jobs]))
    return [(words, cells) for words, cells in told if any(cell.value != figure(None) for cell in cells)]


def paired_of(pair: ComparedPair, metric: str) -> PairedMetric | None:
    """How a metric of the baseline compares with the other job's on the same samples; None: it was not paired."""
    return next((one for one in pair.metrics if one.name == metric), None)


def other_metrics(pair: ComparedPair) -> list[tuple[PairedMetric, Change]]:
    """Paired metrics that ask something else than the paired decisions do, each with its change."""
    return [
        (
            one,
            _tested(metric_change(one.drop, one.unit, better=one.better, drop_interval=one.interval), one.significant),
        )
        for one in pair.metrics
        if not (pair.measure == "accuracy" and one.name == TOP1)
    ]


def pair_change(pair: ComparedPair) -> Change:
    """The change of the share of correct decisions, by its own test."""
    change = metric_change(pair.drop_percent, "%", drop_interval=pair.interval)
    return _tested(change, bool(pair.significant))


def pair_words(pair: ComparedPair) -> str:
    """The result of the paired decisions in a sentence."""
    if pair.drop_percent is None or pair.p_value is None:
        return ""
    what = "accuracy" if pair.measure == "accuracy" else "agreement with the float model"
    by = typeset(signed(-pair.drop_percent, "%"))
    if not pair.significant:
        return f"Difference not significant: {by} {what}, {p_words(pair.p_value)}."
    return f"Significantly {'worse' if pair.drop_percent > 0 else 'better'}: {by} {what}, {p_words(pair.p_value)}."


def _tested(change: Change, significant: bool | None) -> Change:
    return replace(change, significant=significant)


def _significance(paired: PairedMetric | ComparedPair) -> str:
    # the change itself says so where it is not significant
    return f"{'significant, ' if paired.significant else ''}{p_words(paired.p_value)}"


def _metric_cell(metric: ComparedMetric | None, first: ComparedMetric | None, paired: PairedMetric | None) -> Cell:
    if metric is None:
        return _NONE
    value = figure(metric.quantized, metric.unit)
    if first is None or first.quantized is None or metric.quantized is None:
        words = typeset(metric_change(metric.drop, metric.unit, better=metric.better).words)
        return Cell(value, note="" if metric.drop is None else f"{words} vs float")
    change = difference_change(first.quantized, metric.quantized, metric.unit, better=metric.better)
    if paired is None:
        return Cell(value, change, "measured on other samples: not tested")
    return Cell(value, _tested(change, paired.significant), _significance(paired))


def _agreement_cell(one: ComparedJob, first: ComparedJob, pair: ComparedPair | None) -> Cell:
    value = figure(one.top1_agreement, "%")
    if pair is None or first.top1_agreement is None or one.top1_agreement is None:
        return Cell(value)
    change = difference_change(first.top1_agreement, one.top1_agreement, "%")
    if pair.measure != "agreement" or pair.p_value is None:
        return Cell(value, change)
    return Cell(value, _tested(change, pair.significant), _significance(pair))


def _sqnr_cell(one: ComparedJob, first: ComparedJob) -> Cell:
    value = figure(one.sqnr_db, "dB")
    if one is first or one.sqnr_db is None or first.sqnr_db is None:
        return Cell(value)
    return Cell(value, difference_change(first.sqnr_db, one.sqnr_db, "dB"))


def _size_cell(one: ComparedJob, first: ComparedJob) -> Cell:
    value, mine = size(one.quantized_size_bytes), one.quantized_size_bytes
    if one is first:
        before = one.float_size_bytes
        return Cell(value, note="" if before is None else f"{size_change(before, mine).words} than float")
    return Cell(value, size_change(first.quantized_size_bytes, mine))


def _latency_cell(one: ComparedJob, first: ComparedJob) -> Cell:
    """Each was timed beside its own float model: only intervals that do not overlap tell one job from another."""
    if one.latency_ratio is None or one.latency_ratio <= 0:
        return _NONE
    value = speed(one.latency_ratio)
    if latency_change(one.latency_ratio, one.latency_ratio_interval).significant is False and value != _SAME:
        value = f"{value} (not significant)"
    if one.latency_not_representative or first.latency_not_representative:
        return Cell(value, note=NOT_REPRESENTATIVE if one.latency_not_representative else "")
    if one is first or first.latency_ratio is None or first.latency_ratio <= 0:
        return Cell(value)
    mine, theirs = one.latency_ratio_interval, first.latency_ratio_interval
    apart = mine is not None and theirs is not None and (mine.low > theirs.high or theirs.low > mine.high)
    if not apart:
        return Cell(value, note="Latency difference not significant")
    return Cell(value, latency_change(one.latency_ratio / first.latency_ratio, significant=True))


def speed(ratio: float) -> str:
    """A latency over that of the float model: "1.80x faster than float"."""
    change = ratio_words(ratio)
    return f"{change} than float" if change.endswith(_RELATIVE) else _SAME


class ConfigRow(NamedTuple):
    """A field of the configs in which the jobs differ."""

    field: str
    values: list[str]
    differing: list[bool]  # from the baseline


def config_rows(found: Comparison, written: Any) -> tuple[list[ConfigRow], list[ConfigRow]]:
    """The fields that differ; of other algorithms their names, and apart from that the settings of each.

    Args:
        found: the comparison.
        written: makes a value short text.
    """
    other = len({one.algorithms for one in found.jobs}) > 1
    top: list[ConfigRow] = []
    below: list[ConfigRow] = []
    if other:
        methods = [
            ", ".join(ALGORITHM_NAMES.get(each, each) for each in one.algorithms) or "none" for one in found.jobs
        ]
        top.append(ConfigRow("algorithms", methods, [one != methods[0] for one in methods]))
    for one in found.config_differences:
        values = ["–" if value is None else value if isinstance(value, str) else written(value) for value in one.values]
        row = ConfigRow(
            name(one.pointer.lstrip("/").replace("/", ".") or "config"),
            values,
            [value != one.values[0] for value in one.values],
        )
        (below if other and one.pointer.startswith("/algorithms") else top).append(row)
    return top, below

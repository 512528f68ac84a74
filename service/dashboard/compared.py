"""Jobs side by side in words: what heads a column, a figure against the baseline's, one test for each question."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from service.comparison.schemas import ComparedJob, ComparedMetric, ComparedPair, Comparison, PairedMetric
from service.contracts.presets import find_preset
from service.reports.figures import difference, figure, name, size

# The metric whose paired test is that of the decisions, where data has labels.
TOP1 = "top1"
METHOD_WORDS = {
    "adaquant": "AdaQuant",
    "adaround": "AdaRound",
    "autopilot": "autopilot",
    "awq": "AWQ",
    "bias_correction": "bias correction",
    "cross_layer_equalization": "CLE",
    "mixed_precision": "mixed precision",
    "outlier_channels": "outlier channels",
    "qat": "QAT",
    "sensitivity": "sensitivity",
    "smooth_quant": "SmoothQuant",
}


def recipe_of(job: ComparedJob) -> str:
    """The recipe of a job in a few words."""
    return recipe_words(job.preset, job.algorithms)


def recipe_words(preset_name: str | None, methods: Sequence[str]) -> str:
    """The preset, and the algorithms that were added to it: "xint8 + AdaRound"."""
    preset = None if preset_name is None else find_preset(preset_name)
    own = [step["method"] for step in preset.settings.get("algorithms", ())] if preset is not None else []
    added = [METHOD_WORDS.get(method, method) for method in methods if method not in own]
    left_out = [METHOD_WORDS.get(method, method) for method in own if method not in methods]
    words = " + ".join([preset_name or "no preset", *added])
    return f"{words} without {', '.join(left_out)}" if left_out else words


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


class Cell(NamedTuple):
    """A figure of one job, and how it compares with that of the baseline."""

    value: str
    delta: str = ""
    tone: str = ""
    mark: str = ""
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
        told.append((key[0], cells))
    agreement = [
        _agreement_cell(one, None if one is first else first, None if one is first else pairs[one.id])
        for one in found.jobs
    ]
    told.append(("Top-1 agreement", agreement))
    told.append(("SQNR", [_sqnr_cell(one, None if one is first else first) for one in found.jobs]))
    told.append(("Size", [_size_cell(one, None if one is first else first) for one in found.jobs]))
    told.append(("Latency", [_latency_cell(one, None if one is first else first) for one in found.jobs]))
    return [(words, cells) for words, cells in told if any(cell.value != figure(None) for cell in cells)]


def paired_of(pair: ComparedPair, metric: str) -> PairedMetric | None:
    """How a metric of the baseline compares with the other job's on the same samples; None: it was not paired."""
    return next((one for one in pair.metrics if one.name == metric), None)


def other_metrics(pair: ComparedPair) -> list[PairedMetric]:
    """Paired metrics that ask something else than the paired decisions do."""
    return [one for one in pair.metrics if not (pair.measure == "accuracy" and one.name == TOP1)]


def pair_words(pair: ComparedPair) -> str:
    """The result of the paired decisions in a sentence."""
    if pair.drop_percent is None or pair.p_value is None:
        return ""
    what = "accuracy" if pair.measure == "accuracy" else "agreement with the float model"
    by = signed(-pair.drop_percent, "%")
    if not pair.significant:
        return f"Difference not significant: {by} {what}, p = {pair.p_value:.3g}."
    return f"Significantly {'worse' if pair.drop_percent > 0 else 'better'}: {by} {what}, p = {pair.p_value:.3g}."


def signed(change: float, unit: str) -> str:
    """A change with its sign: of percentages in points."""
    return f"{_sign(change)}{difference(change, unit)}"


def _sign(change: float) -> str:
    return "+" if change > 0 else "−" if change < 0 else "±"


def _metric_cell(metric: ComparedMetric | None, first: ComparedMetric | None, paired: PairedMetric | None) -> Cell:
    if metric is None:
        return _NONE
    value = figure(metric.quantized, metric.unit)
    if first is None or first.quantized is None or metric.quantized is None:
        if metric.float_ is None or metric.quantized is None:
            return Cell(value)
        return Cell(value, note=f"{signed(metric.quantized - metric.float_, metric.unit)} vs FP32")
    delta = signed(metric.quantized - first.quantized, metric.unit)
    if paired is None:
        return Cell(value, delta, "plain", note="other samples: not tested")
    return _tested(value, delta, paired.p_value, significant=paired.significant, better=paired.drop < 0)


def _agreement_cell(one: ComparedJob, first: ComparedJob | None, pair: ComparedPair | None) -> Cell:
    value = figure(one.top1_agreement, "%")
    if first is None or first.top1_agreement is None or one.top1_agreement is None:
        return Cell(value)
    change = one.top1_agreement - first.top1_agreement
    if pair is None or pair.measure != "agreement" or pair.p_value is None:
        return _against(value, change, signed(change, "%"), higher=True)
    return _tested(value, signed(change, "%"), pair.p_value, significant=bool(pair.significant), better=change > 0)


def _tested(value: str, delta: str, p_value: float, *, significant: bool, better: bool) -> Cell:
    if not significant:
        return Cell(value, delta, "plain", "≈", f"not significant, p = {p_value:.3g}")
    note = f"significant, p = {p_value:.3g}"
    return Cell(value, delta, "good" if better else "bad", "▲" if better else "▼", note)


def _sqnr_cell(one: ComparedJob, first: ComparedJob | None) -> Cell:
    value = figure(one.sqnr_db, "dB")
    if first is None or one.sqnr_db is None or first.sqnr_db is None:
        return Cell(value)
    change = one.sqnr_db - first.sqnr_db
    return _against(value, change, signed(change, "dB"), higher=True)


def _size_cell(one: ComparedJob, first: ComparedJob | None) -> Cell:
    value, mine = size(one.quantized_size_bytes), one.quantized_size_bytes
    if first is None:
        before = one.float_size_bytes
        return Cell(value, note=f"{_share(mine, before)} than FP32" if before else "")
    return _against(value, mine - first.quantized_size_bytes, _share(mine, first.quantized_size_bytes), higher=False)


def _share(mine: float, before: float) -> str:
    return f"{abs(1.0 - mine / before) * 100:.1f} % {'smaller' if mine <= before else 'larger'}"


def _against(value: str, change: float, delta: str, *, higher: bool) -> Cell:
    """A figure that has no chance in it, against the baseline's."""
    if change == 0:
        return Cell(value, "same", "plain")
    better = (change > 0) == higher
    return Cell(value, delta, "good" if better else "bad", "▲" if better else "▼")


def _latency_cell(one: ComparedJob, first: ComparedJob | None) -> Cell:
    """Each was timed beside its own float model: only intervals that do not overlap tell one job from another."""
    if one.latency_ratio is None or one.latency_ratio <= 0:
        return _NONE
    value = f"{speed(one.latency_ratio)} than FP32"
    preset = None if one.preset is None else find_preset(one.preset)
    if preset is not None and not preset.execution.native:
        return Cell(value, note="simulated: not representative of the target")
    if first is None or not first.latency_ratio:
        return Cell(value)
    ratio, mine, theirs = (
        one.latency_ratio / first.latency_ratio,
        one.latency_ratio_interval,
        first.latency_ratio_interval,
    )
    if mine is None or theirs is None or (mine.low <= theirs.high and theirs.low <= mine.high):
        return Cell(value, speed(ratio), "plain", "≈", "latency difference not significant")
    return Cell(value, speed(ratio), "good" if ratio < 1 else "bad", "▲" if ratio < 1 else "▼")


def speed(ratio: float) -> str:
    """A latency over another one: "1.80x faster", "2.25x slower"."""
    return f"{1 / ratio:.2f}x faster" if ratio <= 1 else f"{ratio:.2f}x slower"


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
        methods = [", ".join(METHOD_WORDS.get(each, each) for each in one.algorithms) or "none" for one in found.jobs]
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

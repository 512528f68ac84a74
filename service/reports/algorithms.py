"""Algorithms, kernels and fallback candidates in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.contracts.report import (
    AlgorithmFigures,
    Fallback,
    FallbackCandidate,
    Interval,
    KernelFigures,
    Kernels,
    LayerFigures,
    RangeChange,
    ReconstructionError,
    Report,
    Score,
)
from service.contracts.search import TrialFigures
from service.contracts.specs import TensorRange
from service.reports import charts
from service.reports.figures import count, figure, milliseconds, size, times


@dataclass(frozen=True)
class AlgorithmRow:
    """One algorithm with what is drawn and listed of it; of long lists the part that tells most."""

    entry: AlgorithmFigures
    before: str
    after: str
    curves: list[Markup]
    errors: Sequence[tuple[str, ReconstructionError]]
    ranges: Sequence[RangeChange]
    trials: Sequence[TrialFigures]


def algorithm_row(entry: AlgorithmFigures, most: int) -> AlgorithmRow:
    """The algorithm; of errors the largest, of ranges those that moved most, of trials the first."""
    errors = sorted(entry.reconstruction.items(), key=lambda item: -item[1].before)
    ranges = sorted(entry.ranges, key=_moved, reverse=True)
    trials = () if entry.search is None else entry.search.trials
    return AlgorithmRow(
        entry,
        _score(entry.before),
        _score(entry.after),
        [] if entry.training is None else charts.training_curves(entry.training),
        errors[:most],
        ranges[:most],
        trials[:most],
    )


def range_words(values: TensorRange) -> str:
    """A range as "-1.2 to 3.4"."""
    return f"{values.minimum:.4g} to {values.maximum:.4g}"


def _moved(change: RangeChange) -> float:
    before = max(abs(change.before.minimum), abs(change.before.maximum))
    after = max(abs(change.after.minimum), abs(change.after.maximum))
    return max(before, after) / max(min(before, after), 1e-30)


def _score(score: Score | None) -> str:
    if score is None:
        return ""
    parts = [figure(score.sqnr_db, "dB")] if score.sqnr_db is not None else []
    if score.value is not None:
        parts.append(f"{score.metric} {score.value:.5g}")
    return ", ".join(parts)


_FLOAT = "float"


@dataclass(frozen=True)
class Width:
    """Layers whose weights are stored alike."""

    stored_as: str  # number type of the weights
    layers: int  # how many
    size_bytes: int | None  # of their weights; None: the report does not tell
    share: float  # of the bytes of all layers, 0 to 1


def widths(report: Report) -> list[Width]:
    """By number type, the most bytes first; layers without weights are left out."""
    groups: dict[str, list[LayerFigures]] = {}
    for layer in report.layers:
        if layer.weight_dtype is not None or layer.weight_bytes is not None:
            groups.setdefault(layer.weight_dtype or _FLOAT, []).append(layer)
    total = sum(layer.weight_bytes or 0 for layer in report.layers)
    found = [
        Width(stored_as, len(rows), size, 0.0 if not total else (size or 0) / total)
        for stored_as, rows in groups.items()
        for size in (_bytes(rows),)
    ]
    return sorted(found, key=lambda one: (-(one.size_bytes or 0), -one.layers, one.stored_as))


def _bytes(rows: list[LayerFigures]) -> int | None:
    told = [layer.weight_bytes for layer in rows if layer.weight_bytes is not None]
    return sum(told) if told else None


# Models and forms that were measured beside the planned ones, in words.

_HOLDS = {True: "all met", False: "not met", None: "not measured"}
_FORMS = {"standard": "DequantizeLinear and MatMul", "matmul_nbits": "com.microsoft.MatMulNBits"}


@dataclass(frozen=True)
class CandidateRow:
    """A model that might be returned."""

    words: str
    result: str
    latency: str
    size: str
    holds: str


@dataclass(frozen=True)
class FormRow:
    """A form of products."""

    form: str
    latency: str
    ratio: str
    sqnr: str


@dataclass(frozen=True)
class FallbackWords:
    """What was tried because the quantized model was too slow."""

    sentences: tuple[str, ...]
    candidates: tuple[CandidateRow, ...]

    @classmethod
    def of(cls, told: Fallback) -> FallbackWords:
        """For a page."""
        return cls(sentences(told), candidates(told))


@dataclass(frozen=True)
class KernelWords:
    """Both forms of products."""

    words: str
    rows: tuple[FormRow, ...]

    @classmethod
    def of(cls, told: Kernels) -> KernelWords:
        """For a page."""
        return cls(kernels_words(told), forms(told))


def sentences(told: Fallback) -> tuple[str, ...]:
    """Why a faster model was looked for, what was tried, and what is returned."""
    tried = sum(1 for region in told.regions if region.outcome != "untried")
    off = sum(1 for region in told.regions if region.outcome == "taken_off")
    regions = (
        f"No Q/DQ pairs were removed: {told.why_no_regions}."
        if told.why_no_regions is not None
        else f"{tried} of {count(len(told.regions), 'region')} tried without Q/DQ pairs, {off} removed."
    )
    return f"{_sentence(told.because)}.", regions, f"{_sentence(told.reason)}."


def candidates(told: Fallback) -> tuple[CandidateRow, ...]:
    """Every model that might be returned."""
    return tuple(
        CandidateRow(
            words=_candidate_words(candidate),
            result="returned" if candidate.chosen else "",
            latency=times(candidate.latency_ratio) + _span(candidate.latency_interval),
            size=size(candidate.size_bytes),
            holds=_HOLDS[candidate.holds] if candidate.gate or candidate.holds is None else "none",
        )
        for candidate in told.candidates
    )


def forms(told: Kernels) -> tuple[FormRow, ...]:
    """Both forms, where they were measured."""
    return tuple(
        FormRow(
            form=_form_words(form),
            latency=milliseconds(form.latency_ms),
            ratio=times(form.ratio) + _span(form.ratio_interval),
            sqnr=figure(form.sqnr_db, "dB"),
        )
        for form in told.forms
    )


def kernels_words(told: Kernels) -> str:
    """What the figures of both forms are, or why there are none."""
    products = f"{count(told.products, 'matrix product')} with block-wise weights can use either kernel"
    if told.reason is not None:
        return f"{products}; not compared: {told.reason}."
    return f"{products}; SQNR measured on {count(told.forms[0].samples, 'sample')} in onnxruntime."


def _candidate_words(candidate: FallbackCandidate) -> str:
    if candidate.kind == "planned":
        return "as configured"
    if candidate.kind == "float":
        return "float model"
    return f"quantized, {count(candidate.nodes_taken_off, 'node')} in float"


def _form_words(form: KernelFigures) -> str:
    level = "" if form.accuracy_level is None else f", level {form.accuracy_level}"
    return f"{_FORMS[form.form]}{level}{' (in this file)' if form.emitted else ''}"


def _span(interval: Interval | None) -> str:
    return "" if interval is None else f" ({interval.low:.2f} to {interval.high:.2f})"


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]

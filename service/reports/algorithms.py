"""What became of each algorithm, and the bits that weights were given, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.contracts.report import AlgorithmFigures, LayerFigures, RangeChange, ReconstructionError, Report, Score
from service.contracts.search import TrialFigures
from service.contracts.specs import TensorRange
from service.reports import charts
from service.reports.figures import figure


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
    """Layers whose weights are stored alike.

    Attributes:
        stored_as: number type of the weights.
        layers: how many.
        size_bytes: of their weights; None: the report does not tell.
        share: of the bytes of all layers, 0 to 1.
    """

    stored_as: str
    layers: int
    size_bytes: int | None
    share: float


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

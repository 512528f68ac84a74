"""What became of each algorithm, for the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from service.contracts.calibration import TensorRange
from service.contracts.report import AlgorithmFigures, RangeChange, ReconstructionError, Score
from service.contracts.search import TrialFigures
from service.reports import charts
from service.reports.figures import figure


@dataclass(frozen=True)
class Told:
    """One algorithm with what is drawn and listed of it; of long lists the part that tells most."""

    entry: AlgorithmFigures
    before: str
    after: str
    curves: list[Markup]
    errors: Sequence[tuple[str, ReconstructionError]]
    ranges: Sequence[RangeChange]
    trials: Sequence[TrialFigures]


def told(entry: AlgorithmFigures, most: int) -> Told:
    """The algorithm; of errors the largest, of ranges those that moved most, of trials the first."""
    errors = sorted(entry.reconstruction.items(), key=lambda item: -item[1].before)
    ranges = sorted(entry.ranges, key=_moved, reverse=True)
    trials = () if entry.search is None else entry.search.trials
    return Told(
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

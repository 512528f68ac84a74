"""What was found to hurt, as the report tells it: by cause, and by layer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from service.contracts.report import Cause, CausePlace, LayerFigures
from worker.quantizer.advice.damage import KIND_WORDS, Damage, Harm

# Places of one cause.
_MOST = 8
# Causes of less of the error than this are not told.
_LEAST_PERCENT = 0.5


def causes_of(damage: Damage) -> tuple[Cause, ...]:
    """The causes, the worst first, each with its worst places; nothing where there is no error."""
    found = [_cause(harm, damage.total) for harm in damage.harms.values() if damage.total > 0]
    return tuple(
        sorted((one for one in found if one.error_percent >= _LEAST_PERCENT), key=lambda one: -one.error_percent)
    )


def with_blame(rows: Sequence[LayerFigures], damage: Damage) -> tuple[LayerFigures, ...]:
    """The rows with the part of the error that arises in each."""
    by_node: dict[str, float] = defaultdict(float)
    for harm in damage.harms.values():
        for place in harm.places:
            by_node[place.node] += place.noise * _factor(harm)
    if damage.total <= 0:
        return tuple(rows)
    made = []
    for row in rows:
        if row.reason is None:
            part = _percent(sum(by_node[name] for name in row.nodes or (row.name,)), damage.total)
            row = row.model_copy(update={"error_percent": part})
        made.append(row)
    return tuple(made)


def _cause(harm: Harm, total: float) -> Cause:
    factor = _factor(harm)
    return Cause(
        kind=harm.kind.value,
        message=KIND_WORDS[harm.kind],
        error_percent=_percent(harm.noise, total),
        places=tuple(
            CausePlace(node=place.node, error_percent=_percent(factor * place.noise, total), fact=place.fact)
            for place in harm.places[:_MOST]
        ),
        places_left_out=max(0, len(harm.places) - _MOST),
    )


def _factor(harm: Harm) -> float:
    """From the noise of a place to its part in that of the outputs."""
    local = sum(place.noise for place in harm.places)
    return harm.noise / local if local > 0 else 0.0


def _percent(part: float, total: float) -> float:
    return round(min(100.0 * part / total, 100.0), 2)

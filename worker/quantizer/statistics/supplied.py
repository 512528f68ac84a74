"""Ranges that come from outside instead of from data."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from service.contracts.base import below
from service.contracts.errors import FieldProblem, InvalidConfigError
from service.contracts.specs import TensorRange
from worker.quantizer.statistics.observers import Range

_FIELD = "tensor_ranges"


def supplied_ranges(
    supplied: Mapping[str, TensorRange], needed: Collection[str], known: Collection[str]
) -> tuple[dict[str, Range], list[str]]:
    """The supplied ranges of the tensors that need one: no statistics have to be collected for these.

    Args:
        supplied: ``tensor_ranges`` of the config.
        needed: tensors that will get a grid.
        known: all tensors of the prepared model.

    Returns:
        ranges by tensor, and the supplied tensors that exist but get no grid, sorted: worth a note.

    Raises:
        InvalidConfigError: a tensor that is not in the model, or a minimum above its maximum; points at each.
    """
    needed, known = set(needed), set(known)
    faults = {}
    for name, found in supplied.items():
        if name not in known and name not in needed:
            faults[name] = f"the model has no tensor {name!r}"
        elif found.minimum > found.maximum:
            faults[name] = f"tensor {name!r}: the minimum {found.minimum:g} is above the maximum {found.maximum:g}"
    if faults:
        code, place = InvalidConfigError.code, f"/config/{_FIELD}"
        raise InvalidConfigError(
            f"{_FIELD}: {'; '.join(list(faults.values())[:5])}",
            hint="Take names and ranges from the calibrated ranges of an earlier run of the same model.",
            errors=tuple(
                FieldProblem(pointer=below(place, name), code=code, message=message) for name, message in faults.items()
            ),
        )
    ranges = {name: Range(found.minimum, found.maximum) for name, found in supplied.items() if name in needed}
    return ranges, sorted(set(supplied) - set(ranges))

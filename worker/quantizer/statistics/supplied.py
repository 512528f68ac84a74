"""Ranges that come from outside instead of from data, and calibrated ranges that go out to be used again."""

from __future__ import annotations

import json
import math
from collections.abc import Collection, Mapping

from service.contracts.calibration import TensorRange
from service.contracts.errors import EngineError, FieldProblem, InvalidConfigError
from service.contracts.pointers import below
from worker.quantizer.statistics.reducers import Range

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


def ranges_json(ranges: Mapping[str, Range]) -> str:
    """{tensor: {minimum, maximum}}, sorted by tensor: what ``tensor_ranges`` of a config takes. Floats are exact.

    Raises:
        EngineError: a range is not finite; names the tensor.
    """
    for name, found in ranges.items():
        if not (math.isfinite(found.minimum) and math.isfinite(found.maximum)):
            raise EngineError(
                f"tensor {name!r} has no finite range on the calibration data",
                hint="The float model computes NaN or Inf there; check the preprocessing, or exclude the node.",
                tensor=name,
            )
    plain = {name: {"minimum": found.minimum, "maximum": found.maximum} for name, found in sorted(ranges.items())}
    return json.dumps(plain, indent=1, ensure_ascii=False, allow_nan=False) + "\n"

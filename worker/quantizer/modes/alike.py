"""Prepares and plans a model such that it goes on to compute what it did: a pass that changes that is left out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import onnx_ir as ir

from service.contracts.errors import EngineError, ModelError
from worker.quantizer.modes.planning import Planned, plan_model, prepare_model
from worker.quantizer.preparation.prepare import Prepared
from worker.quantizer.refine.case import Case
from worker.quantizer.refine.unchanged import strays
from worker.quantizer.run.services import Services

Found = tuple[Prepared, list[str], Planned]


def kept_alike(found: Found, reloaded: Callable[[], ir.Model], case: Case, services: Services) -> Found:
    """What was prepared and planned, or that with the passes left out that changed what the model computes.

    Args:
        found: the prepared model, notes, and what was planned.
        reloaded: a copy of the float model as it was before it was prepared.
        case: with the float model and the data.
        services: of the run.

    Raises:
        UnsupportedModelError: the model gives other outputs each time that it runs.
        EngineError: whatever is left out, some output is another.
    """
    prepared, _, planned = found
    if planned.plan.is_empty or not prepared.keeps_function:
        return found
    changed = strays(planned.unedited, case, services)
    if not changed:
        return found
    name, how = next(iter(changed.items()))
    for without in _choices(prepared):
        services.run.check()
        try:
            again, notes = prepare_model(reloaded(), case.config, without=without)
            planned = plan_model(again, case.config)
            if strays(planned.unedited, case, services):
                continue
        except (EngineError, ModelError):
            continue  # this model needs the pass: the next choice has its turn, and the last one an error
        words = f"preparation leaves {', '.join(sorted(without))} out, which changed output {name!r} ({how})"
        services.run.log(words, "warning")
        return again, [*notes, words], planned
    raise EngineError(
        f"preparation changed output {name!r} of the model ({how})",
        hint="Export the model with opset 17 or later, so that fewer preparation passes are needed.",
        output=name,
    )


def _choices(prepared: Prepared) -> Iterator[frozenset[str]]:
    """Passes to leave out: each that did something, the last one first, then all of them."""
    applied = [step.name for step in prepared.steps if step.applied and step.name not in _NEEDED]
    yield from (frozenset({name}) for name in reversed(applied))
    if len(applied) > 1:
        yield frozenset(applied)


# Others rely on what these do.
_NEEDED = frozenset({"inline_functions", "name_everything", "fix_shapes", "nhwc_input"})

"""The default name of a job: what is done with its model, and by which recipe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from service.contracts.presets import find_preset

# Methods of algorithms as they are called in names and tables.
ALGORITHM_NAMES: dict[str, str] = {
    "cross_layer_equalization": "CLE",
    "outlier_channels": "outlier channels",
    "smooth_quant": "SmoothQuant",
    "awq": "AWQ",
    "bias_correction": "bias correction",
    "adaround": "AdaRound",
    "adaquant": "AdaQuant",
    "mixed_precision": "mixed precision",
    "selective_precision": "selective precision",
    "autopilot": "autopilot",
    "sensitivity": "sensitivity",
    "qat": "QAT",
}
# Of a preset that sets nothing of its own.
_BARE = "plain"
_VERBS = {
    "evaluate": "Evaluate",
    "inspect_target": "Inspect",
    "inspect_model": "Validate",
    "inspect_dataset": "Validate",
}


def recipe(preset: str | None, algorithms: Sequence[str] | None) -> str:
    """The recipe in short, such as "xint8 + CLE": the preset, and the algorithms that it does not have itself."""
    known = None if preset is None else find_preset(preset)
    own: list[dict[str, Any]] = [] if known is None else known.settings.get("algorithms", [])
    own_methods = {entry["method"] for entry in own}
    added = [ALGORITHM_NAMES.get(one, one) for one in dict.fromkeys(algorithms or ()) if one not in own_methods]
    first = "custom config" if preset in (None, _BARE) else str(preset)
    return " + ".join([first, *added])


def default_name(kind: str, model: str, *, preset: str | None = None, algorithms: Sequence[str] | None = None) -> str:
    """The name of a job that was given none.

    Args:
        kind: of the job.
        model: name and version of its model as NAME@VERSION; of an inspected dataset its id.
        preset: of its config.
        algorithms: methods of its config, in order.
    """
    if kind == "quantize":
        return f"{model}, {recipe(preset, algorithms)}"
    return f"{_VERBS[kind]} {model}"

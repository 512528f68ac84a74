"""Named recipes. A preset is data: settings of a QuantizationConfig and a line that says whom it is for."""

from __future__ import annotations

from service.contracts.base import nearest_key
from service.contracts.presets.base import Execution, Preset
from service.contracts.presets.own import MIXED_PRESETS, OWN_PRESETS
from service.contracts.presets.quark import PENDING_PRESETS, QUARK_PRESETS

DEFAULT_PRESET = "int8"
# The presets to choose from first, each with whom it is for; the page of a new job and the command line show them.
RECOMMENDED: dict[str, str] = {
    "int8": "Fast 8-bit integers on CPUs. The default, and the one to start with.",
    "int8_accurate": "As fast as int8, with AdaRound: a smaller accuracy drop for a longer run.",
    "int8_transformer": "8-bit integers with SmoothQuant, for transformers on CPUs.",
    "npu_int8": "8-bit integers with power-of-two scales, for AMD NPUs.",
    "int4_weights_accurate": "4-bit weights with AdaRound, activations in float: the smallest file.",
    "float16_model": "Half the size at almost no accuracy drop, for GPUs. Needs no data.",
}

PRESETS: dict[str, Preset] = {preset.name: preset for preset in (*OWN_PRESETS, *QUARK_PRESETS, *MIXED_PRESETS)}

_BY_ANY_NAME: dict[str, Preset] = {
    name.casefold(): preset
    for preset in PRESETS.values()
    for name in (preset.name, *preset.aliases, *preset.quark_names)
}


def find_preset(name: str) -> Preset | None:
    """The preset of this name, alias or name in AMD Quark, letter case aside; None if there is none."""
    return _BY_ANY_NAME.get(name.casefold())


def missing_preset(name: str) -> str:
    """Why ``find_preset`` finds nothing under ``name``: what the preset waits for, or the nearest name there is."""
    pending = PENDING_PRESETS.get(name.casefold().removesuffix("_config"))
    if pending is not None:
        return f"the preset {name!r} cannot be offered: {pending}"
    near = nearest_key(name, [*_BY_ANY_NAME, *PENDING_PRESETS])
    hint = f"did you mean {near!r}?" if near else f"recommended: {', '.join(RECOMMENDED)}"
    return f"unknown preset {name!r}; {hint}"


__all__ = [
    "DEFAULT_PRESET",
    "PENDING_PRESETS",
    "PRESETS",
    "RECOMMENDED",
    "Execution",
    "Preset",
    "find_preset",
    "missing_preset",
]

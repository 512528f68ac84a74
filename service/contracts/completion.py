"""A config document in full: what it leaves out, taken from its preset and from its own specs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from service.contracts.algorithms import with_levels
from service.contracts.presets import DEFAULT_PRESET, find_preset
from service.contracts.specs import merged, with_calibration

# Where the rest of an override's spec is taken from.
_SPEC_OF = {"activation": "activation", "input_activation": "activation", "weight": "weight", "bias": "bias"}


def completed(data: dict[str, Any]) -> dict[str, Any]:
    """The document with everything that its preset says and it does not; nothing is validated."""
    name, given = data.get("preset", DEFAULT_PRESET), data.get("algorithms")
    preset = find_preset(name) if isinstance(name, str) else None
    own = data.get("activation")
    chosen = isinstance(own, Mapping) and "calibration" in own
    if own is not None:
        data = {**data, "activation": with_calibration(own)}
    if preset is not None:
        own_mode = preset.settings.get("mode", "static")
        if data.get("mode", own_mode) != own_mode:
            data = {"algorithms": [], **data}  # the preset's are for its own mode
        data = merged(preset.settings, {**data, "preset": preset.name})
    if isinstance(given, list | tuple):
        data = {**data, "algorithms": _spelled_out(data, given)}
    return {**data, "overrides": _complete_overrides(data, chosen)} if data.get("overrides") else data


def _spelled_out(data: dict[str, Any], given: Sequence[Any]) -> list[Any]:
    """The algorithms; what an entry says in short is not to be taken from the preset's entry of its method."""
    found = []
    for entry, own in zip(data["algorithms"], given, strict=True):
        if isinstance(entry, dict) and isinstance(own, Mapping) and own.get("combination") is not None:
            entry = {key: value for key, value in entry.items() if key not in ("high", "low") or key in own}
        found.append(with_levels(entry, data.get("activation"), data.get("weight")))
    return found


def _complete_overrides(data: dict[str, Any], chosen: bool) -> Any:
    """Every override's specs in full: what they leave out is taken from the config's own.

    Unless the document has chosen a calibration for all its activations, an override's type asks for its own.
    """
    overrides = data["overrides"]
    if not isinstance(overrides, list | tuple):
        return overrides
    found = []
    for override in overrides:
        if isinstance(override, dict):
            override = {
                key: _complete_spec(data, key, value, chosen) if key in _SPEC_OF and isinstance(value, dict) else value
                for key, value in override.items()
            }
        found.append(override)
    return found


def _complete_spec(data: dict[str, Any], key: str, given: dict[str, Any], chosen: bool) -> dict[str, Any]:
    part = _SPEC_OF[key]
    wanted = with_calibration(given) if part == "activation" and not chosen else given
    return merged(data.get(part) or {}, wanted)

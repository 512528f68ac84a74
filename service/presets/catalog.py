"""All presets with what the engine makes of them, for the API and the command line."""

from __future__ import annotations

import json
from dataclasses import dataclass

from service.contracts.config import QuantizationConfig
from service.contracts.errors import QuantmillError
from service.contracts.presets import DEFAULT_PRESET, PENDING_PRESETS, PRESETS, Preset, find_preset, missing_preset


class PresetNotFoundError(QuantmillError):
    """There is no such preset."""

    code = "preset-not-found"
    title = "No such preset"
    status = 404


@dataclass(frozen=True)
class PresetEntry:
    """A preset and what it resolves to when nothing else is given."""

    preset: Preset
    config: QuantizationConfig

    @property
    def default(self) -> bool:
        """True for the preset that is taken where none is named."""
        return self.preset.name == DEFAULT_PRESET


def entries() -> list[PresetEntry]:
    """Every preset, by name."""
    return [entry(PRESETS[name]) for name in sorted(PRESETS)]


def entry(preset: Preset) -> PresetEntry:
    """One preset."""
    return PresetEntry(preset, QuantizationConfig(preset=preset.name))


def named(name: str) -> PresetEntry:
    """The preset of this name, alias or name in AMD Quark.

    Raises:
        PresetNotFoundError: there is none; tells what it waits for, or the nearest name there is.
    """
    preset = find_preset(name)
    if preset is None:
        raise PresetNotFoundError(
            f"{missing_preset(name)}.",
            hint="'quantmill presets' and GET /v1/presets list all names.",
            path_parameter="name",
        )
    return entry(preset)


def pending() -> list[tuple[str, str]]:
    """(name, reason) of every preset that is not offered, by name."""
    return sorted(PENDING_PRESETS.items())


def page(name: str) -> str:
    """One preset in full, as text.

    Raises:
        PresetNotFoundError: as ``named`` does.
    """
    found = named(name)
    preset = found.preset
    lines = [preset.name, f"  {preset.description}", f"  onnxruntime: {preset.execution.statement}"]
    if preset.aliases or preset.quark_names:
        lines.append(f"  also: {', '.join((*preset.aliases, *preset.quark_names))}")
    lines += [f"  note: {note}" for note in preset.notes]
    return "\n".join([*lines, json.dumps(preset.settings, indent=2)])

"""All presets with their execution, searchable by group and text."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from service.contracts.config import QuantizationConfig
from service.contracts.errors import QuantmillError
from service.contracts.presets import (
    DEFAULT_PRESET,
    PENDING_PRESETS,
    PRESETS,
    RECOMMENDED,
    Preset,
    find_preset,
    missing_preset,
)
from service.contracts.presets.own import MIXED_PRESETS, OWN_PRESETS


class PresetNotFoundError(QuantmillError, code="preset-not-found", title="Preset not found", status=404):
    """The preset does not exist."""


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
            hint="List all presets with GET /v1/presets.",
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


# Presets by kind and by search, for the command line.

_OWN = frozenset(preset.name for preset in OWN_PRESETS)
_MIXED = frozenset(preset.name for preset in MIXED_PRESETS)
_FINETUNING = ("adaround", "adaquant")


def _is_finetuned(preset: Preset) -> bool:
    methods = (algorithm["method"] for algorithm in preset.settings.get("algorithms", ()))
    return any(method in _FINETUNING for method in methods)


# The first that holds counts.
GROUPS: tuple[tuple[str, str, Callable[[Preset], bool]], ...] = (
    ("own", "Other presets of Quantmill", lambda preset: preset.name in _OWN),
    ("mixed", "AMD Quark presets with mixed precision", lambda preset: preset.name in _MIXED),
    ("finetuned", "AMD Quark presets with AdaRound or AdaQuant", _is_finetuned),
    ("quark", "Other AMD Quark presets", lambda preset: True),
)


def group_of(preset: Preset) -> str:
    """The kind of preset: own, mixed, finetuned or quark."""
    return next(name for name, _, holds in GROUPS if holds(preset))


def find(search: str | None) -> list[PresetEntry]:
    """All presets; the one of this name, alias or name in Quark; or those in whose words all of ``search`` occur.

    Raises:
        PresetNotFoundError: there is none.
    """
    if search is None:
        return entries()
    named = find_preset(search)
    if named is not None:
        return [entry(named)]
    words = search.casefold().split()
    found = [one for one in entries() if words and all(word in _text(one.preset) for word in words)]
    if not found:
        raise PresetNotFoundError(f"{missing_preset(search)}.", hint="List all presets with GET /v1/presets.")
    return found


def as_text(found: Sequence[PresetEntry], *, whole: bool = True, with_pending: bool = False) -> str:
    """The recommended presets, then the rest by kind, each with its other names; their notes are below, each once.

    Args:
        found: what to list.
        whole: list the presets that are for AMD Quark as well; False: count them.
        with_pending: list what is not offered, and why.
    """
    chosen = [one for name in RECOMMENDED for one in found if one.preset.name == name]
    others = [one for one in found if one not in chosen]
    shown = [one for one in others if whole or group_of(one.preset) == "own"]
    notes = dict.fromkeys(note for one in shown for note in one.preset.notes)
    numbers = {note: number for number, note in enumerate(notes, 1)}
    lines = ["Recommended:", *map(_recommended, chosen), ""] if chosen else []
    for name, title, _ in GROUPS:
        members = [one for one in shown if group_of(one.preset) == name]
        if members:
            lines += [f"{title}:", *(line for one in members for line in _lines(one, numbers)), ""]
    if numbers:
        lines += ["Notes:", *(f"  [{number}] {note}" for note, number in numbers.items()), ""]
    if with_pending:
        lines += ["Not available:", *(f"  {name:<28} {reason}" for name, reason in pending()), ""]
    if len(shown) < len(others):
        lines.append(f"{len(others) - len(shown)} more for AMD Quark: `quantmill presets --all`")
    return "\n".join(
        [*lines, "'quantmill presets NAME' shows one preset in full; 'quantmill presets WORDS' searches presets."]
    )


def to_json(found: Sequence[PresetEntry]) -> str:
    """The same for programs."""
    items = [
        {
            "name": one.preset.name,
            "group": group_of(one.preset),
            "default": one.default,
            "description": one.preset.description,
            "aliases": [*one.preset.aliases, *one.preset.quark_names],
            "execution": one.preset.execution.model_dump(),
            "notes": list(one.preset.notes),
            "config": one.config.model_dump(mode="json"),
        }
        for one in found
    ]
    return json.dumps({"items": items}, indent=2)


def _recommended(one: PresetEntry) -> str:
    return f"  {one.preset.name:<28} {RECOMMENDED[one.preset.name]}"


def _lines(one: PresetEntry, numbers: Mapping[str, int]) -> list[str]:
    preset = one.preset
    kind = "native" if preset.execution.native else "simulated"
    default = " (default)" if one.default else ""
    marks = "".join(f" [{numbers[note]}]" for note in preset.notes)
    lines = [f"  {preset.name:<28} {kind:<10} {preset.description}{default}{marks}"]
    others = [*preset.aliases, *preset.quark_names]
    if others:
        lines.append(f"  {'':<28} also: {', '.join(others)}")
    return lines


def _text(preset: Preset) -> str:
    words = (preset.name, *preset.aliases, *preset.quark_names, preset.description, *preset.notes, group_of(preset))
    return " ".join(words).casefold()

"""All presets with what the engine makes of them, for the API and the command line."""

from __future__ import annotations

from dataclasses import dataclass

from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import DEFAULT_PRESET, PENDING_PRESETS, PRESETS, Preset


@dataclass(frozen=True)
class Entry:
    """A preset as it can be used now.

    Attributes:
        config: what it resolves to; None while ``missing`` names a reason.
        missing: one sentence per setting that is refused.
    """

    preset: Preset
    config: QuantizationConfig | None
    missing: tuple[str, ...] = ()

    @property
    def default(self) -> bool:
        """True for the preset that is taken where none is named."""
        return self.preset.name == DEFAULT_PRESET


def entries() -> list[Entry]:
    """Every preset, by name."""
    return [entry(PRESETS[name]) for name in sorted(PRESETS)]


def entry(preset: Preset) -> Entry:
    """One preset."""
    try:
        return Entry(preset, parse_config({"preset": preset.name}))
    except InvalidConfigError as error:
        return Entry(preset, None, tuple(problem.message for problem in error.errors))


def pending() -> list[tuple[str, str]]:
    """(name, reason) of every preset that cannot be offered yet, by name."""
    return sorted(PENDING_PRESETS.items())

"""All targets with the rules that a config may switch, for the API and the command line."""

from __future__ import annotations

from pydantic import BaseModel, Field

from service.contracts.config import QuantizationConfig
from service.contracts.errors import QuantmillError
from service.contracts.targets import TARGET_DESCRIPTIONS, TARGET_OPTIONS, TargetOption, unknown_target


class TargetNotFoundError(QuantmillError, code="target-not-found", title="Target not found", status=404):
    """The target does not exist."""


class TargetOut(BaseModel):
    """A runtime or hardware target that models are quantized for."""

    name: str = Field(description="Name of the target, as used in a config.")
    description: str
    default: bool = Field(description="True for the target that applies if a config names none.")
    options: list[TargetOption] = Field(description="Rules that a config may change under target_options.")


def targets() -> list[TargetOut]:
    """Every target, by name."""
    return [named(name) for name in sorted(TARGET_OPTIONS)]


def named(name: str) -> TargetOut:
    """The target of this name.

    Raises:
        TargetNotFoundError: there is none; tells the nearest name there is.
    """
    if name not in TARGET_OPTIONS:
        raise TargetNotFoundError(
            f"{unknown_target(name)}.",
            hint="List all targets with GET /v1/targets.",
            path_parameter="name",
        )
    return TargetOut(
        name=name,
        description=TARGET_DESCRIPTIONS[name],
        default=name == QuantizationConfig.model_fields["target"].default,
        options=list(TARGET_OPTIONS[name]),
    )


def overview() -> str:
    """All targets, a line each, as text."""
    found = targets()
    return "\n".join(f"{item.name:<20} {item.description}{' (default)' if item.default else ''}" for item in found)


def page(name: str) -> str:
    """One target with its options, as text.

    Raises:
        TargetNotFoundError: as ``named`` does.
    """
    found = named(name)
    lines = [found.name, f"  {found.description}", "  target_options:"]
    lines += [
        f"    {option.name:<24} {'on ' if option.default else 'off'}  {option.description}" for option in found.options
    ]
    return "\n".join(lines)

"""HTTP routes of presets."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from service.contracts.config import QuantizationConfig
from service.contracts.presets import Execution
from service.deps import PrincipalDep
from service.http import problems
from service.presets import catalog

router = APIRouter(prefix="/v1/presets", tags=["presets"])


class PresetOut(BaseModel):
    """A named recipe."""

    name: str
    aliases: list[str] = Field(description="Other names that a config may use, including those of AMD Quark.")
    description: str
    default: bool = Field(description="True for the preset that applies if a config names none.")
    execution: Execution
    notes: list[str] = Field(description="Intended differences from the Quark preset of the same name.")
    config: QuantizationConfig = Field(description="The config that the preset resolves to without further settings.")


class PendingPreset(BaseModel):
    """A recipe of AMD Quark that is not available."""

    name: str
    reason: str


class PresetList(BaseModel):
    """All presets."""

    items: list[PresetOut]
    pending: list[PendingPreset] = Field(description="Known preset names that are not available, with the reason.")


@router.get("")
def list_presets(_: PrincipalDep) -> PresetList:
    """List all presets."""
    pending = [PendingPreset(name=name, reason=reason) for name, reason in catalog.pending()]
    return PresetList(items=[_out(entry) for entry in catalog.entries()], pending=pending)


@router.get("/{name}", responses=problems(catalog.PresetNotFoundError))
def get_preset(name: str, _: PrincipalDep) -> PresetOut:
    """Get a preset by any of its names."""
    return _out(catalog.named(name))


def _out(entry: catalog.PresetEntry) -> PresetOut:
    preset = entry.preset
    return PresetOut(
        name=preset.name,
        aliases=[*preset.aliases, *preset.quark_names],
        description=preset.description,
        default=entry.default,
        execution=preset.execution,
        notes=list(preset.notes),
        config=entry.config,
    )

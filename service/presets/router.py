"""HTTP face of presets."""

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
    aliases: list[str] = Field(description="Other names that a config may use, those of AMD Quark among them.")
    description: str
    default: bool = Field(description="True for the preset that is taken where none is named.")
    execution: Execution
    notes: list[str] = Field(description="Where it deliberately differs from the Quark preset of its name.")
    config: QuantizationConfig = Field(description="What it resolves to when nothing else is given.")


class PendingPreset(BaseModel):
    """A recipe of AMD Quark that is not offered."""

    name: str
    reason: str


class PresetList(BaseModel):
    """All presets."""

    items: list[PresetOut]
    pending: list[PendingPreset] = Field(description="Known names that a config may not use, with the reason.")


@router.get("")
def list_presets(_: PrincipalDep) -> PresetList:
    """All presets."""
    pending = [PendingPreset(name=name, reason=reason) for name, reason in catalog.pending()]
    return PresetList(items=[_out(entry) for entry in catalog.entries()], pending=pending)


@router.get("/{name}", responses=problems(catalog.PresetNotFoundError))
def get_preset(name: str, _: PrincipalDep) -> PresetOut:
    """One preset, by any of its names."""
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

"""HTTP face of presets."""

from __future__ import annotations

from fastapi import APIRouter
from pydantic import BaseModel, Field

from service.contracts.config import QuantizationConfig
from service.contracts.errors import QuantmillError
from service.contracts.presets import DEFAULT_PRESET, PRESETS
from service.deps import PrincipalDep

router = APIRouter(prefix="/v1/presets", tags=["presets"])


class PresetNotFoundError(QuantmillError):
    """There is no such preset."""

    code = "preset-not-found"
    title = "No such preset"
    status = 404


class PresetOut(BaseModel):
    """A named recipe."""

    name: str
    description: str
    default: bool = Field(description="True for the preset that is taken where none is named.")
    config: QuantizationConfig = Field(description="What it resolves to when nothing else is given.")


class PresetList(BaseModel):
    """All presets."""

    items: list[PresetOut]


@router.get("")
def list_presets(_: PrincipalDep) -> PresetList:
    """All presets."""
    return PresetList(items=[_out(name) for name in sorted(PRESETS)])


@router.get("/{name}")
def get_preset(name: str, _: PrincipalDep) -> PresetOut:
    """One preset."""
    if name not in PRESETS:
        raise PresetNotFoundError(
            f"There is no preset {name!r}.", hint=f"There are: {', '.join(sorted(PRESETS))}.", path_parameter="name"
        )
    return _out(name)


def _out(name: str) -> PresetOut:
    return PresetOut(
        name=name,
        description=PRESETS[name].description,
        default=name == DEFAULT_PRESET,
        config=QuantizationConfig(preset=name),
    )

"""How many bits the weights take: layers and bytes by the number type that they are stored as."""

from __future__ import annotations

from dataclasses import dataclass

from service.contracts.report import LayerFigures, Report

_FLOAT = "float"


@dataclass(frozen=True)
class Width:
    """Layers whose weights are stored alike.

    Attributes:
        stored_as: number type of the weights.
        layers: how many.
        size_bytes: of their weights; None: the report does not tell.
        share: of the bytes of all layers, 0 to 1.
    """

    stored_as: str
    layers: int
    size_bytes: int | None
    share: float


def widths(report: Report) -> list[Width]:
    """By number type, the most bytes first; layers without weights are left out."""
    groups: dict[str, list[LayerFigures]] = {}
    for layer in report.layers:
        if layer.weight_dtype is not None or layer.weight_bytes is not None:
            groups.setdefault(layer.weight_dtype or _FLOAT, []).append(layer)
    total = sum(layer.weight_bytes or 0 for layer in report.layers)
    found = [
        Width(stored_as, len(rows), size, 0.0 if not total else (size or 0) / total)
        for stored_as, rows in groups.items()
        for size in (_bytes(rows),)
    ]
    return sorted(found, key=lambda one: (-(one.size_bytes or 0), -one.layers, one.stored_as))


def _bytes(rows: list[LayerFigures]) -> int | None:
    told = [layer.weight_bytes for layer in rows if layer.weight_bytes is not None]
    return sum(told) if told else None

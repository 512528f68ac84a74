"""What differs between documents and between the layers of reports."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from service.comparison.schemas import ComparedLayer, ConfigDifference
from service.contracts.pointers import below
from service.contracts.report import LayerFigures


def differences(documents: Sequence[Any]) -> list[ConfigDifference]:
    """Each smallest place where JSON documents differ, in order; lists of other lengths differ as wholes."""
    return [ConfigDifference(pointer=place, values=tuple(values)) for place, values in _differing("", documents)]


def _differing(place: str, values: Sequence[Any]) -> Iterator[tuple[str, Sequence[Any]]]:
    if all(_same(value, values[0]) for value in values):
        return
    if all(isinstance(value, dict) for value in values):
        for name in sorted({name for value in values for name in value}):
            yield from _differing(below(place, name), [value.get(name) for value in values])
    elif all(isinstance(value, list) and len(value) == len(values[0]) for value in values):
        for k in range(len(values[0])):
            yield from _differing(below(place, k), [value[k] for value in values])
    else:
        yield place, values


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: true is not 1."""
    return one == other and isinstance(one, bool) == isinstance(other, bool)


def differing_layers(reports: Sequence[Sequence[LayerFigures]]) -> list[ComparedLayer]:
    """Layers whose SQNR differs between the reports, the most differing first."""
    tables = [{layer.name: layer for layer in layers} for layers in reports]
    found = []
    for name in dict.fromkeys(name for table in tables for name in table):
        figures = [table[name].sqnr_db if name in table else None for table in tables]
        known = [figure for figure in figures if figure is not None]
        if len(known) > 1 and max(known) > min(known):
            op = next(table[name].op for table in tables if name in table)
            found.append(ComparedLayer(name=name, op=op, sqnr_db=tuple(figures), spread_db=max(known) - min(known)))
    return sorted(found, key=lambda layer: -layer.spread_db)

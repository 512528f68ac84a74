"""What differs between documents and between the layers of reports."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from service.comparison.samples import Samples
from service.comparison.schemas import ComparedLayer, ConfigDifference
from service.contracts.base import below
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


class ChangedSample(NamedTuple):
    """One sample that both models decide otherwise.

    Attributes:
        number: of the sample in its data, from 0.
        label: what it should be; None: the data has no labels.
        before, after: class of the float and of the quantized model.
        confidence: the float model's probability of its own decision, 0 to 1; None: not known.
    """

    number: int
    label: int | None
    before: int
    after: int
    confidence: float | None


class ClassChanges(NamedTuple):
    """What quantization has changed."""

    samples: int  # how many there are in all
    total: int  # how many of them changed
    first: list[ChangedSample]  # the first of those


def changes(found: Samples, most: int) -> ClassChanges | None:
    """Samples whose class changed, in the order of the data; None: the output gives no class per sample."""
    if found.decisions is None:
        return None
    before, after = found.columns["float_class"], found.columns["quantized_class"]
    labels, sure = found.columns.get("label"), found.columns.get("float_confidence")
    numbers = np.flatnonzero(before != after)
    first = [
        ChangedSample(
            number,
            None if labels is None or labels[number] < 0 else int(labels[number]),
            int(before[number]),
            int(after[number]),
            None if sure is None or not math.isfinite(sure[number]) else float(sure[number]),
        )
        for number in numbers[:most].tolist()
    ]
    return ClassChanges(len(before), len(numbers), first)

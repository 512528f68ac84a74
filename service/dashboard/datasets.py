"""Datasets: the list, and one dataset with what validation has found in it: figures and drawings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fastapi import APIRouter, Request, Response
from markupsafe import Markup

from service.contracts.dataset import (
    WAVEFORM_STEPS,
    ArraySummary,
    ClassCounts,
    DatasetSummary,
    ValueProfile,
    Waveform,
    Waveforms,
)
from service.contracts.errors import QuantmillError
from service.contracts.report import Histogram
from service.dashboard import new_files
from service.dashboard.forms import sent, told_at
from service.dashboard.pages import PageRoute, see
from service.dashboard.resources import Edit, resource_routes, shown_resource
from service.datasets.service import dataset_in_list, dataset_out
from service.deps import AppDep, AppState, PrincipalDep
from service.names.kinds import DATASETS
from service.names.service import get
from service.reports import charts
from service.reports.figures import count, figure, name, percent
from service.tables import Dataset

# Up to so many classes each has a row with its name; more are drawn side by side.
MOST_ROWS = 30
_WIDTH, _ROW, _NAMES, _NUMBERS = 320.0, 20.0, 130.0, 56.0
_NAME_CHARACTERS = 18
_MOST_BARS = 222  # of two pixels each
_SIDE_WIDTH, _SIDE_HEIGHT = 460.0, 180.0
_WAVE_WIDTH, _WAVE_HEIGHT = 260.0, 64.0


def class_rows(rows: Sequence[tuple[str, int]], label: str) -> Markup:
    """A bar per class, with its name and its number of samples.

    Args:
        rows: name and samples, at least one row.
        label: the picture in words.
    """
    root = charts.picture(_WIDTH, _ROW * len(rows) + 4, label)
    room = _WIDTH - _NAMES - _NUMBERS
    most = max(number for _, number in rows) or 1
    for k, (words, number) in enumerate(rows):
        top = 2 + _ROW * k
        charts.text(root, (_NAMES - 6, top + 14), name(words, _NAME_CHARACTERS), anchor="end")
        wide = max(room * number / most, 1.0)
        charts.box(root, (_NAMES, top + 3), wide, _ROW - 6, "bar")
        charts.text(root, (_NAMES + wide + 5, top + 14), f"{number:,}")
    charts.line(root, (_NAMES, 0), (_NAMES, _ROW * len(rows) + 4), "axis")
    return charts.drawn(root)


def class_outline(numbers: Sequence[int], counts: Sequence[int], label: str) -> Markup:
    """Many classes side by side, by their number, as one outline with gaps where classes have no samples.

    Args:
        numbers: of the classes that have samples, ascending.
        counts: samples of each.
        label: the picture in words.
    """
    left, right, top, bottom = 8.0, _SIDE_WIDTH - 8.0, 20.0, _SIDE_HEIGHT - 20.0
    first, each = numbers[0], -(-(numbers[-1] + 1 - numbers[0]) // _MOST_BARS)
    sums = [0] * ((numbers[-1] - first) // each + 1)
    for number, samples in zip(numbers, counts, strict=True):
        sums[(number - first) // each] += samples
    wide, most = (right - left) / len(sums), max(sums) or 1
    points = [(left, bottom)]
    for k, size in enumerate(sums):
        height = bottom - (bottom - top) * size / most
        points += [(left + k * wide, height), (left + (k + 1) * wide, height)]
    root = charts.picture(_SIDE_WIDTH, _SIDE_HEIGHT, label)
    charts.path(root, [*points, (right, bottom)], "bar")
    charts.line(root, (left, bottom), (right, bottom), "axis")
    charts.line(root, (left, top), (right, top), "limit")
    charts.text(root, (left, top - 6), count(most, "sample") + (f" in {each} classes" if each > 1 else ""))
    charts.text(root, (left, _SIDE_HEIGHT - 5), f"class {numbers[0]}")
    charts.text(root, (right, _SIDE_HEIGHT - 5), f"class {numbers[-1]}", anchor="end")
    return charts.drawn(root)


def values(profile: ValueProfile, label: str) -> Markup:
    """How often which values occur, on a logarithmic scale."""
    return charts.histogram(Histogram(minimum=profile.low, maximum=profile.high, counts=profile.counts), label)


def waveform(wave: Waveform, loudest: float, label: str) -> Markup:
    """A sound over time, from its least to its greatest value.

    Args:
        wave: the sound.
        loudest: magnitude that fills the height.
        label: the picture in words.
    """
    middle = _WAVE_HEIGHT / 2
    root = charts.picture(_WAVE_WIDTH, _WAVE_HEIGHT, label)
    charts.line(root, (0, middle), (_WAVE_WIDTH, middle), "axis")
    if wave.lows:
        step = (middle - 2) * (wave.peak / loudest if loudest else 0.0) / WAVEFORM_STEPS
        across = [_WAVE_WIDTH * (k + 0.5) / len(wave.lows) for k in range(len(wave.lows))]
        upper = [(x, middle - high * step) for x, high in zip(across, wave.highs, strict=True)]
        lower = [(x, middle - low * step) for x, low in zip(across, wave.lows, strict=True)]
        charts.path(root, [*upper, *reversed(lower)], "bar second")
    return charts.drawn(root)


# More arrays than these have their range in the table alone.
_DRAWN_ARRAYS = 24


def content(summary: DatasetSummary | None) -> dict[str, Any] | None:
    """What is drawn, and the ranges of arrays by name; None for a dataset that is not validated, or was before its
    content was counted.
    """
    if summary is None or summary.profile is None:
        return None
    found = summary.profile
    drawn = list(found.values.items())[:_DRAWN_ARRAYS]
    return {
        "classes": None if found.classes is None else _classes(found.classes, summary),
        "ranges": found.values,
        "arrays": [_values(array, profile) for array, profile in drawn],
        "arrays_more": len(found.values) - len(drawn),
        "waves": None if found.waveforms is None else _waves(found.waveforms),
    }


def _classes(found: ClassCounts, summary: DatasetSummary) -> dict[str, Any]:
    """Number, name and samples of each; without a picture where there are too many classes to draw."""
    names = () if summary.media is None else summary.media.classes or ()
    rows = [
        (number, names[number] if number < len(names) else None, samples)
        for number, samples in zip(found.numbers, found.counts, strict=True)
    ]
    words, picture = _class_words(found, summary), _class_picture(found, rows)
    return {
        "words": words,
        "rows": rows,
        "named": any(word is not None for _, word, _ in rows),
        "is_whole": found.is_whole,
        "picture": picture,
    }


def _class_words(found: ClassCounts, summary: DatasetSummary) -> str:
    each = f"{found.fewest:,} to {count(found.most, 'sample')}"
    if found.fewest == found.most:
        each = count(found.most, "sample")
    words = f"{count(found.distinct, 'class', 'classes')} of {each} each."
    greatest = None if summary.labels is None else summary.labels.maximum
    absent = 0 if greatest is None else greatest + 1 - found.distinct
    if absent > 0:
        whole = count(absent + found.distinct, "class", "classes")
        words += f" {absent:,} of the {whole} up to the highest label {'has' if absent == 1 else 'have'} no samples."
    return words


def _class_picture(found: ClassCounts, rows: list[tuple[int, str | None, int]]) -> Markup | None:
    if not found.is_whole or found.fewest == found.most:
        return None
    label = f"Samples by class, {len(rows)} in all: {found.fewest} to {found.most} each; the table lists them"
    if len(rows) > MOST_ROWS:
        return class_outline(found.numbers, found.counts, label)
    return class_rows([(word or f"class {number}", samples) for number, word, samples in rows], label)


def _values(array: str, profile: ValueProfile) -> dict[str, Any]:
    """From, to below, and how many; without a picture where all values are equal."""
    edges = profile.edges()
    bins = [(low, high, n) for low, high, n in zip(edges, edges[1:], profile.counts, strict=False) if n]
    if profile.minimum == profile.maximum:
        return {"name": array, "words": f"Every value is {figure(profile.minimum)}.", "picture": None}
    words = f"{figure(profile.minimum)} to {figure(profile.maximum)}, mean {figure(profile.mean)}"
    if not profile.is_exact:
        share = percent(100 * profile.counted / profile.values, 2)
        words += f"; mean and counts are of {profile.counted:,} of {profile.values:,} values ({share}), evenly taken"
    label = f"Values of {name(array, 40)}: counts; {words}; the table lists them"
    return {"name": array, "words": words, "rows": bins, "picture": values(profile, label)}


def _waves(found: Waveforms) -> dict[str, Any]:
    """Each sound with its length and peak in words and its drawing, all on one scale."""
    loudest = max((wave.peak for wave in found.samples), default=0.0)
    return {"array": found.array, "rows": [_wave(wave, found, loudest) for wave in found.samples]}


def _wave(wave: Waveform, found: Waveforms, loudest: float) -> tuple[Waveform, str, str, Markup]:
    length = count(wave.length, "value")
    if found.sample_rate_hz is not None:
        length = f"{wave.length / found.sample_rate_hz:.2f} s"
    peak = figure(wave.peak)
    if found.full_scale is not None:
        peak = f"{percent(100 * wave.peak / found.full_scale)} of full scale"
    label = f"Waveform of sample {wave.number}: {length}, peak {peak}"
    return wave, length, peak, waveform(wave, loudest, label)


router = APIRouter(route_class=PageRoute, include_in_schema=False)
_ARRAYS, _UNPROCESSABLE = 200, 422


def _facts(app: AppState, tenant_id: str, ref: str) -> tuple[Dataset, dict[str, Any]]:
    """The row, and what the template takes beside what both kinds have.

    Raises:
        DatasetNotFoundError: the tenant has no such dataset.
    """
    row = get(app, DATASETS, tenant_id, ref)
    dataset = dataset_out(row)
    arrays = [] if dataset.summary is None else list(dataset.summary.arrays.items())
    return row, {
        "resource": dataset,
        "dataset": dataset,
        "arrays": [(name, array, shape_words(array)) for name, array in arrays[:_ARRAYS]],
        "content": content(dataset.summary),
        "arrays_more": max(0, len(arrays) - _ARRAYS),
        "preparations": new_files.preparations(),
        "preprocessing": dataset.preprocessing.model_dump(mode="json", exclude_defaults=True),
    }


def shape_words(array: ArraySummary) -> str:
    """The shape, with the least and the greatest length where samples differ."""
    if array.shortest is None or array.longest is None:
        return " × ".join("any" if length is None else str(length) for length in array.shape)
    lengths = [
        str(low) if low == high else f"{low} to {high}" for low, high in zip(array.shortest, array.longest, strict=True)
    ]
    return " × ".join([str(array.shape[0]), *lengths])


@router.post("/datasets/{ref}/preprocessing")
async def prepare_otherwise(request: Request, ref: str, app: AppDep, principal: PrincipalDep) -> Response:
    """Make the next version of the same stored file with other preprocessing."""
    form = await sent(request)
    row = await app.reads.run(lambda: get(app, DATASETS, principal.tenant_id, ref))
    text = form.text("preprocessing")
    try:
        made = await new_files.dataset_again(app, principal, row, text or form.text("preprocessing_name"))
    except QuantmillError as error:
        if error.status != _UNPROCESSABLE:
            raise
        typed = Edit("", "", "", preprocessing=text or "", errors={"preprocessing": told_at(error, "/preprocessing")})
        return await shown_resource(DATASETS, dataset_in_list, _facts, request, app, principal, ref, typed)
    return see(request, f"/datasets/{made}")


router.include_router(resource_routes(DATASETS, dataset_in_list, _facts))

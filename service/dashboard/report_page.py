"""What the page of a report shows beside the sections that every report has."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote

from service.comparison.differences import ClassChanges, changes
from service.comparison.evidence import MOST_BYTES, samples_among, samples_of
from service.comparison.samples import SamplesUnreadableError
from service.contracts.dataset import DatasetSummary
from service.contracts.report import Advice, LayerFigures, Report
from service.contracts.sheets import SHEET_SIDE, sheet_corner, sheet_numbers, sheet_size
from service.datasets import service as datasets
from service.datasets.errors import DatasetNotFoundError
from service.deps import AppState
from service.jobs.views import JobView
from service.reports.layers import gain_words, storage_words
from service.storage import StoredFileCorruptError, StoredFileMissingError
from service.tables import Dataset

# Longer fragments are for the clipboard: addresses of this length are taken by /new.
MOST_PATCH_CHARS = 6000
_ROWS, _MOST_ROWS, _MOST_CHANGED, _MOST_OPS, _OP_CHARS = 100, 2000, 50, 200, 200


class LayerFilter(NamedTuple):
    """Which layers are listed; empty: all."""

    layer: str
    op: str
    kind: str


class LayerRow(NamedTuple):
    """One layer in words."""

    layer: LayerFigures
    stored: str
    gained: str


class LayerList(NamedTuple):
    """Layers that the filter lets through.

    Attributes:
        rows: the first of them, in the report's order: worst SQNR first, then those in float.
        found: how many it lets through.
        total: of the report.
        ops: operators to choose from.
    """

    rows: list[LayerRow]
    found: int
    total: int
    ops: list[tuple[str, str]]
    most: int = _MOST_ROWS


class Thumbnail(NamedTuple):
    """Where the picture of a sample stands on the sheet of its dataset."""

    address: str
    view_box: str
    width: int
    height: int


@dataclass(frozen=True)
class ChangedSamples:
    """Samples whose answer changed.

    Attributes:
        found: what the job's results by sample tell; None: nothing.
        why: why there is nothing.
        classes: names of classes by number, where the dataset has some.
        pictures: by number of the sample.
    """

    found: ClassChanges | None
    why: str = ""
    classes: tuple[str, ...] = ()
    pictures: dict[int, Thumbnail] | None = None

    def named(self, number: int | None) -> str:
        """A class in words."""
        if number is None:
            return "–"
        return f"{number} {self.classes[number]}" if 0 <= number < len(self.classes) else str(number)

    def picture(self, number: int) -> Thumbnail | None:
        """The picture of a sample, where it is on the sheet."""
        return (self.pictures or {}).get(number)


def layer_list(report: Report, wanted: LayerFilter, *, every: bool = False) -> LayerList:
    """The first layers that the filter lets through, or all of them up to a bound."""
    text = wanted.layer.casefold()
    found = [
        layer
        for layer in report.layers
        if (not text or any(text in one.casefold() for one in (layer.name, *layer.nodes)))
        and (not wanted.op or layer.op == wanted.op)
        and (not wanted.kind or (layer.reason is None) == (wanted.kind == "quantized"))
    ]
    found.sort(key=lambda layer: (layer.reason is not None, layer.sqnr_db is None, layer.sqnr_db or 0.0))
    rows = [LayerRow(one, storage_words(one), gain_words(one)) for one in found[: _MOST_ROWS if every else _ROWS]]
    ops = sorted({layer.op for layer in report.layers if len(layer.op) <= _OP_CHARS and layer.op.isprintable()})
    return LayerList(rows, len(found), len(report.layers), [(op, op) for op in ops[:_MOST_OPS]])


def try_address(root: str, job_id: str, advice: Advice) -> str | None:
    """Where a new job begins as this one was, with the advice put in; None: no address can hold it."""
    patch = quote(json.dumps(advice.config, separators=(",", ":")), safe="")
    return f"{root}/new?from={job_id}&patch={patch}" if len(patch) <= MOST_PATCH_CHARS else None


def changed_samples(app: AppState, tenant_id: str, view: JobView, source: str) -> ChangedSamples:
    """The samples whose answer changed, as far as the job has kept them; reads the store.

    Args:
        app: of the process.
        tenant_id: whose job.
        view: the job.
        source: which data was measured on; see ``Fidelity``.
    """
    file = samples_among(view.artifacts)
    if file is None or file.size_bytes > MOST_BYTES:
        return ChangedSamples(None, "The job keeps no results by sample: there is no class per sample, or too many.")
    try:
        found = changes(samples_of(app, file), _MOST_CHANGED)
    except (SamplesUnreadableError, StoredFileMissingError, StoredFileCorruptError) as error:
        return ChangedSamples(None, error.detail)
    if found is None:
        return ChangedSamples(None, "The output of the model gives no class per sample.")
    ids = {"evaluation": view.job.evaluation_dataset_id, "calibration": view.job.calibration_dataset_id}
    dataset = _dataset(app, tenant_id, ids.get(source))
    summary = None if dataset is None or not dataset.summary else DatasetSummary.model_validate(dataset.summary)
    if dataset is None or summary is None or summary.samples != found.samples:
        return ChangedSamples(found)
    classes = () if summary.media is None else summary.media.classes or ()
    pictures = _pictures(dataset.id, summary.samples) if summary.thumbnails and dataset.thumbnails_sha256 else {}
    return ChangedSamples(found, "", classes, pictures)


def _dataset(app: AppState, tenant_id: str, dataset_id: str | None) -> Dataset | None:
    if dataset_id is None:
        return None
    try:
        return datasets.get(app, tenant_id, dataset_id)
    except DatasetNotFoundError:
        return None  # it was deleted since: the samples are told by their numbers


def _pictures(dataset_id: str, samples: int) -> dict[int, Thumbnail]:
    numbers = sheet_numbers(samples)
    width, height = sheet_size(len(numbers))
    found = {}
    for place, number in enumerate(numbers):
        left, top = sheet_corner(place)
        box = f"{left} {top} {SHEET_SIDE} {SHEET_SIDE}"
        found[number] = Thumbnail(f"/v1/datasets/{dataset_id}/thumbnails", box, width, height)
    return found

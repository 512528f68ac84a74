"""Validation of an uploaded dataset."""

from __future__ import annotations

import hashlib
from pathlib import Path

from service.contracts.dataset import DatasetSummary, PreprocessingSpec, Thumbnails
from worker.quantizer.data.dataset import open_dataset
from worker.quantizer.data.profile import Profiler
from worker.quantizer.data.summary import BLOCK_BYTES

THUMBNAILS_FILE = "thumbnails.png"


def inspect_dataset(path: Path, preprocessing: PreprocessingSpec, *, thumbnails: Path | None = None) -> DatasetSummary:
    """Check all of a dataset and say what is in it, with a profile. Reads the file once, in blocks.

    Args:
        path: an .npz or .safetensors file, or an archive of pictures or sounds.
        preprocessing: which arrays feed which inputs, and how.
        thumbnails: folder that gets a sheet of small pictures, if the dataset holds pictures; None: none is made.

    Raises:
        DatasetError: with code dataset-format (damaged or hostile file), dataset-arrays (missing, unequal or
            unsupported arrays), dataset-labels, dataset-empty or non-finite-data.
    """
    data = open_dataset(path, preprocessing)
    summary = data.summarized(Profiler(BLOCK_BYTES))
    if thumbnails is None or data.media is None:
        return summary
    sheet = thumbnails / THUMBNAILS_FILE
    if not data.media.write_thumbnails(sheet):
        return summary
    content = sheet.read_bytes()
    made = Thumbnails(file=sheet.name, sha256=hashlib.sha256(content).hexdigest(), size_bytes=len(content))
    return summary.model_copy(update={"thumbnails": made})

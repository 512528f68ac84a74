"""Validation of an uploaded dataset."""

from __future__ import annotations

from pathlib import Path

from service.contracts.dataset import DatasetSummary, PreprocessingSpec
from worker.quantizer.data.dataset import open_dataset


def inspect_dataset(path: Path, preprocessing: PreprocessingSpec) -> DatasetSummary:
    """Check all of a dataset and say what is in it. Reads the file once, in blocks.

    Args:
        path: an .npz or .safetensors file.
        preprocessing: which arrays feed which inputs, and how.

    Raises:
        DatasetError: with code dataset-format (damaged or hostile file), dataset-arrays (missing, unequal or
            unsupported arrays), dataset-labels, dataset-empty or non-finite-data.
    """
    return open_dataset(path, preprocessing).summary

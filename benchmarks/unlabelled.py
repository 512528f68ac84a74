"""A dataset without its labels."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from service.contracts.dataset import PreprocessingSpec
from service.contracts.runner import DatasetSource


def without_labels(data: DatasetSource, folder: Path) -> DatasetSource:
    """The same inputs in a file that holds nothing else.

    Args:
        data: an .npz whose preprocessing names the array of every input.
        folder: to write the file in.
    """
    spec = data.preprocessing or PreprocessingSpec()
    wanted = {entry.array for entry in spec.inputs.values() if entry.array is not None}
    with np.load(data.path) as arrays:
        np.savez(folder / "unlabelled.npz", **{name: arrays[name] for name in wanted})
    bare = spec.model_copy(update={"labels": None})
    return DatasetSource(path=str(folder / "unlabelled.npz"), preprocessing=bare)

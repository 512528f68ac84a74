"""Streaming datasets: arrays, pictures and sounds read in blocks of samples, as hostile input."""

from worker.quantizer.data.dataset import (
    ArrayDataset,
    OpenDataset,
    SampleBatch,
    choose_batch_size,
    inspect_dataset,
    open_dataset,
)
from worker.quantizer.data.random_inputs import RandomDataset

__all__ = [
    "ArrayDataset",
    "OpenDataset",
    "RandomDataset",
    "SampleBatch",
    "choose_batch_size",
    "inspect_dataset",
    "open_dataset",
]

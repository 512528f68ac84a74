"""Streaming datasets: .npz and .safetensors files read in blocks of samples, as hostile input."""

from worker.quantizer.data.dataset import (
    ArrayDataset,
    Batch,
    Dataset,
    choose_batch_size,
    inspect_dataset,
    open_dataset,
)

__all__ = ["ArrayDataset", "Batch", "Dataset", "choose_batch_size", "inspect_dataset", "open_dataset"]

"""What is fuzzed: readers of uploads, and files of the right kind that they read well."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx

from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import DatasetError, QuantmillError
from tests.security.corpus import archives, models
from tests.security.corpus.pickles import safetensors
from worker.quantizer.data import inspect_dataset
from worker.quantizer.intake.loading import parse_proto


def arrays(*, packed: bool) -> bytes:
    stream = io.BytesIO()
    save = np.savez_compressed if packed else np.savez
    save(stream, x=np.arange(60, dtype=np.float32).reshape(20, 3), labels=np.arange(20))
    return stream.getvalue()


SEEDS: dict[str, tuple[str, list[bytes]]] = {
    "npz": ("x.npz", [arrays(packed=False), arrays(packed=True)]),
    "safetensors": ("x.safetensors", [safetensors({"x": {"dtype": "F32", "shape": [4, 3], "data_offsets": [0, 48]}}, bytes(48))]),  # noqa: E501
    "zip": ("x.zip", [archives.pictures(), archives.pictures(packed=True)]),
    "tar": ("x.tar", [archives.GOOD_TAR]),
    "sounds": ("x.zip", [archives.pictures(("a/1.wav", archives.sound(100)), ("b/2.wav", archives.sound(100)))]),
}  # fmt: skip
MODELS = [models.WHOLE, models.WEIGHTED, models.fan(3), models.nests(3), models.circle(2), models.types(3)]
# The readers that are fuzzed for a time: every kind of upload that strangers send.
TIMED = {"model": ("model.onnx", MODELS), **{kind: SEEDS[kind] for kind in ("npz", "safetensors", "zip")}}


def read_dataset(path: Path) -> None:
    try:
        summary = inspect_dataset(path, PreprocessingSpec())
    except DatasetError as error:
        assert error.detail
        return
    assert summary.samples > 0


def read_model(raw: bytes) -> None:
    """Any bytes end in a model or in an error of their own."""
    try:
        proto = parse_proto(raw)
    except QuantmillError as error:
        assert error.code in {"not-onnx", "invalid-model", "too-complex", "unsupported-model"}
        return
    assert isinstance(proto, onnx.ModelProto)


def reader(kind: str, folder: Path) -> Callable[[bytes], None]:
    """Of one kind of TIMED; a dataset is read from a file in ``folder``."""
    if kind == "model":
        return read_model
    path = folder / TIMED[kind][0]

    def read(raw: bytes) -> None:
        path.write_bytes(raw)
        read_dataset(path)

    return read

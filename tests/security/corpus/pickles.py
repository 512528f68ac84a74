"""Pickles in every place where somebody might load one: each would make the canary's folder if it were."""

from __future__ import annotations

import io
import json
import os
import pickle
import struct
import zipfile
from typing import Any

import numpy as np

from tests.security.corpus.case import CANARY, READY, Case
from tests.security.corpus.models import FLOAT
from tests.security.corpus.wire import field, model, node, raw, tensor


class Trap:
    """Leaves a folder behind when it is unpickled."""

    def __reduce__(self) -> Any:
        return os.mkdir, (CANARY.decode(),)


def pickled(protocol: int = 4) -> bytes:
    # protocol 0 and 1 write the text itself; what stands in its place has the same length
    return pickle.dumps(Trap(), protocol)


def npy(data: bytes, descr: str = "|O", shape: tuple[int, ...] = (2, 2)) -> bytes:
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": descr, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + data


def zipped(**members: bytes) -> bytes:
    """Stored, so that the canary's place can be put in; its checksums are wrong then, as an attacker's would not be."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for name, data in members.items():
            archive.writestr(name.replace("__", "/").replace("_", "."), data)
    return buffer.getvalue()


def safetensors(header: object, data: bytes = b"") -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


EVAL_HEADER = b"{'descr': __import__('os').mkdir('" + CANARY + b"'), 'fortran_order': False, 'shape': (1,)}"


def evaluated() -> bytes:
    return b"\x93NUMPY\x01\0" + struct.pack("<H", len(EVAL_HEADER)) + EVAL_HEADER


TORCH = zipped(archive__data_pkl=pickled(2), archive__version=b"3\n", archive__data__0=bytes(64))
ALL = [
    Case("pickle-as-a-model", "model", {"model.onnx": pickled()}, "not-onnx"),
    Case("checkpoint-as-a-model", "model", {"model.onnx": TORCH}, "not-onnx"),
    Case("pickle-as-a-weight", "model", {"model.onnx": model(field(5, tensor("w", (4,), FLOAT, raw(pickled()[:16]))), node("Add", "x w", "y"))}, READY),  # noqa: E501
    Case("pickle-as-data", "dataset", {"x.npz": pickled()}, "dataset-format"),
    Case("checkpoint-as-data", "dataset", {"x.npz": TORCH}, "dataset-empty"),
    Case("pickle-as-a-member", "dataset", {"x.npz": zipped(x_npy=pickled())}, "dataset-format"),
    Case("objects-in-an-array", "dataset", {"x.npz": zipped(x_npy=npy(pickled()))}, "dataset-format"),
    Case("objects-in-a-record", "dataset", {"x.npz": zipped(x_npy=npy(pickled(), "[('a', '|O'), ('b', '<f4')]"))}, "dataset-format"),  # noqa: E501
    Case("code-in-the-header-of-an-array", "dataset", {"x.npz": zipped(x_npy=evaluated())}, "dataset-format"),
    Case("pickle-beside-an-array", "dataset", {"x.npz": zipped(x_npy=npy(bytes(16), "<f4"), y_pkl=pickled())}, READY),
    Case("pickle-as-safetensors-metadata", "dataset", {"x.safetensors": safetensors({"__metadata__": {"pickle": pickled(0).decode()}, "x": {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}}, bytes(16))}, READY),  # noqa: E501
    Case("pickle-as-new-weights", "state", {"w.safetensors": pickled()}, "state-mismatch"),
    Case("pickle-as-a-picture", "dataset", {"x.zip": zipped(a__x_png=pickled(), b__y_png=pickled())}, "dataset-format"),
]  # fmt: skip

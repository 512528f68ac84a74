"""Results by sample are read back as the engine wrote them, and nothing else is read."""

from __future__ import annotations

import contextlib
import io
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.comparison.samples import MOST_SAMPLES, SamplesUnreadableError, read_samples
from tests.support.each import each
from worker.quantizer.evaluation.decisions import Decisions, packed

CLASSES = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=50)


def one_hot(classes: list[int]) -> Any:
    return np.eye(10, dtype=np.float32)[classes] * 5


@given(CLASSES, st.booleans())
def test_what_the_engine_writes_is_read(samples: list[tuple[int, int, int]], labeled: bool) -> None:
    before, after, labels = (list(column) for column in zip(*samples, strict=True))
    written = Decisions()
    written.update(one_hot(before), one_hot(after), np.array(labels) if labeled else None)
    found = read_samples(packed(written.arrays)).decisions
    assert found is not None
    assert found.labeled is labeled
    assert found.quantized.tolist() == after
    assert found.expected.tolist() == (labels if labeled else before)
    assert found.right.tolist() == [a == e for a, e in zip(after, found.expected.tolist(), strict=True)]


def npz(columns: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in columns.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


def npy(array: Any, *, version: tuple[int, int] = (1, 0)) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version, allow_pickle=True)
    return stream.getvalue()


def claimed(shape: str, dtype: str = "<i4", data: bytes = b"") -> bytes:
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (64 - (len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


FINE = npy(np.arange(4, dtype=np.int32))


@each(
    "hostile",
    [
        npy(np.array([{}], dtype=object)),
        npy(np.arange(4.0)),
        npy(np.arange(4, dtype=np.int32).reshape(2, 2)),
        npy(np.arange(4, dtype=">i4")),
        npy(np.arange(5, dtype=np.int32)),
        npy(np.arange(4, dtype=np.int32), version=(2, 0)),
        FINE[:-1],
        FINE + b"more",
        claimed("(4000000000000,)"),
        claimed(f"({MOST_SAMPLES + 1},)", data=bytes(4 * MOST_SAMPLES + 4)),
        claimed("(-1,)"),
        claimed("(4.5,)"),
        claimed("(4," * 3000 + ")" * 3000),
        claimed("__import__('os').abort()"),
        b"",
        b"\x93NUMPY",
    ],
)
def test_what_it_does_not_write_is_refused(hostile: bytes) -> None:
    with pytest.raises(SamplesUnreadableError):
        read_samples(npz({"float_class": FINE, "quantized_class": hostile}))


@each(
    "hostile",
    [
        npy(np.arange(4, dtype=np.float32)),
        *(npy(np.array([0.0, wrong, 0.0, 0.0])) for wrong in (np.nan, np.inf)),
        npy(np.arange(5.0)),
        npy(np.arange(4.0).reshape(2, 2)),
    ],
)
def test_metrics_that_it_does_not_write_are_refused(hostile: bytes) -> None:
    with pytest.raises(SamplesUnreadableError):
        read_samples(npz({"float_class": FINE, "quantized_class": FINE, "metric.loss": hostile}))


def test_metrics_need_no_decisions() -> None:
    found = read_samples(packed({"index": np.arange(4, dtype=np.int32), "metric.rmse": np.arange(4.0)}))
    assert found.decisions is None
    assert found.metrics["rmse"].tolist() == [0, 1, 2, 3]


def test_more_bytes_than_any_job_keeps_are_not_unpacked() -> None:
    zeros = np.zeros(MOST_SAMPLES)
    with pytest.raises(SamplesUnreadableError, match="bytes"):
        read_samples(packed({f"metric.m{k}": zeros for k in range(14)}))


@each(
    "data",
    [
        b"",
        b"PK",
        packed({"float_class": np.arange(3, dtype=np.int32)})[:-30],
        npz({"float_class": FINE}),
        npz({f"c{k}": FINE for k in range(100)}),
    ],
)
def test_what_is_no_archive_or_one_of_other_columns_is_refused(data: bytes) -> None:
    with pytest.raises(SamplesUnreadableError):
        read_samples(data)


@given(st.binary(max_size=4), st.integers(0, 600), st.sampled_from(["zip", "npy"]))
def test_flipped_bytes_end_in_an_error_or_in_columns(noise: bytes, place: int, where: str) -> None:
    if where == "npy":
        data = npz({"float_class": FINE, "quantized_class": FINE[:place] + noise + FINE[place + len(noise) :]})
    else:
        whole = npz({"float_class": FINE, "quantized_class": FINE})
        data = whole[:place] + noise + whole[place + len(noise) :]
    with contextlib.suppress(SamplesUnreadableError):
        decisions = read_samples(data).decisions
        assert decisions is None or len(decisions.right) == 4

"""Files of the right kind with something wrong in them: a reader ends with a typed error or with what it found.

What it holds meanwhile is bounded by the file, whatever the file says of itself. With atheris installed the same
readers are fuzzed by coverage: ``python -m tests.security.test_fuzz [-runs=N]``.
"""

from __future__ import annotations

import io
import struct
import sys
import tempfile
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import DatasetError, QuantmillError
from tests.security.corpus import archives, models
from tests.security.corpus.pickles import safetensors
from worker.quantizer.data import inspect_dataset
from worker.quantizer.intake.loading import parse_proto
from worker.quantizer.intake.prescan.scan import scan_model

MIB = 1 << 20
# What Python's objects of numpy and of a small archive take beside the file's bytes.
FREE_BYTES = 48 * MIB


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
# Numbers that mean something to whoever adds or multiplies them.
NUMBERS = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0xFFFF,
    0x7FFFFFFF,
    0x80000000,
    0xFFFFFFFF,
    (1 << 63) - 1,
    1 << 63,
    (1 << 64) - 1,
]


@contextmanager
def bounded(most_bytes: int) -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < most_bytes


@st.composite
def damaged(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """A seed with a few bytes changed, cut out, doubled, or overwritten by a number that means something."""
    raw = bytearray(draw(st.sampled_from(seeds)))
    for _ in range(draw(st.integers(1, 5))):
        if not raw:
            break
        at = draw(st.integers(0, len(raw) - 1))
        kind = draw(st.sampled_from(["byte", "number", "cut", "double", "insert"]))
        if kind == "byte":
            raw[at] = draw(st.integers(0, 255))
        elif kind == "number":
            layout = draw(st.sampled_from(["<H", "<L", "<Q", ">L"]))
            value = draw(st.sampled_from(NUMBERS)) & ((1 << 8 * struct.calcsize(layout)) - 1)
            raw[at : at + struct.calcsize(layout)] = struct.pack(layout, value)
        elif kind == "cut":
            del raw[at : at + draw(st.integers(1, 64))]
        elif kind == "double":
            part = raw[at : at + draw(st.integers(1, 64))]
            raw[at:at] = part
        else:
            raw[at:at] = draw(st.binary(max_size=16))
    return bytes(raw)


def read_dataset(path: Path) -> None:
    """Ends with a typed error, or with a summary."""
    try:
        summary = inspect_dataset(path, PreprocessingSpec())
    except DatasetError as error:
        assert error.detail
        return
    assert summary.samples > 0


def read_model(raw: bytes) -> None:
    """What the look lets pass is parsed into no more than it counted."""
    try:
        scan_model(raw)
        proto = parse_proto(raw)
    except QuantmillError as error:
        assert error.code in {"not-onnx", "invalid-model", "too-complex", "unsupported-model"}
        return
    assert isinstance(proto, onnx.ModelProto)


@pytest.mark.parametrize("kind", SEEDS)
@settings(max_examples=150)
@given(data=st.data())
def test_damaged_data_ends_in_a_typed_error_within_bounds(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    name, seeds = SEEDS[kind]
    path = tmp_path / name
    path.write_bytes(data.draw(damaged(seeds)))
    with bounded(FREE_BYTES):
        read_dataset(path)


@settings(max_examples=400)
@given(damaged(MODELS))
def test_damaged_models_end_in_a_typed_error_within_bounds(raw: bytes) -> None:
    with bounded(FREE_BYTES):
        read_model(raw)


def fuzz(arguments: list[str]) -> None:
    """By coverage, until a crash is found or atheris has had enough."""
    import atheris  # type: ignore[import-not-found]

    path = Path(tempfile.mkdtemp()) / "x"
    readers: list[Callable[[bytes], None]] = [read_model]

    def of_file(raw: bytes) -> None:
        path.write_bytes(raw)
        read_dataset(path)

    readers.append(of_file)
    atheris.instrument_all()

    def once(raw: bytes) -> None:
        if raw:
            readers[raw[0] % len(readers)](raw[1:])

    atheris.Setup(arguments, once)
    atheris.Fuzz()


def test_the_fuzzer_of_coverage_finds_nothing_either() -> None:
    """A short run; a long one is a matter of patience."""
    pytest.importorskip("atheris", reason="atheris is not installed: coverage does not guide the fuzzing")
    import subprocess

    command = [sys.executable, "-m", "tests.security.test_fuzz", "-runs=2000", "-seed=1"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


if __name__ == "__main__":
    fuzz(sys.argv)

"""Files of the right kind with something wrong in them: a reader ends with a typed error or with what it found.

What it holds meanwhile is bounded by the file, whatever the file says of itself. Where atheris is installed, coverage
guides the fuzzing of the same readers (``tests/security/fuzzing.py``). QUANTMILL_TEST_FUZZ_SECONDS: how long each of
the timed ones takes.
"""

from __future__ import annotations

import os
import re
import struct
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, seed, settings
from hypothesis import strategies as st

from tests.security.fuzzed import MODELS, SEEDS, TIMED, read_dataset, read_model, reader
from tests.support.server import ROOT

# Each of the timed ones, by hypothesis and by coverage.
FUZZ_SECONDS = int(os.environ.get("QUANTMILL_TEST_FUZZ_SECONDS", "5"))
ROUNDS_PER_SECOND = 4  # of 40 examples each
MIB = 1 << 20
# What Python's objects of numpy and of a small archive take beside the file's bytes.
FREE_BYTES = 48 * MIB


# Numbers that mean something to whoever adds or multiplies them.
NUMBERS = [0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0xFFFF, *((1 << bits) - 1 for bits in (31, 32, 63, 64)), 1 << 31, 1 << 63]


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


@pytest.mark.parametrize("kind", SEEDS)
@given(data=st.data())
def test_damaged_data_ends_in_a_typed_error_within_bounds(tmp_path: Path, kind: str, data: st.DataObject) -> None:
    name, seeds = SEEDS[kind]
    path = tmp_path / name
    path.write_bytes(data.draw(damaged(seeds)))
    with bounded(FREE_BYTES):
        read_dataset(path)


@given(damaged(MODELS))
def test_damaged_models_end_in_a_typed_error_within_bounds(raw: bytes) -> None:
    with bounded(FREE_BYTES):
        read_model(raw)


@pytest.mark.long
@pytest.mark.parametrize("kind", TIMED)
def test_other_damage_for_a_while(tmp_path: Path, kind: str) -> None:
    read = reader(kind, tmp_path)
    for number in range(FUZZ_SECONDS * ROUNDS_PER_SECOND):
        seed(number)(settings(derandomize=False, max_examples=40)(given(damaged(TIMED[kind][1]))(read)))()


@pytest.mark.long
@pytest.mark.parametrize("kind", TIMED)
def test_the_fuzzer_of_coverage_finds_nothing_either(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("atheris", reason="atheris is not installed: coverage does not guide the fuzzing")
    command = [sys.executable, "-m", "tests.security.fuzzing", kind, str(FUZZ_SECONDS)]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr[-4000:]
    count = re.search(r"Done (\d+) runs", done.stderr)
    assert count is not None, done.stderr[-4000:]
    assert int(count[1]) > len(TIMED[kind][1])

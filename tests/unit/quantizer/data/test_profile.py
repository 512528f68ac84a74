"""The profile of a dataset: histograms, counts and envelopes against brute force."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from service.contracts.dataset import (
    LARGEST_CLASSES,
    MAX_BINS,
    MAX_CLASSES,
    MAX_PROFILED_ARRAYS,
    MAX_WAVEFORMS,
    WAVEFORM_COLUMNS,
    WAVEFORM_STEPS,
    DatasetSummary,
    PreprocessingSpec,
    ValueProfile,
    Waveforms,
)
from service.contracts.sheets import sheet_numbers
from tests.support.media import KINDS, Kind, archive, encoded, noise, wav
from worker.quantizer.data import ArrayDataset, inspect_dataset
from worker.quantizer.data import value_counts as values
from worker.quantizer.data.summary import BLOCK_BYTES, Profiler, waveform
from worker.quantizer.data.value_counts import ValueCounter, count_classes, extremes, stride

FINITE = st.floats(allow_nan=False, allow_infinity=False)
# Clear of the smallest floats, whose bins are told to be no narrower than 2**-1000.
USUAL = st.one_of(st.just(0.0), st.floats(1e-280, 1e307), st.floats(-1e307, -1e-280), st.floats(-4, 4, width=16))
FLOATS = [np.dtype(some) for some in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64)]


def counted(array: np.ndarray[Any, Any], cuts: list[int] | None = None) -> ValueProfile:
    """The profile of an array that comes in pieces."""
    counter = ValueCounter(array.dtype, array.size, array.size, max(1, array[:1].size))
    for block in np.split(array, sorted(cut % (len(array) + 1) for cut in cuts or [])):
        counter.add(block)
    found = counter.profile()
    assert found is not None
    return found


def profiled(**arrays: Any) -> DatasetSummary:
    return ArrayDataset(arrays).summarized(Profiler(BLOCK_BYTES))


def told(array: Any) -> ValueProfile:
    summary = profiled(x=array)
    assert summary.profile is not None
    return summary.profile.values["x"]


def narrowest(numbers: list[Fraction], least: int) -> Fraction:
    """The narrowest power of two with which so many bins hold all numbers, tried one by one."""
    width = Fraction(2) ** least
    while math.floor(max(numbers) / width) - math.floor(min(numbers) / width) >= MAX_BINS:
        width *= 2
    return width


@given(st.lists(USUAL, min_size=1, max_size=40), st.lists(st.integers(0, 100), max_size=4))
def test_a_histogram_is_that_of_all_values_whatever_the_blocks(numbers: list[float], cuts: list[int]) -> None:
    found = counted(np.array(numbers), cuts)
    assert (found.minimum, found.maximum) == (min(numbers), max(numbers))
    assert found.is_exact and sum(found.counts) == len(numbers)
    exact = [Fraction(number) for number in numbers]
    least = math.frexp(max(map(abs, numbers)))[1] - 53
    width = narrowest(exact, least)
    first = math.floor(min(exact) / width)
    bins = Counter(math.floor(number / width) - first for number in exact)
    assert found.counts == tuple(bins[k] for k in range(max(bins) + 1))
    assert (found.low, found.high) == (float(first * width), float((first + len(found.counts)) * width))
    assert found.mean == pytest.approx(float(sum(exact) / len(exact)), rel=1e-9, abs=1e-12 * max(map(abs, numbers)))


@given(st.lists(FINITE, min_size=1, max_size=20), st.lists(st.integers(0, 100), max_size=3))
def test_any_finite_values_have_a_profile(numbers: list[float], cuts: list[int]) -> None:
    found = counted(np.array(numbers), cuts)
    assert sum(found.counts) == len(numbers)
    assert found.low <= found.minimum <= found.mean <= found.maximum <= found.high
    edges = found.edges()
    assert len(edges) == len(found.counts) + 1
    assert all(map(math.isfinite, edges))


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-50, 50), min_size=1, max_size=30))
def test_integers_have_bins_of_whole_numbers(numbers: list[int]) -> None:
    found = counted(np.array(numbers, np.int64))
    assert (found.minimum, found.maximum) == (float(min(numbers)), float(max(numbers)))
    assert sum(found.counts) == len(numbers)
    if max(numbers) - min(numbers) < MAX_BINS and max(map(abs, numbers)) < 2**52:
        bins = Counter(numbers)
        assert found.counts == tuple(bins[k] for k in range(min(numbers), max(numbers) + 1))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@given(data=st.data())
def test_extremes_of_floats_are_those_of_their_values(dtype: np.dtype[Any], data: st.DataObject) -> None:
    size = dtype.itemsize
    drawn = data.draw(st.lists(st.binary(min_size=size, max_size=size), min_size=1, max_size=12))
    floats = np.frombuffer(b"".join(drawn), dtype)
    with np.errstate(invalid="ignore"):
        wide = floats.astype(np.float64)
    floats, wide = floats[np.isfinite(wide)], wide[np.isfinite(wide)]
    if len(floats):
        assert extremes(floats) == (wide.min(), wide.max())


@pytest.mark.parametrize("dtype", ["?", "u1", "i1", "u2", "i4", "u8", "i8", "f2", "f4", "f8", ml_dtypes.bfloat16])
def test_every_type_and_shape(dtype: Any) -> None:
    for shape in ((7,), (7, 3, 2), (7, 1)):
        array = (np.random.default_rng(0).random(shape) * 100 - 10 * (np.dtype(dtype).kind in "if")).astype(dtype)
        found, wide = told(array), array.astype(np.float64)
        assert (found.minimum, found.maximum, found.values) == (wide.min(), wide.max(), wide.size)
        assert found.mean == pytest.approx(wide.mean())
        assert sum(found.counts) == wide.size
        np.testing.assert_array_equal(found.counts, np.histogram(wide, np.array(found.edges()))[0])


def test_the_largest_values_overflow_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    for dtype in (np.float16, np.float32, np.float64, ml_dtypes.bfloat16):
        most = ml_dtypes.finfo(dtype).max
        found = told(np.array([[-most], [most], [0], [most]], dtype))
        assert (found.minimum, found.maximum, sum(found.counts)) == (-float(most), float(most), 4)
        assert found.mean == pytest.approx(float(most) / 4)
    monkeypatch.setattr(values, "_OF_A_BLOCK", 1)
    most = np.finfo(np.float64).max
    found = counted(np.repeat([most, -most], 20), [20])
    assert (found.counts[0], found.counts[-1], sum(found.counts)) == (20, 20, 40)
    assert found.low <= found.mean <= found.high


def test_what_the_arrays_of_a_profile_are() -> None:
    samples = [np.arange(k, dtype=np.int64) for k in (3, 0, 5, 1)]
    summary = profiled(**{f"x/{k:04d}": sample for k, sample in enumerate(samples)})
    found = summary.profile.values["x"]
    assert (found.counts, found.values) == ((3, 2, 2, 1, 1), 9)
    found = profiled(x=np.zeros((4, 2)), labels=np.array([0.5, -1.5, 2.0, 0.0])).profile
    assert (found.classes, found.values["labels"].minimum) == (None, -1.5)  # no classes, but values
    summary = profiled(**{f"x{k}": np.zeros((2, 1), np.int8) for k in range(MAX_PROFILED_ARRAYS + 5)})
    assert list(summary.profile.values) == list(summary.arrays)[:MAX_PROFILED_ARRAYS]


def test_of_a_large_array_every_so_many_values_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(values, "_ALL", 1000)
    monkeypatch.setattr(values, "_OF_A_BLOCK", 64)
    array = np.random.default_rng(1).standard_normal((500, 34)).astype(np.float32)
    every = stride(array.size, 1020, 34)
    assert every == 19  # 17 divides 34
    counter = ValueCounter(array.dtype, array.size, 1020, 34)
    for start in range(0, 500, 30):
        counter.add(array[start : start + 30])
    found = counter.profile()
    assert found is not None and not found.is_exact
    taken = array.reshape(-1)[::every].astype(np.float64)
    assert (found.values, found.counted) == (array.size, taken.size)
    assert (found.minimum, found.maximum) == (array.min(), array.max())
    assert found.mean == pytest.approx(taken.mean())
    np.testing.assert_array_equal(found.counts, np.histogram(taken, np.array(found.edges()))[0])


@given(st.lists(st.integers(0, 9) | st.integers(0, 2**63 - 1), min_size=1, max_size=30))
def test_classes_are_counted(labels: list[int]) -> None:
    found, counts = count_classes(np.array(labels, np.int64)), Counter(labels)
    assert dict(zip(found.numbers, found.counts, strict=True)) == counts
    assert list(found.numbers) == sorted(counts)
    assert (found.distinct, found.fewest, found.most) == (len(counts), min(counts.values()), max(counts.values()))
    assert found.is_whole


def test_of_very_many_classes_the_largest_are_told() -> None:
    labels = np.concatenate([np.arange(MAX_CLASSES + 1), np.full(3, 700), np.full(2, 30)])
    found = count_classes(labels)
    assert not found.is_whole and found.distinct == MAX_CLASSES + 1
    assert found.numbers[:4] == (700, 30, 0, 1) and len(found.numbers) == LARGEST_CLASSES
    assert found.counts[:3] == (4, 3, 1)
    assert count_classes(labels[:MAX_CLASSES]).is_whole


def test_lists_are_told_no_profile_and_jobs_make_none(tmp_path: Path) -> None:
    save_file({"x": np.zeros((4, 2), np.float32), "labels": np.arange(4)}, tmp_path / "x.safetensors")
    summary = inspect_dataset(tmp_path / "x.safetensors", PreprocessingSpec())
    assert summary.profile.classes.counts == (1, 1, 1, 1)
    assert list(summary.profile.values) == ["x"]
    assert summary.outline().profile is None
    assert DatasetSummary.model_validate_json(summary.model_dump_json()) == summary
    older = {key: value for key, value in summary.model_dump().items() if key != "profile"}
    assert DatasetSummary.model_validate(older).profile is None
    assert ArrayDataset({"x": np.zeros((4, 2))}).summary.profile is None


SOUNDS = PreprocessingSpec.model_validate({"sounds": {"sample_rate_hz": 8000, "length": 400}})
LOG_MEL = {"n_fft": 64, "hop_length": 32, "n_mels": 8}
SPECTROGRAMS = PreprocessingSpec.model_validate({"sounds": {"sample_rate_hz": 8000, "length": 400, "log_mel": LOG_MEL}})


def tone(length: int, height: int) -> np.ndarray[Any, Any]:
    return np.rint(height * np.sin(np.arange(length) / 5)).astype(np.int16)


def waves_of(**arrays: Any) -> Waveforms | None:
    profile = profiled(**arrays).profile
    assert profile is not None
    return profile.waveforms


@given(st.lists(st.integers(-32768, 32767), max_size=300))
def test_an_envelope_holds_every_value_of_its_columns(numbers: list[int]) -> None:
    values = np.array(numbers, np.int16)
    found = waveform(3, values)
    columns = min(len(numbers), WAVEFORM_COLUMNS)
    assert (found.number, found.length, len(found.lows), len(found.highs)) == (3, len(numbers), columns, columns)
    peak = max((abs(number) for number in numbers), default=0)
    assert found.peak == peak
    for k in range(columns):
        part = numbers[k * len(numbers) // columns : (k + 1) * len(numbers) // columns]
        scale = WAVEFORM_STEPS / (peak or 1)
        assert abs(found.lows[k] - min(part) * scale) <= 0.51
        assert abs(found.highs[k] - max(part) * scale) <= 0.51


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("spec", [SOUNDS, SPECTROGRAMS], ids=["waveforms", "spectrograms"])
def test_sounds_of_an_archive(tmp_path: Path, kind: Kind, spec: PreprocessingSpec) -> None:
    files = {f"{k % 2}/{k:02d}.wav": wav(tone(300 + 10 * k, 1000 * (k % 30)), 8000) for k in range(40)}
    summary = inspect_dataset(archive(tmp_path / "x", files, kind), spec)
    assert summary.profile is not None
    found = summary.profile.waveforms
    assert found is not None
    assert (found.array, found.sample_rate_hz, found.full_scale) == ("sounds", 8000, 32768.0)
    assert [one.number for one in found.samples] == sheet_numbers(40)
    assert len(found.samples) == MAX_WAVEFORMS
    for one in found.samples:
        values = tone(300 + 10 * one.number, 1000 * (one.number % 30))[:400]
        assert (one.length, one.minimum, one.maximum) == (len(values), values.min(), values.max())
    assert summary.profile.classes is not None and summary.profile.classes.counts == (20, 20)


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (np.int16, "audio"),
        (np.float16, "raw_speech"),
        (np.float32, "input_values"),
        (np.float64, "Waveform"),
        (ml_dtypes.bfloat16, "audio"),
    ],
)
def test_an_array_that_is_called_so_holds_waveforms(dtype: Any, name: str) -> None:
    sounds = np.stack([tone(300, 100 * k) for k in range(20)]).astype(dtype)
    numbers = sheet_numbers(20)
    for array in (sounds, sounds[:, None]):
        found = waves_of(**{name: array})
        assert found is not None
        assert (found.array, found.sample_rate_hz) == (name, None)
        assert [one.number for one in found.samples] == numbers
        assert [one.maximum for one in found.samples] == [float(sounds[k].astype(np.float64).max()) for k in numbers]


@pytest.mark.parametrize(
    ("name", "shape", "dtype"),
    [
        ("x", (3, 500), np.float32),
        ("soundness", (3, 500), np.float32),  # a part of the word alone
        ("audio", (3, 100), np.float32),  # short
        ("audio", (3, 2, 500), np.float32),  # stereo
        ("audio", (3, 500), np.int64),
        ("audio", (500,), np.float32),  # no time
    ],
)
def test_other_arrays_hold_no_waveforms(name: str, shape: tuple[int, ...], dtype: Any, tmp_path: Path) -> None:
    assert waves_of(**{name: np.zeros(shape, dtype)}) is None
    summary = inspect_dataset(archive(tmp_path / "x", {"1.png": encoded(noise(8, 8))}), PreprocessingSpec())
    assert summary.profile is not None and summary.profile.waveforms is None
    found = waves_of(**{f"speech/{k:04d}": tone(n, 50).astype(np.float32) for k, n in enumerate((900, 0, 80))})
    assert found is not None  # sounds of different lengths
    assert ([one.length for one in found.samples], found.samples[1].lows) == ([900, 0, 80], ())

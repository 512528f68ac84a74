"""Waveforms of sounds: envelopes against brute force, and which samples and arrays have one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.data_profile import MAX_WAVEFORMS, WAVEFORM_COLUMNS, WAVEFORM_STEPS, Waveforms
from service.contracts.dataset import PreprocessingSpec
from service.contracts.sheets import sheet_numbers
from tests.support.media import KINDS, Kind, archive, encoded, noise, wav
from worker.quantizer.data import ArrayDataset, inspect_dataset
from worker.quantizer.data.profile import Profiler
from worker.quantizer.data.profile.waves import waveform
from worker.quantizer.data.summary import BLOCK_BYTES

SOUNDS = PreprocessingSpec.model_validate({"sounds": {"sample_rate_hz": 8000, "length": 400}})
LOG_MEL = {"n_fft": 64, "hop_length": 32, "n_mels": 8}
SPECTROGRAMS = PreprocessingSpec.model_validate({"sounds": {"sample_rate_hz": 8000, "length": 400, "log_mel": LOG_MEL}})


def tone(length: int, height: int) -> np.ndarray[Any, Any]:
    return np.rint(height * np.sin(np.arange(length) / 5)).astype(np.int16)


def waves_of(**arrays: Any) -> Waveforms | None:
    profile = ArrayDataset(arrays).summarized(Profiler(BLOCK_BYTES)).profile
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


def test_pictures_have_none(tmp_path: Path) -> None:
    path = archive(tmp_path / "x", {"1.png": encoded(noise(8, 8))})
    summary = inspect_dataset(path, PreprocessingSpec())
    assert summary.profile is not None and summary.profile.waveforms is None


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


def test_sounds_of_different_lengths() -> None:
    found = waves_of(
        **{f"speech/{k:04d}": tone(length, 50).astype(np.float32) for k, length in enumerate((900, 0, 80))}
    )
    assert found is not None
    assert [one.length for one in found.samples] == [900, 0, 80]
    assert found.samples[1].lows == ()


@pytest.mark.parametrize(
    "arrays",
    [
        {"x": np.zeros((3, 500), np.float32)},
        {"soundness": np.zeros((3, 500), np.float32)},
        {"audio": np.zeros((3, 100), np.float32)},
        {"audio": np.zeros((3, 2, 500), np.float32)},
        {"audio": np.zeros((3, 500), np.int64)},
        {"audio": np.zeros(500, np.float32)},
    ],
    ids=["name", "part of a word", "short", "stereo", "type", "no time"],
)
def test_other_arrays_hold_none(arrays: Any) -> None:
    assert waves_of(**arrays) is None

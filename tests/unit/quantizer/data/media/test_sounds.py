"""WAV files: what is read and refused; log-mel spectrograms against torch.stft and filters made by hand."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pydantic import ValidationError

from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import DatasetArraysError, DatasetError, DatasetFormatError
from service.contracts.model import TensorInfo
from service.contracts.preprocessing import LogMelSpec, SoundSpec
from tests.support.media import KINDS, Kind, archive, encoded, noise, wav
from worker.quantizer.data import inspect_dataset, open_dataset
from worker.quantizer.data.media.sound import LogMel

RATE = 16_000


def tone(samples: int, *, seed: int = 0) -> np.ndarray[Any, Any]:
    rng = np.random.default_rng(seed)
    t = np.arange(samples) / RATE
    values = np.sin(2 * np.pi * 440 * t) * 9000 + np.sin(2 * np.pi * 3000 * t) * 3000 + rng.normal(0, 800, samples)
    return values.astype(np.int16)


def spec(length: int, **more: Any) -> PreprocessingSpec:
    return PreprocessingSpec.model_validate({"sounds": {"sample_rate_hz": RATE, "length": length, **more}})


def sounds(path: Path, preprocessing: PreprocessingSpec) -> np.ndarray[Any, Any]:
    data = open_dataset(path, preprocessing)
    return data.selection.arrays["sounds"].open().read(data.samples)


@pytest.mark.parametrize("kind", KINDS)
def test_sounds_are_cut_and_padded(tmp_path: Path, kind: Kind) -> None:
    short, exact, long = tone(50), tone(100, seed=1), tone(130, seed=2)
    files = {"no/a.wav": wav(short), "yes/b.WAV": wav(exact), "yes/c.wav": wav(long)}
    path = archive(tmp_path / "x", files, kind)
    found = sounds(path, spec(100))
    np.testing.assert_array_equal(found, np.stack([np.pad(short, (0, 50)), exact, long[:100]]))
    assert found.dtype == np.int16
    summary = inspect_dataset(path, spec(100))
    assert (summary.format, summary.media.codecs) == ("sounds", {"WAV": 3})
    assert (summary.media.classes, summary.media.smallest, summary.media.largest) == (("no", "yes"), (50,), (130,))
    document = {**spec(100, channel_axis=True).model_dump(), "inputs": {"*": {"array": "sounds", "scale": 1 / 32768}}}
    data = open_dataset(path, PreprocessingSpec.model_validate(document))
    (batch,) = data.batches([TensorInfo(name="x", dtype="float32", shape=("n", 1, 100))], 3)
    np.testing.assert_allclose(batch.feeds["x"][1, 0], exact / 32768, rtol=1e-6)


def test_an_extensible_header_and_other_chunks_are_read(tmp_path: Path) -> None:
    samples = tone(20)
    plain = wav(samples)
    guid = b"\x01\x00\x00\x00\x00\x00\x10\x00\x80\x00\x00\xaa\x00\x38\x9b\x71"
    head = struct.pack("<HHIIHH", 0xFFFE, 1, RATE, 2 * RATE, 2, 16) + struct.pack("<HHI", 22, 16, 4) + guid
    note = b"LIST" + struct.pack("<I", 3) + b"abc\0"  # of an odd length, filled up
    data = plain[:12] + note + b"fmt " + struct.pack("<I", len(head)) + head + plain[36:]
    np.testing.assert_array_equal(sounds(archive(tmp_path / "x", {"a.wav": data}), spec(20))[0], samples)


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"no sound at all", "is no WAV file"),
        (encoded(noise(8, 8)), "is no WAV file"),
        (wav(tone(100))[:-10], "is truncated"),
        (wav(tone(100))[:36], "contains no samples"),
        (wav(tone(100))[:12] + wav(tone(100))[36:], "has no format"),
        (wav(tone(100), channels=2), "has 2 channels"),
        (wav(tone(100), bits=24), "24-bit samples"),
        (wav(tone(100), tag=3), "of format 3"),
        (wav(tone(100), 8000), "8000 samples per second; the preprocessing says 16000"),
    ],
    ids=["text", "png", "cut", "empty", "no-format", "stereo", "24-bit", "float", "rate"],
)
def test_what_is_no_such_sound_is_named(tmp_path: Path, data: bytes, says: str) -> None:
    path = archive(tmp_path / "x", {"b/a.wav": wav(tone(100)), "b/bad.wav": data})
    with pytest.raises(DatasetFormatError, match=says) as caught:
        inspect_dataset(path, spec(100))
    assert caught.value.where["member"] == "b/bad.wav"
    assert [place.pointer for place in caught.value.errors] == ["/files/b~1bad.wav"]


def test_sounds_need_a_spec_for_sounds_and_nothing_else_does(tmp_path: Path) -> None:
    sound = archive(tmp_path / "x", {"a.wav": wav(tone(100))})
    for preprocessing, pointer in (({}, "sounds"), ("imagenet_tf", "pictures")):
        with pytest.raises(DatasetArraysError) as caught:
            open_dataset(sound, PreprocessingSpec.model_validate(preprocessing))
        assert [place.pointer for place in caught.value.errors] == [f"/preprocessing/{pointer}"]
    np.savez(tmp_path / "x.npz", x=np.zeros((2, 3), np.float32))
    for path in (archive(tmp_path / "y", {"a.png": encoded(noise(8, 8))}), tmp_path / "x.npz"):
        with pytest.raises(DatasetError, match="is for sounds"):
            open_dataset(path, spec(100))


def reference(x: np.ndarray[Any, Any], made: LogMelSpec, filters: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """torchaudio's MelSpectrogram and a logarithm, on torch.stft."""
    window = torch.hann_window(made.window_samples, periodic=True, dtype=torch.float64)
    spectrum = torch.stft(
        torch.from_numpy(x), made.n_fft, hop_length=made.hop_samples, win_length=made.window_samples, window=window,
        center=made.center, pad_mode="reflect", normalized=False, onesided=True, return_complex=True,
    )  # fmt: skip
    mel = torch.from_numpy(filters).T @ spectrum.abs().pow(made.power)
    return torch.log(mel + made.log_offset).numpy()


@pytest.mark.parametrize(
    ("numbers", "scale", "norm"),
    [
        ({"n_fft": 400, "n_mels": 23}, "htk", "slaney"),
        (
            {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 40, "f_min": 20.0, "f_max": 7600.0},
            "slaney",
            None,
        ),
        ({"n_fft": 512, "win_length": 401, "hop_length": 77, "n_mels": 16, "power": 1.0, "center": False}, "htk", None),
        ({"n_fft": 255, "hop_length": 64, "n_mels": 16, "log_offset": 1e-3}, "slaney", "slaney"),
    ],
)
def test_log_mel_is_that_of_torch(numbers: dict[str, Any], scale: str, norm: str | None) -> None:
    made = LogMelSpec.model_validate({**numbers, "mel_scale": scale, "norm": norm})
    x = tone(4000) / 32768
    ours = LogMel(made, RATE)(x)
    wanted = reference(x, made, by_hand(made, RATE))
    assert ours.dtype == np.float32
    assert ours.shape == wanted.shape == (made.n_mels, made.frames(4000))
    np.testing.assert_allclose(ours, wanted, rtol=1e-5, atol=1e-5)


def by_hand(made: LogMelSpec, rate: int) -> np.ndarray[Any, Any]:
    """Triangles between neighbouring corners that are evenly spaced in mel, one bin and one band at a time."""

    def to_mel(hz: float) -> float:
        if made.mel_scale == "htk":
            return 2595 * np.log10(1 + hz / 700)
        return hz * 3 / 200 if hz < 1000 else 15 + 27 * np.log(hz / 1000) / np.log(6.4)

    def to_hz(mel: float) -> float:
        if made.mel_scale == "htk":
            return 700 * (10 ** (mel / 2595) - 1)
        return mel * 200 / 3 if mel < 15 else 1000 * 6.4 ** ((mel - 15) / 27)

    low, high = to_mel(made.f_min), to_mel(made.f_max or rate // 2)
    corners = [to_hz(low + (high - low) * k / (made.n_mels + 1)) for k in range(made.n_mels + 2)]
    bins = made.n_fft // 2 + 1
    filters = np.zeros((bins, made.n_mels))
    for i, band in np.ndindex(filters.shape):
        hz = i * (rate // 2) / (bins - 1)
        left, peak, right = corners[band : band + 3]
        height = 2 / (right - left) if made.norm == "slaney" else 1.0
        filters[i, band] = height * max(0.0, min((hz - left) / (peak - left), (right - hz) / (right - peak)))
    return filters


def test_a_spectrogram_is_a_sample(tmp_path: Path) -> None:
    log_mel = {"n_fft": 512, "win_length": 400, "hop_length": 160, "n_mels": 40, "time_first": True}
    path = archive(tmp_path / "x", {"a.wav": wav(tone(1600)), "b.wav": wav(tone(900))})
    found = sounds(path, spec(1600, log_mel=log_mel, channel_axis=True))
    assert found.shape == (2, 1, 11, 40)
    assert found.dtype == np.float32
    wanted = LogMel(LogMelSpec.model_validate(log_mel), RATE)(np.pad(tone(900), (0, 700)) / 32768)
    np.testing.assert_array_equal(found[1, 0], wanted)
    assert inspect_dataset(path, spec(1600, log_mel=log_mel)).arrays["sounds"].shape == (2, 11, 40)


@pytest.mark.parametrize(
    ("document", "says"),
    [
        ({"n_fft": 400, "win_length": 401}, "larger than n_fft"),
        ({"f_min": 5000.0, "f_max": 4000.0}, "do not lie below"),
        ({"f_max": 9000.0}, "do not lie below"),
        ({"n_fft": 4000}, "needs at least 2001 samples"),
        ({"n_fft": 1002, "center": False}, "needs at least 1002 samples"),
    ],
)
def test_specs_that_contradict_themselves_are_refused(document: dict[str, Any], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        SoundSpec.model_validate({"sample_rate_hz": RATE, "length": 1000, "log_mel": document})

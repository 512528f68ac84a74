"""One sound: a WAV file of 16-bit PCM samples, mono, brought to its fixed length; log-mel spectrograms of it."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass

import numpy as np

from service.contracts.preprocessing import LogMelSpec, SoundSpec
from worker.quantizer.data.media.members import refuse
from worker.quantizer.data.stored import Array

# Log-mel spectrograms as torchaudio.transforms.MelSpectrogram defines them, in NumPy.
#
# Source: torchaudio.functional.spectrogram, melscale_fbanks and torch.stft.

# Frames transformed at a time: bounds the memory.
_FRAMES = 512
# Slaney's scale is linear up to here, logarithmic above.
_BREAK_HZ, _HZ_PER_MEL = 1000.0, 200.0 / 3
_LOG_STEP = math.log(6.4) / 27.0


class LogMel:
    """``log(mel(abs(stft(x)) ** power) + log_offset)``.

    Args:
        spec: its numbers.
        sample_rate_hz: of the waveforms.
    """

    def __init__(self, spec: LogMelSpec, sample_rate_hz: int) -> None:
        self._spec = spec
        self._window = _window(spec.window_samples, spec.n_fft)
        self._filters = mel_filters(spec, sample_rate_hz)

    def __call__(self, waveform: Array) -> Array:
        """float64 [samples] in -1 .. 1 -> float32 [n_mels, frames], or [frames, n_mels] if time comes first."""
        spec = self._spec
        if spec.center:
            waveform = np.pad(waveform, spec.n_fft // 2, mode=spec.pad_mode)
        frames = np.lib.stride_tricks.sliding_window_view(waveform, spec.n_fft)[:: spec.hop_samples]
        out = np.empty((len(frames), spec.n_mels), np.float32)
        for at in range(0, len(frames), _FRAMES):
            spectrum = np.abs(np.fft.rfft(frames[at : at + _FRAMES] * self._window, axis=1)) ** spec.power
            out[at : at + _FRAMES] = np.log(spectrum @ self._filters + spec.log_offset)
        return out if spec.time_first else np.ascontiguousarray(out.T)


def mel_filters(spec: LogMelSpec, sample_rate_hz: int) -> Array:
    """Triangular filters, float64 [n_fft // 2 + 1, n_mels]."""
    bins = np.linspace(0.0, sample_rate_hz // 2, spec.n_fft // 2 + 1)
    f_max = sample_rate_hz // 2 if spec.f_max is None else spec.f_max
    low, high = (_to_mel(np.array([hz], np.float64), spec.mel_scale)[0] for hz in (spec.f_min, f_max))
    corners = _to_hz(np.linspace(low, high, spec.n_mels + 2), spec.mel_scale)
    widths = np.diff(corners)
    slopes = corners[np.newaxis, :] - bins[:, np.newaxis]
    falling, rising = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    filters: Array = np.maximum(0.0, np.minimum(falling, rising))
    if spec.norm == "slaney":
        filters = filters * (2.0 / (corners[2:] - corners[:-2]))
    return filters


def _window(length: int, n_fft: int) -> Array:
    """A periodic Hann window in the middle of n_fft samples."""
    window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(length) / length)
    left = (n_fft - length) // 2
    return np.pad(window, (left, n_fft - length - left))


def _to_mel(hz: Array, scale: str) -> Array:
    if scale == "htk":
        return 2595.0 * np.log10(1.0 + hz / 700.0)
    above = np.log(np.maximum(hz, _BREAK_HZ) / _BREAK_HZ) / _LOG_STEP
    return np.where(hz >= _BREAK_HZ, _BREAK_HZ / _HZ_PER_MEL + above, hz / _HZ_PER_MEL)


def _to_hz(mel: Array, scale: str) -> Array:
    if scale == "htk":
        return 700.0 * (10.0 ** (mel / 2595.0) - 1.0)
    break_mel = _BREAK_HZ / _HZ_PER_MEL
    return np.where(
        mel >= break_mel, _BREAK_HZ * np.exp(_LOG_STEP * np.maximum(mel - break_mel, 0.0)), mel * _HZ_PER_MEL
    )


CODEC = "WAV"
_FORMAT = struct.Struct("<HHIIHH")
_PCM, _EXTENSIBLE = 1, 0xFFFE
# Place of the real format's tag in the GUID of an extensible one.
_SUBFORMAT = slice(24, 26)
_BITS = 16
FULL_SCALE = 32768.0
_HINT = "Store 16-bit PCM, mono: ffmpeg -i IN -ac 1 -ar RATE -c:a pcm_s16le OUT.wav"


@dataclass(frozen=True)
class Wave:
    """A WAV file: its rate, and its samples int16 [n]."""

    sample_rate_hz: int
    samples: Array


def read_wave(name: str, data: bytes) -> Wave:
    """The samples of a WAV file.

    Raises:
        DatasetFormatError: no WAV file, damaged, cut short, or not 16-bit PCM of one channel; names the file.
    """
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE":
        refuse(name, "is no WAV file", _HINT)
    rate: int | None = None
    at = 12
    while at + 8 <= len(data):
        kind, (size,) = data[at : at + 4], struct.unpack("<I", data[at + 4 : at + 8])
        body = data[at + 8 : at + 8 + size]
        if len(body) != size:
            refuse(name, f"is truncated: a chunk of {size} bytes contains {len(body)}", _HINT)
        if kind == b"fmt ":
            rate = _rate(name, body)
        elif kind == b"data":
            if rate is None:
                refuse(name, "has no format chunk before its samples", _HINT)
            return Wave(rate, np.frombuffer(body[: size // 2 * 2], "<i2").astype(np.int16))
        at += 8 + size + size % 2
    refuse(name, "contains no samples", _HINT)


def _rate(name: str, body: bytes) -> int:
    if len(body) < _FORMAT.size:
        refuse(name, "has a damaged header", _HINT)
    tag, channels, rate, _, _, bits = _FORMAT.unpack_from(body)
    if tag == _EXTENSIBLE:
        tag = int.from_bytes(body[_SUBFORMAT], "little")
    if tag != _PCM or bits != _BITS:
        refuse(name, f"contains {bits}-bit samples of format {tag}; only 16-bit PCM (format 1) is supported", _HINT)
    if channels != 1:
        refuse(name, f"has {channels} channels; mono is read", _HINT)
    return int(rate)


class SoundReader:
    """Makes samples of WAV files.

    Args:
        spec: how.
    """

    def __init__(self, spec: SoundSpec) -> None:
        self._spec = spec
        self._log_mel = None if spec.log_mel is None else LogMel(spec.log_mel, spec.sample_rate_hz)

    @property
    def dtype(self) -> np.dtype[np.int16] | np.dtype[np.float32]:
        """Of every sample."""
        return np.dtype(np.int16) if self._log_mel is None else np.dtype(np.float32)

    def sample(self, name: str, wave: Wave) -> Array:
        """The sample that a sound becomes, of the spec's shape.

        Raises:
            DatasetFormatError: another sample rate than declared; names the file.
        """
        spec = self._spec
        if wave.sample_rate_hz != spec.sample_rate_hz:
            refuse(
                name,
                f"has {wave.sample_rate_hz} samples per second; the preprocessing says {spec.sample_rate_hz}",
                "Sounds are not resampled: convert the file, or correct preprocessing.sounds.sample_rate_hz.",
            )
        values = np.zeros(spec.length, np.int16)
        kept = wave.samples[: spec.length]
        values[: len(kept)] = kept
        sample = values if self._log_mel is None else self._log_mel(values / FULL_SCALE)
        return sample.reshape(spec.shape)

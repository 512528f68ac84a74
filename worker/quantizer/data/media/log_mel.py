"""Log-mel spectrograms as torchaudio.transforms.MelSpectrogram defines them, in NumPy.

Source: torchaudio.functional.spectrogram, melscale_fbanks and torch.stft.
"""

from __future__ import annotations

import math

import numpy as np

from service.contracts.preprocessing import LogMelSpec
from worker.quantizer.data.stored import Array

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

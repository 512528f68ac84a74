"""One sound: a WAV file of 16-bit PCM samples, mono, brought to its fixed length."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np

from service.contracts.preprocessing import SoundSpec
from worker.quantizer.data.media.log_mel import LogMel
from worker.quantizer.data.media.members import refuse
from worker.quantizer.data.stored import Array

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
            refuse(name, f"is cut short: a chunk of {size} bytes holds {len(body)}", _HINT)
        if kind == b"fmt ":
            rate = _rate(name, body)
        elif kind == b"data":
            if rate is None:
                refuse(name, "tells no format before its samples", _HINT)
            return Wave(rate, np.frombuffer(body[: size // 2 * 2], "<i2").astype(np.int16))
        at += 8 + size + size % 2
    refuse(name, "holds no samples", _HINT)


def _rate(name: str, body: bytes) -> int:
    if len(body) < _FORMAT.size:
        refuse(name, "has a damaged header", _HINT)
    tag, channels, rate, _, _, bits = _FORMAT.unpack_from(body)
    if tag == _EXTENSIBLE:
        tag = int.from_bytes(body[_SUBFORMAT], "little")
    if tag != _PCM or bits != _BITS:
        refuse(name, f"holds {bits}-bit samples of format {tag}; 16-bit PCM (format 1) is read", _HINT)
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
                "Nothing is resampled: convert the file, or correct preprocessing.sounds.sample_rate_hz.",
            )
        values = np.zeros(spec.length, np.int16)
        kept = wave.samples[: spec.length]
        values[: len(kept)] = kept
        sample = values if self._log_mel is None else self._log_mel(values / FULL_SCALE)
        return sample.reshape(spec.shape)

"""What becomes of the sounds of an archive before they are an array: cut or padded, perhaps made a spectrogram."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from service.contracts.base import Contract

# Values of one sample's spectrogram.
_MAX_VALUES = 1 << 26


class LogMelSpec(Contract):
    """`log(MelSpectrogram(x / 32768) + log_offset)`, as torchaudio.transforms.MelSpectrogram defines it, with a
    periodic Hann window, onesided, not normalized.
    """

    n_fft: int = Field(default=400, ge=2, le=1 << 16, description="Samples per Fourier transform.")
    win_length: int | None = Field(
        default=None, ge=1, description="Samples under the window, which is padded to n_fft; default: n_fft."
    )
    hop_length: int | None = Field(
        default=None, ge=1, description="Samples from one frame to the next; default: half the window."
    )
    n_mels: int = Field(default=128, ge=1, le=4096, description="Mel bands.")
    f_min: float = Field(default=0.0, ge=0.0, description="Lower end of the lowest band, Hz.")
    f_max: float | None = Field(
        default=None, gt=0.0, description="Upper end of the highest band, Hz; default: half the sample rate."
    )
    power: float = Field(default=2.0, gt=0.0, description="Exponent of the magnitudes: 1 for magnitude, 2 for power.")
    center: bool = Field(
        default=True, description="Frames are centred on multiples of hop_length; the ends are padded by n_fft // 2."
    )
    pad_mode: Literal["reflect"] = Field(default="reflect", description="How the ends are padded.")
    mel_scale: Literal["htk", "slaney"] = Field(default="htk", description="Formula of the mel scale.")
    norm: Literal["slaney"] | None = Field(
        default=None, description="`slaney`: each filter is divided by the width of its band."
    )
    log_offset: float = Field(default=1e-6, gt=0.0, description="Added before the natural logarithm.")
    time_first: bool = Field(default=False, description="[time, mel] in place of [mel, time].")

    @property
    def window_samples(self) -> int:
        """Samples under the window."""
        return self.n_fft if self.win_length is None else self.win_length

    @property
    def hop_samples(self) -> int:
        """Samples from one frame to the next."""
        return max(1, self.window_samples // 2) if self.hop_length is None else self.hop_length

    def frames(self, length: int) -> int:
        """Frames of a sound of ``length`` samples."""
        padded = length + 2 * (self.n_fft // 2) if self.center else length
        return 1 + (padded - self.n_fft) // self.hop_samples


class SoundSpec(Contract):
    """How each sound of an archive (WAV, 16-bit PCM, mono) becomes one sample of the array `sounds`: int16 [length], or
    float32 [n_mels, frames] with `log_mel`.

    Waveforms become -1 .. 1 by the input's `scale` 1/32768 = 0.000030517578125.
    """

    sample_rate_hz: int = Field(ge=1, le=1_000_000, description="Of every file; another one is an error.")
    length: int = Field(
        ge=1, le=1 << 24, description="Samples: longer sounds are cut at their end, shorter ones padded with zeros."
    )
    log_mel: LogMelSpec | None = Field(default=None, description="Makes a spectrogram of the waveform.")
    channel_axis: bool = Field(
        default=False, description="An axis of length 1 comes first in each sample, as in torchaudio's tensors."
    )

    @model_validator(mode="after")
    def _consistent(self) -> SoundSpec:
        spec = self.log_mel
        if spec is None:
            return self
        if spec.window_samples > spec.n_fft:
            raise ValueError(f"win_length is {spec.win_length}, larger than n_fft {spec.n_fft}")
        highest = self.sample_rate_hz / 2 if spec.f_max is None else spec.f_max
        if not spec.f_min < highest <= self.sample_rate_hz / 2:
            raise ValueError(
                f"bands from {spec.f_min:g} to {highest:g} Hz do not lie below half the sample rate, "
                f"{self.sample_rate_hz / 2:g} Hz"
            )
        least = spec.n_fft // 2 + 1 if spec.center else spec.n_fft
        if self.length < least:
            raise ValueError(f"length is {self.length}; an n_fft of {spec.n_fft} needs at least {least} samples")
        if spec.frames(self.length) * spec.n_mels > _MAX_VALUES:
            raise ValueError(f"spectrograms of more than {_MAX_VALUES} values are not made; raise hop_length")
        return self

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one sample."""
        channel = (1,) if self.channel_axis else ()
        if self.log_mel is None:
            return (*channel, self.length)
        frames, bands = self.log_mel.frames(self.length), self.log_mel.n_mels
        return (*channel, frames, bands) if self.log_mel.time_first else (*channel, bands, frames)

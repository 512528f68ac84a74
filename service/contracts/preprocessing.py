"""Preprocessing of pictures and sounds, by parameters or by a name.

Names: ``imagenet_torchvision``, ``imagenet_tf``, ``imagenet_caffe`` and ``cifar10``, each also with ``:NHWC`` behind it
for a model that takes channels last, and ``:BGR`` for one that takes blue first; ``timm`` and
``timm:INTERPOLATION,CROP_PCT,MEAN,STD,SIZE,CROP_MODE``. Sources: torchvision's presets of classification;
``keras.applications.imagenet_utils.preprocess_input`` of modes "tf" and "caffe", and ``inception_preprocessing`` of
TensorFlow's slim, which gives the values of ``imagenet_tf``; timm's ``transforms_imagenet_eval``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from service.contracts.base import Contract, nearest_key

MAX_SIDE = 4096

# Height or width in pixels.
Side = Annotated[int, Field(ge=1, le=MAX_SIDE)]


class ResizeSpec(Contract):
    """Target size and filter; set either `shorter_side` or `size`. With `shorter_side`, the longer side becomes
    `int(shorter_side * longer / shorter)`, as in torchvision.
    """

    shorter_side: Side | None = Field(default=None, description="Length of the shorter side; the aspect ratio is kept.")
    size: tuple[Side, Side] | None = Field(default=None, description="Height and width; the aspect ratio may change.")
    interpolation: Literal["bilinear", "bicubic", "lanczos", "nearest"] = Field(
        default="bilinear", description="Filter; `nearest` takes the pixel that contains the center."
    )
    antialias: bool = Field(
        default=True,
        description=(
            "Widen the filter when downscaling, as in Pillow's resize, which torchvision and timm use for "
            "pictures. If false, as in torch.nn.functional.interpolate (align_corners=False) and "
            "tf.image.resize, rounded to 8 bits."
        ),
    )

    @model_validator(mode="after")
    def _one_size(self) -> ResizeSpec:
        if (self.shorter_side is None) == (self.size is None):
            raise ValueError("give one of shorter_side and size")
        if self.interpolation == "lanczos" and not self.antialias:
            raise ValueError("lanczos is Pillow's filter: there is none without antialias")
        return self


class PictureSpec(Contract):
    """How each picture of an archive becomes one sample of the array `images`: uint8 [height, width, 3], or [height,
    width] for grayscale.

    Pictures are decoded as by torchvision's default loader: the first frame, converted by Pillow; the EXIF orientation
    is not applied. Without `resize` and `crop`, all pictures must have the same size.
    """

    colour: Literal["rgb", "grey"] = Field(default="rgb", description="Pillow mode: RGB, or L for grey.")
    resize: ResizeSpec | None = Field(default=None, description="Applied before the crop.")
    crop: tuple[Side, Side] | None = Field(
        default=None,
        description=(
            "Height and width of the center crop, starting at `int(round((height - crop) / 2.0))`; smaller "
            "pictures are padded with black. Same as torchvision's CenterCrop."
        ),
    )

    arrays: Literal["refuse", "as_stored"] = Field(
        default="refuse",
        description="For files of arrays: `refuse` this spec, or feed arrays of pictures `as_stored`: in the size that "
        "they have, NHWC or NCHW, values from 0 to 255. Names of preprocessing have `as_stored`.",
    )

    @property
    def size(self) -> tuple[int, int] | None:
        """Height and width of every sample; None: those of the pictures."""
        if self.crop is not None:
            return self.crop
        return None if self.resize is None else self.resize.size

    @property
    def changes(self) -> bool:
        """True if an array of RGB pictures would not stay as it is."""
        return self != PictureSpec()


# Values of one sample's spectrogram.
_MAX_VALUES = 1 << 26


class LogMelSpec(Contract):
    """`log(MelSpectrogram(x / 32768) + log_offset)`, as torchaudio.transforms.MelSpectrogram defines it, with a
    periodic Hann window, onesided, not normalized.
    """

    n_fft: int = Field(default=400, ge=2, le=1 << 16, description="Samples per Fourier transform.")
    win_length: int | None = Field(
        default=None, ge=1, description="Length of the window in samples; it is padded to n_fft. Default: n_fft."
    )
    hop_length: int | None = Field(
        default=None, ge=1, description="Samples between consecutive frames; default: half the window."
    )
    n_mels: int = Field(default=128, ge=1, le=4096, description="Number of mel bands.")
    f_min: float = Field(default=0.0, ge=0.0, description="Lower edge of the lowest band, in Hz.")
    f_max: float | None = Field(
        default=None, gt=0.0, description="Upper edge of the highest band, in Hz; default: half the sample rate."
    )
    power: float = Field(
        default=2.0, gt=0.0, description="Exponent of the magnitude spectrogram: 1 for magnitude, 2 for power."
    )
    center: bool = Field(
        default=True, description="Center frames on multiples of hop_length; the ends are padded by n_fft // 2."
    )
    pad_mode: Literal["reflect"] = Field(default="reflect", description="Padding mode of the ends.")
    mel_scale: Literal["htk", "slaney"] = Field(default="htk", description="Formula of the mel scale.")
    norm: Literal["slaney"] | None = Field(
        default=None, description="`slaney`: divide each filter by the width of its band."
    )
    log_offset: float = Field(default=1e-6, gt=0.0, description="Added before the natural logarithm.")
    time_first: bool = Field(default=False, description="Return [time, mel] instead of [mel, time].")

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
    float32 [n_mels, frames] with `log_mel`. To map waveforms to -1 .. 1, set the input's `scale` to 1/32768 =
    0.000030517578125.
    """

    sample_rate_hz: int = Field(
        ge=1, le=1_000_000, description="Sample rate of all files; a file with a different rate is an error."
    )
    length: int = Field(
        ge=1,
        le=1 << 24,
        description="Length in samples: longer sounds are truncated at the end, shorter ones are padded with zeros.",
    )
    log_mel: LogMelSpec | None = Field(default=None, description="Converts the waveform to a log-mel spectrogram.")
    channel_axis: bool = Field(
        default=False, description="Add a first axis of length 1 to each sample, as in torchaudio's tensors."
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


# Names of the arrays that archives become.
IMAGES = "images"
SOUNDS = "sounds"
ANY_INPUT = "*"
PLAIN_NAMES = ("imagenet_torchvision", "imagenet_tf", "imagenet_caffe", "cifar10")
TIMM = "timm"
TIMM_FORM = "timm:INTERPOLATION,CROP_PCT,MEAN,STD,SIZE,CROP_MODE"
_LAST, _BLUE_FIRST = "NHWC", "BGR"

_IMAGENET_MEAN, _IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
_CAFFE_MEAN = (103.939, 116.779, 123.68)  # of blue, green, red
# The words of timm.data.constants for mean and std.
_TIMM_MEANS = {"imagenet": _IMAGENET_MEAN, "inception": (0.5, 0.5, 0.5), "clip": (0.48145466, 0.4578275, 0.40821073)}
_TIMM_STDS = {"imagenet": _IMAGENET_STD, "inception": (0.5, 0.5, 0.5), "clip": (0.26862954, 0.26130258, 0.27577711)}
_TIMM_DEFAULTS = ("bicubic", "0.875", "imagenet", "imagenet", "224", "center")
# timm's words for Pillow's filters; its "random" is for training.
_INTERPOLATIONS = ("bicubic", "bilinear", "lanczos", "nearest")
_OTHER_CROP_MODES = ("squash", "border")
_RGB = 3


def is_name(text: str) -> bool:
    """True if ``text`` is meant to name a spec: it begins like one."""
    return text.partition(":")[0] in (*PLAIN_NAMES, TIMM)


def named_preprocessing(name: str) -> dict[str, Any]:
    """The preprocessing spec of this name, as a JSON document.

    Raises:
        ValueError: there is none.
    """
    if name.partition(":")[0] == TIMM:
        return _timm(name)
    plain, *options = name.split(":")
    known = (*PLAIN_NAMES, TIMM_FORM)
    if plain not in PLAIN_NAMES or len(set(options)) < len(options) or not {_LAST, _BLUE_FIRST}.issuperset(options):
        near = [one for one in PLAIN_NAMES if plain and one.startswith(plain) and one != plain] or [
            one for one in [nearest_key(plain, known)] if one and one != plain
        ]
        told = f"did you mean {' or '.join(map(repr, near))}?" if near else f"known: {', '.join(known)}"
        raise ValueError(f"unknown preprocessing {name!r}; {told}; you can append :{_LAST} or :{_BLUE_FIRST}")
    found = _plain(plain, _LAST if _LAST in options else "NCHW")
    feed = found["inputs"][ANY_INPUT]
    if _BLUE_FIRST in options and "channel_order" not in feed:
        feed |= {"channel_order": "bgr", "mean": feed["mean"][::-1], "std": feed["std"][::-1]}
    return found


def _plain(plain: str, layout: str) -> dict[str, Any]:
    if plain == "imagenet_torchvision":
        return _spec(_IMAGENET_MEAN, _IMAGENET_STD, layout, resize=256, crop=224)
    if plain == "imagenet_caffe":  # as Keras' mode "caffe", which leaves size and crop to the caller
        found = _spec(_CAFFE_MEAN, (1.0,), layout, scale=1.0, resize=256, crop=224)
        found["inputs"][ANY_INPUT]["channel_order"] = "bgr"
        return found
    if plain == "imagenet_tf":
        # x / 127.5 - 1 is the whole of Keras' mode "tf", which leaves size and crop to the caller; slim's
        # (x / 255 - 0.5) 2 is the same number, of another crop: the middle 87.5 %, resized without regard to its aspect
        return _spec((1.0,), (1.0,), layout, scale=1 / 127.5, resize=256, crop=224)
    return _spec((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616), layout)


def _spec(
    mean: tuple[float, ...],
    std: tuple[float, ...],
    model_layout: str,
    *,
    scale: float = 1 / 255,
    resize: int | None = None,
    crop: int | None = None,
    interpolation: str = "bilinear",
) -> dict[str, Any]:
    pictures: dict[str, Any] = {"arrays": "as_stored"}
    if resize is not None and crop is not None:
        pictures |= {"resize": {"shorter_side": resize, "interpolation": interpolation}, "crop": [crop, crop]}
    feed = {"array": IMAGES, "layout": "NHWC", "model_layout": model_layout, "scale": scale}
    return {"pictures": pictures, "inputs": {ANY_INPUT: {**feed, "mean": list(mean), "std": list(std)}}}


def _timm(name: str) -> dict[str, Any]:
    """As timm.data.transforms_factory builds the transform of evaluation with crop mode "center"."""
    given = _split(name.partition(":")[2])
    if len(given) > len(_TIMM_DEFAULTS):
        raise ValueError(f"{name!r} has {len(given)} values; the form is {TIMM_FORM}")
    filled = [value or default for value, default in zip(given, _TIMM_DEFAULTS, strict=False)]
    interpolation, crop_pct, mean, std, size, crop_mode = (*filled, *_TIMM_DEFAULTS[len(filled) :])
    if crop_mode != "center":
        what = "is not offered" if crop_mode in _OTHER_CROP_MODES else "is unknown"
        raise ValueError(f"crop mode {crop_mode!r} of {name!r} {what}; it is 'center'")
    if interpolation not in _INTERPOLATIONS:
        raise ValueError(f"interpolation {interpolation!r} of {name!r} is none of {', '.join(_INTERPOLATIONS)}")
    fraction = _number(crop_pct, name)
    if not 0 < fraction <= 1 or not size.isdecimal() or int(size) < 1:
        raise ValueError(f"CROP_PCT of {name!r} must be in (0, 1], SIZE must be a number of pixels")
    crop = int(size)
    return _spec(
        _channels(mean, _TIMM_MEANS, name),
        _channels(std, _TIMM_STDS, name),
        "NCHW",
        resize=math.floor(crop / fraction),
        crop=crop,
        interpolation=interpolation,
    )


def _split(text: str) -> list[str]:
    """Parts between commas that stand outside brackets."""
    parts, depth = [""], 0
    for character in text:
        depth += (character in "([") - (character in ")]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    return [part.strip() for part in parts]


def _channels(text: str, known: Mapping[str, tuple[float, ...]], name: str) -> tuple[float, ...]:
    if text in known:
        return known[text]
    values = tuple(_number(part, name) for part in text.strip("()[]").replace("/", ",").split(","))
    if len(values) not in (1, _RGB):
        raise ValueError(
            f"{text!r} of {name!r} is neither one value, nor three (0.5/0.5/0.5), nor one of {', '.join(known)}"
        )
    return values


def _number(text: str, name: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{text!r} of {name!r} is not a number; the form is {TIMM_FORM}") from None

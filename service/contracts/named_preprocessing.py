"""Preprocessing specs by name, as the libraries that models are trained with define them.

``imagenet_torchvision``, ``imagenet_tf``, ``imagenet_caffe`` and ``cifar10``, each also with ``:NHWC`` behind it for a
model that takes channels last, and ``:BGR`` for one that takes blue first; ``timm`` and
``timm:INTERPOLATION,CROP_PCT,MEAN,STD,SIZE,CROP_MODE``.

Sources: torchvision's presets of classification; ``keras.applications.imagenet_utils.preprocess_input`` of modes "tf"
and "caffe", and ``inception_preprocessing`` of TensorFlow's slim, which gives the values of ``imagenet_tf``; timm's
``transforms_imagenet_eval``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from service.contracts.nearest import nearest_key

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
        near = nearest_key(plain, known)
        told = f"did you mean {near!r}?" if near and near != plain else f"known: {', '.join(known)}"
        raise ValueError(f"no preprocessing is called {name!r}; {told}; :{_LAST} and :{_BLUE_FIRST} may follow")
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
    pictures: dict[str, Any] = {}
    if resize is not None and crop is not None:
        pictures = {"resize": {"shorter_side": resize, "interpolation": interpolation}, "crop": [crop, crop]}
    feed = {"array": IMAGES, "layout": "NHWC", "model_layout": model_layout, "scale": scale}
    return {"pictures": pictures, "inputs": {ANY_INPUT: {**feed, "mean": list(mean), "std": list(std)}}}


def _timm(name: str) -> dict[str, Any]:
    """As timm.data.transforms_factory builds the transform of evaluation with crop mode "center"."""
    given = _split(name.partition(":")[2])
    if len(given) > len(_TIMM_DEFAULTS):
        raise ValueError(f"{name!r} holds {len(given)} values; the form is {TIMM_FORM}")
    filled = [value or default for value, default in zip(given, _TIMM_DEFAULTS, strict=False)]
    interpolation, crop_pct, mean, std, size, crop_mode = (*filled, *_TIMM_DEFAULTS[len(filled) :])
    if crop_mode != "center":
        what = "is not offered" if crop_mode in _OTHER_CROP_MODES else "is unknown"
        raise ValueError(f"crop mode {crop_mode!r} of {name!r} {what}; it is 'center'")
    if interpolation not in _INTERPOLATIONS:
        raise ValueError(f"interpolation {interpolation!r} of {name!r} is none of {', '.join(_INTERPOLATIONS)}")
    fraction = _number(crop_pct, name)
    if not 0 < fraction <= 1 or not size.isdecimal() or int(size) < 1:
        raise ValueError(f"CROP_PCT of {name!r} must lie in (0, 1], SIZE must be a number of pixels")
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
        raise ValueError(f"{text!r} of {name!r} is no number; the form is {TIMM_FORM}") from None

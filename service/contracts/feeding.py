"""How a dataset reaches the model, in words, and the preprocessing that would feed it. It is said of every dataset, as
preprocessing cannot be changed after upload.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from service.contracts.dataset import COLOURS, ArraySummary, InputSpec, PreprocessingSpec
from service.contracts.model import TensorInfo
from service.contracts.preprocessing import ANY_INPUT, IMAGES, PictureSpec

AS_STORED = "used as stored (no preprocessing)"
_MOST_INPUTS, _MOST_CHANNELS = 4, 4
_IMAGE_AXES = 4


def fed_as(spec: PreprocessingSpec) -> str:
    """Such as "fed to the model as NCHW (stored as NHWC), x × 0.0625"."""
    parts = [] if spec.pictures is None else _picture(spec.pictures)
    parts += [] if spec.sounds is None else ["decoded sounds"]
    inputs = [(name, words) for name, one in spec.inputs.items() if (words := _input(one))]
    parts += [words if name == ANY_INPUT else f"{name}: {words}" for name, words in inputs[:_MOST_INPUTS]]
    if len(inputs) > _MOST_INPUTS:
        parts.append(f"{len(inputs) - _MOST_INPUTS} more inputs")
    return f"fed to the model as {'; '.join(parts)}" if parts else AS_STORED


def setting_with(spec: PreprocessingSpec, name: str, fragment: Mapping[str, Any]) -> str:
    """The whole preprocessing as JSON with a fragment for one input, so that it can be pasted."""
    document = spec.model_dump(mode="json", exclude_defaults=True)
    inputs = document.setdefault("inputs", {})
    entry = ANY_INPUT if name not in inputs and ANY_INPUT in inputs else name
    inputs[entry] = {**inputs.get(entry, {}), **fragment}
    return json.dumps(document)


def mapping_hint(spec: PreprocessingSpec, tensor: TensorInfo, name: str, array: ArraySummary) -> str:
    """The preprocessing that feeds the array of this name to an input that has none; of images, with usual names."""
    fragment = {"array": name}
    if array.dtype != "uint8" or len(array.shape) != _IMAGE_AXES or COLOURS not in array.shape[1:]:
        return f"To feed array {name!r}, set the preprocessing to `{setting_with(spec, tensor.name, fragment)}`."
    fragment["layout"] = "NHWC" if array.shape[3] == COLOURS else "NCHW"
    last = (tensor.shape or ())[-1:] == (COLOURS,)
    if last:
        fragment["model_layout"] = "NHWC"
    own = f"set the preprocessing to `{setting_with(spec, tensor.name, fragment)}`, and add scale, mean and std"
    if name != IMAGES or fragment["layout"] != "NHWC" or spec != PreprocessingSpec():
        return f"To feed the images in {name!r}, {own}."
    names = (f"{plain}:NHWC" if last else plain for plain in ("imagenet_torchvision", "imagenet_tf"))
    usual = " or ".join(f"set the preprocessing to `{plain}`" for plain in names)
    return f"To feed the images in {name!r}, {usual}, as the model was trained; else {own}."


def _picture(spec: PictureSpec) -> list[str]:
    words = "grey images" if spec.colour == "grey" else "images"
    if spec.size is not None:
        words += f" of {spec.size[0]} × {spec.size[1]}"
    elif spec.resize is not None:
        words += f" resized to a shorter side of {spec.resize.shorter_side}"
    return [words]


def _input(spec: InputSpec) -> str:
    words = [] if spec.array is None else [f"array {spec.array}"]
    if spec.layout is not None:
        stored = "" if spec.layout == spec.model_layout else f" (stored as {spec.layout})"
        words.append(spec.model_layout + stored)
    if spec.channel_order == "bgr":
        words.append("BGR")
    if not spec.is_identity:
        words.append(_formula(spec))
    return ", ".join(words)


def _formula(spec: InputSpec) -> str:
    words = "x" if spec.scale == 1.0 else f"x × {spec.scale:.4g}"
    has_mean = set(spec.mean) != {0.0}
    if has_mean:
        words += f" − {_values(spec.mean)}"
    if set(spec.std) == {1.0}:
        return words
    return f"{f'({words})' if has_mean else words} / {_values(spec.std)}"


def _values(values: tuple[float, ...]) -> str:
    told = [f"{value:.4g}" for value in values[:_MOST_CHANNELS]]
    if len(values) > _MOST_CHANNELS:
        told.append("…")
    return told[0] if len(told) == 1 else f"[{', '.join(told)}]"

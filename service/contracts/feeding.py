"""How a dataset reaches the model, in words: said of every dataset, as preprocessing cannot be changed after upload."""

from __future__ import annotations

from service.contracts.dataset import InputSpec, PreprocessingSpec
from service.contracts.preprocessing import ANY_INPUT, PictureSpec

AS_STORED = "used as stored (no preprocessing)"
_MOST_INPUTS, _MOST_CHANNELS = 4, 4


def fed_as(spec: PreprocessingSpec) -> str:
    """Such as "fed to the model as NCHW, x × 0.0625"."""
    parts = [] if spec.pictures is None else _picture(spec.pictures)
    parts += [] if spec.sounds is None else ["decoded sounds"]
    inputs = [(name, words) for name, one in spec.inputs.items() if (words := _input(one))]
    parts += [words if name == ANY_INPUT else f"{name}: {words}" for name, words in inputs[:_MOST_INPUTS]]
    if len(inputs) > _MOST_INPUTS:
        parts.append(f"{len(inputs) - _MOST_INPUTS} more inputs")
    return f"fed to the model as {'; '.join(parts)}" if parts else AS_STORED


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
        words.append(spec.model_layout)
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

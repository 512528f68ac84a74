"""Other ways in which samples could have been meant, and a paired trial: does the float model do better so?"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from service.contracts.dataset import UNLABELLED, InputSpec, PreprocessingSpec
from service.contracts.errors import DatasetMismatchError, EngineError, UnsupportedModelError
from service.contracts.feeding import setting_with
from service.contracts.model import TensorInfo
from worker.quantizer.data import OpenDataset
from worker.quantizer.evaluation.metrics.distances import are_probabilities, log_softmax
from worker.quantizer.runtime.session import Session
from worker.quantizer.sanity.kind import declare
from worker.quantizer.sanity.look import Array, Look, first_values, run_on

_FLOATS = ("float16", "float32", "float64", "bfloat16")
_BYTE = 255.0
# Full scale of 16-bit sound.
_SOUND = 32768.0
# The usual ways of preparing pictures, as (scale, mean, std) of 8-bit values.
_PICTURES: dict[str, tuple[float, tuple[float, ...], tuple[float, ...]]] = {
    "values from 0 to 1": (1 / _BYTE, (0.0,), (1.0,)),
    "values from -1 to 1": (1 / _BYTE, (0.5,), (0.5,)),
    "ImageNet's mean and std": (1 / _BYTE, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "values from 0 to 255": (1.0, (0.0,), (1.0,)),
    "values from 0 to 255 minus ImageNet's mean": (1.0, (123.68, 116.779, 103.939), (1.0,)),
}
_REVERSED = "the color channels reversed (RGB and BGR)"
# Tried only where the model hardly works.
_RAW = ("values from 0 to 255", "values from 0 to 255 minus ImageNet's mean")
_COLOURS = 3


@dataclass(frozen=True)
class Alternative:
    """One other way."""

    kind: str  # scale, mean, channel-order, scale-and-channel-order or layout
    words: str  # what it is
    change: Callable[[Array], Array]  # makes it of what was given, [samples, ...] in, the same shape out
    fragment: dict[str, Any] | None = None  # of the input's preprocessing; None: no preprocessing makes it
    is_gross: bool = True  # tried only where the model hardly works as it is
    setting: str | None = None  # the whole preprocessing with the fragment: its name, or as JSON
    parts: tuple[str, ...] = ()  # words of the two that it does at once

    @property
    def hint(self) -> str:
        """What to do."""
        told = f"set the preprocessing to `{self.setting}`" if self.setting else "store or preprocess it that way"
        return f"{self.words[0].upper()}{self.words[1:]}: {told}"


def main_input(picked: OpenDataset, inputs: tuple[TensorInfo, ...]) -> TensorInfo | None:
    """The float input with the most elements per sample; None if there is none of more than one."""
    sized = [(int(np.prod(picked.array_for(t)[0].shape[1:])), t) for t in inputs if t.dtype in _FLOATS]
    size, tensor = max(sized, key=lambda found: found[0], default=(0, None))
    return tensor if size > 1 else None


def alternatives(
    look: Look, tensor: TensorInfo, preprocessing: PreprocessingSpec, *, arrays: bool = True
) -> list[Alternative]:
    """What may have been meant instead, the subtle ones first.

    Args:
        look: at samples.
        tensor: input that they feed.
        preprocessing: of the data as given.
        arrays: the data is a file of arrays, no archive.
    """
    picked = look.picked
    array, spec = picked.array_for(tensor)
    values = first_values(picked, tensor).astype(np.float32)
    axis = _channel_axis(values, spec)
    stored_bytes = array.dtype == np.uint8
    colours, pictures = list(_colours(values, spec, axis)), list(_pictures(values, spec, axis, stored_bytes))
    found = [
        *colours,
        *pictures,
        *(both for picture in pictures for both in _both(picture, colours, axis or 1)),
        *_scales(values, spec),
        *_full_scale(spec, axis, (look.lows[tensor.name].min(), look.highs[tensor.name].max()), stored_bytes),
        *_means(values, axis),
        *_layouts(values, spec, axis),
    ]
    alone = len(look.lows) == 1
    told = (
        one
        if one.fragment is None
        else replace(one, setting=_setting(preprocessing, tensor.name, one.fragment, alone=alone, arrays=arrays))
        for one in found
    )
    return sorted(told, key=lambda one: one.is_gross)


def _both(picture: Alternative, colours: list[Alternative], axis: int) -> Iterator[Alternative]:
    """Pictures prepared so with colors reversed: each color with its own mean and std, and with those of its place."""
    if not colours:
        return
    order, parts = colours[-1], (picture.words, *(one.words for one in colours))
    both = partial(Alternative, "scale-and-channel-order", is_gross=picture.is_gross, parts=parts)
    known = order.fragment is not None and picture.fragment is not None
    fragment = {**(picture.fragment or {}), **(order.fragment or {})}
    if len({*fragment.get("mean", ()), *fragment.get("std", ())}) > 2:
        moved = {**fragment, **{name: fragment[name][::-1] for name in ("mean", "std")}}
        words = f"{picture.words}, with {_REVERSED}, each with its own mean"
        yield both(words, lambda x: np.flip(picture.change(x), axis), moved if known else None)
    words = f"{picture.words}, with {_REVERSED}"
    yield both(words, lambda x: picture.change(order.change(x)), fragment if known else None)


def _setting(
    preprocessing: PreprocessingSpec, name: str, fragment: dict[str, Any], *, alone: bool, arrays: bool
) -> str:
    """The whole preprocessing with a fragment for one input, so that it can be pasted; by its name where one gives
    the same: it sets every input, and pictures of an archive its own way.
    """
    setting = setting_with(preprocessing, name, fragment)
    named = PreprocessingSpec.model_validate_json(setting).input(name).name
    if named is None or not alone or preprocessing.labels is not None:
        return setting
    same = arrays or PreprocessingSpec.model_validate(named).pictures == preprocessing.pictures
    return named if same else setting


def _channel_axis(values: Array, spec: InputSpec) -> int | None:
    """Of pictures, with the samples as axis 0; None for other data."""
    if values.ndim != 4:
        return None
    if spec.layout is not None:
        return spec.channel_axis
    return next((axis for axis in (1, 3) if values.shape[axis] in (1, _COLOURS)), None)


def _shaped(column: tuple[float, ...], axis: int) -> Array:
    values = np.array(column, np.float32)
    return values.reshape(-1, 1, 1) if axis == 1 else values


def _colours(values: Array, spec: InputSpec, axis: int | None) -> Iterator[Alternative]:
    """RGB for BGR; where mean and std differ by channel, with them and as it would have been before them."""
    if axis is None or values.shape[axis] != _COLOURS:
        return
    mean, std = _shaped(spec.mean, axis), _shaped(spec.std, axis)
    fragment = {"channel_order": "rgb" if spec.channel_order == "bgr" else "bgr"} if spec.layout else None
    if len({*spec.mean}) > 1 or len({*spec.std}) > 1:
        moved = None if fragment is None else {**fragment, "mean": spec.mean[::-1], "std": spec.std[::-1]}
        words = f"{_REVERSED}, each with its own mean"
        yield Alternative("channel-order", words, lambda x: np.flip(x, axis), moved, is_gross=False)
    yield Alternative(
        "channel-order", _REVERSED, lambda x: (np.flip(x * std + mean, axis) - mean) / std, fragment, is_gross=False
    )


def _pictures(values: Array, spec: InputSpec, axis: int | None, stored_bytes: bool) -> Iterator[Alternative]:
    """The usual ways of preparing pictures; known for stored bytes, guessed by the range of floats."""
    if axis is None or values.shape[axis] not in (1, _COLOURS):
        return
    to_bytes = _back(spec, axis) if stored_bytes else _guess(values)
    if to_bytes is None:
        return
    pixels = to_bytes(values)
    for words, (scale, mean, std) in _PICTURES.items():
        if len(mean) not in (1, values.shape[axis]):
            continue

        change = _prepared(to_bytes, scale, _shaped(mean, axis), _shaped(std, axis))
        if np.abs(change(values) - values).max() < 0.01 * (values.std() or 1.0):
            continue
        fragment = {"scale": scale, "mean": mean, "std": std} if stored_bytes else None
        shifted = np.allclose(scale / np.mean(std), 1.0 / _slope(pixels, values), rtol=0.1)
        yield Alternative("mean" if shifted else "scale", words, change, fragment, is_gross=words in _RAW)


def _prepared(to_bytes: Callable[[Array], Array], scale: float, mean: Array, std: Array) -> Callable[[Array], Array]:
    return lambda x: (to_bytes(x) * np.float32(scale) - mean) / std


def _scaled(factor: float) -> Callable[[Array], Array]:
    return lambda x: x * np.float32(factor)


def _slope(pixels: Array, values: Array) -> float:
    """Bytes per unit of what is fed."""
    return float(pixels.std() / (values.std() or 1.0)) or 1.0


def _back(spec: InputSpec, axis: int) -> Callable[[Array], Array]:
    """What undoes the preprocessing."""
    mean, std = _shaped(spec.mean, axis), _shaped(spec.std, axis)
    return lambda x: (x * std + mean) / np.float32(spec.scale)


def _guess(values: Array) -> Callable[[Array], Array] | None:
    """What makes bytes of floats whose range tells how they were made."""
    low, high = float(values.min()), float(values.max())
    if -1.01 <= low < -0.6 and 0.6 < high <= 1.01:
        return lambda x: (x + 1.0) * np.float32(_BYTE / 2)
    if low >= 0.0 and 0.6 < high <= 1.01:
        return lambda x: x * np.float32(_BYTE)
    if low >= 0.0 and 128.0 < high <= 255.5:
        return lambda x: x
    return None


def _scales(values: Array, spec: InputSpec) -> Iterator[Alternative]:
    factors = {_BYTE: "255 times larger values", 1 / _BYTE: "255 times smaller values"}
    if values.ndim < 4:
        factors |= {_SOUND: "32768 times larger values", 1 / _SOUND: "32768 times smaller values"}
    for factor, words in factors.items():
        other = {"scale": spec.scale * factor, "mean": [mean * factor for mean in spec.mean]}
        yield Alternative("scale", words, _scaled(factor), other)


def _full_scale(
    spec: InputSpec, axis: int | None, extremes: tuple[float, float], stored_bytes: bool
) -> Iterator[Alternative]:
    """Stored values divided by the largest: digits from 0 to 16 by 16, bytes by 255."""
    low, high = float(extremes[0]), float(extremes[1])
    full = _BYTE if stored_bytes and high > _BYTE / 2 else high  # bytes that stay low are of another depth
    by_channel = axis is None and max(len(spec.mean), len(spec.std)) > 1
    if (
        low < 0
        or not 1.0 < full < math.inf
        or by_channel
        or ({*spec.mean} == {0.0} and {*spec.std} == {1.0} and math.isclose(spec.scale * full, 1.0))
    ):
        return
    back = _back(spec, axis or 1)
    fragment = {"scale": 1 / full, "mean": [0.0], "std": [1.0]}
    yield Alternative("scale", f"values divided by {full:g}", lambda x: back(x) / np.float32(full), fragment)


def _means(values: Array, axis: int | None) -> Iterator[Alternative]:
    kept = tuple(k for k in range(values.ndim) if k != axis)
    mean = values.mean(axis=kept, keepdims=True)[0]
    std = values.std(axis=kept, keepdims=True)[0] + np.float32(1e-12)
    yield Alternative("mean", "values minus their mean", lambda x: x - mean)
    yield Alternative(
        "scale", "values minus their mean, divided by their standard deviation", lambda x: (x - mean) / std
    )


def _layouts(values: Array, spec: InputSpec, axis: int | None) -> Iterator[Alternative]:
    """Axes in another order: of rows and columns, and of the channels."""
    if values.ndim < 3:
        return
    places = [k for k in range(1, values.ndim) if k != axis and values.shape[k] > 1]
    if len(places) == 2:
        one, other = places
        yield Alternative("layout", "rows and columns swapped", lambda x: _reread(x, one, other))
    if axis is not None and values.shape[axis] > 1:
        first = axis == 1
        words = f"images stored {'height x width x channels' if first else 'channels x height x width'}"
        yield Alternative(
            "layout",
            words,
            _channels_last_read if first else _channels_first_read,
            {"layout": "NHWC"} if first else None,
        )


def _reread(x: Array, one: int, other: int) -> Array:
    """The bytes of [.., b, a] as which [.., a, b] was stored, with both axes exchanged."""
    order = list(x.shape)
    order[one], order[other] = order[other], order[one]
    return x.reshape(order).swapaxes(one, other)


def _channels_last_read(x: Array) -> Array:
    """[n, c, h, w] whose bytes are those of [n, h, w, c]."""
    n, c, h, w = x.shape
    return x.reshape(n, h, w, c).transpose(0, 3, 1, 2)


def _channels_first_read(x: Array) -> Array:
    """[n, h, w, c] whose bytes are those of [n, c, h, w]."""
    n, h, w, c = x.shape
    return x.reshape(n, c, h, w).transpose(0, 2, 3, 1)


# Would the float model do better had the inputs been meant otherwise? A paired trial on labelled samples.
#
# Every sample has a loss under what was given and under the alternative: minus the logarithm of its label's
# probability, after one temperature for all samples that is best for that way of feeding, so that a mere scale of the
# scores counts for nothing. An alternative is better if the mean difference is more than ``_SIGMAS`` standard errors
# and the decisions won outnumber the lost. Alternatives that fall behind are dropped early: few samples serve to drop
# them, many to accuse.

_SIGMAS = 4.0
# Samples of each round, and the standard errors that an alternative has to be ahead to stay.
_ROUNDS = ((8, -1.0), (16, 0.0), (64, 1.0), (256, _SIGMAS))
# Fewer accuse of nothing.
_FEWEST = 24
# Decisions won less those lost, as a share of the samples; and won per lost.
_GAIN, _RATIO = 0.02, 1.5
# From this share of right decisions on only what is subtle is tried: gross faults leave less.
WORKS = 0.75
_TEMPERATURES = np.geomspace(1 / 64, 64, 33)
FITS_BETTER = declare(
    "input-fits-better-otherwise",
    "critical",
    "input {input!r}: the float model predicts {value:.1f} % of {samples} samples correctly as "
    "preprocessed, and {better:.1f} % with {words} ({sigmas:.1f} standard errors)",
    hint="{hint}. Ranges calibrated on wrongly preprocessed data do not fit correct data.",
)


@dataclass(frozen=True)
class Better:
    """An alternative that the model does better with: share of right decisions as given and so, of how many samples."""

    alternative: Alternative
    given: float
    better: float
    samples: int
    sigmas: float


class PairedTrial:
    """The float model on a few labelled samples, as they are and otherwise.

    Args:
        session: the float model.
        picked: samples with labels.
        inputs: the model's.
        tensor: the input that is changed.
        output: position of the output with the class scores [samples, classes] or class numbers [samples].
        base: makes what alternatives are held against of what was given; None: that itself.
    """

    def __init__(
        self,
        session: Session,
        picked: OpenDataset,
        inputs: Sequence[TensorInfo],
        tensor: TensorInfo,
        output: int,
        base: Callable[[Array], Array] | None = None,
    ) -> None:
        self._session, self._picked, self._inputs = session, picked, inputs
        self._tensor, self._output, self._base = tensor, output, base
        self._given: Array | None = None

    def knows(self, scores: Array) -> None:
        """Scores of the first samples as given, if they are known already."""
        self._given = scores

    def best(self, candidates: Sequence[Alternative]) -> Better | None:
        """The alternative that is better by the most; None if none is.

        Raises:
            EngineError: the runtime failed on the data as given.
        """
        first = self._best([one for one in candidates if not one.parts])
        # of two at once only what is better than the one alone: whatever repairs the scale seems to help
        both = [one for one in candidates if one.parts]
        base = None if first is None else first.alternative.change
        then = PairedTrial(self._session, self._picked, self._inputs, self._tensor, self._output, base)
        second = then._best(both)
        return second if first is None else first if second is None else replace(second, given=first.given)

    def _best(self, candidates: Sequence[Alternative]) -> Better | None:
        found = [better for one in candidates if (better := self._tried(one)) is not None]
        return max(found, key=lambda better: (better.better, better.sigmas), default=None)

    def _tried(self, one: Alternative) -> Better | None:
        labels = self._picked.labels
        assert labels is not None  # noqa: S101 - only labelled samples are tried
        scores: Array | None = None
        for most, ahead in _ROUNDS:
            count = min(most, len(labels))
            self._given = self._scores(self._given, count, self._base)
            try:
                scores = self._scores(scores, count, one.change)
            except (DatasetMismatchError, EngineError, UnsupportedModelError):
                return None  # a model that cannot run on it does no better with it
            known = np.flatnonzero(labels[:count] != UNLABELLED)
            if not len(known):
                continue
            (given, right), (loss, so_right) = (losses(s[known], labels[known]) for s in (self._given, scores))
            sigmas = _ahead(given - loss)
            if sigmas < ahead:
                return None
            won, lost = int((so_right & ~right).sum()), int((right & ~so_right).sum())
            wins = won - lost >= max(2.0, _GAIN * len(known)) and won >= _RATIO * lost
            if len(known) >= _FEWEST and sigmas >= _SIGMAS and wins:
                return Better(one, float(right.mean()), float(so_right.mean()), len(known), sigmas)
            if count < most:
                return None
        return None

    def _scores(self, known: Array | None, count: int, change: Callable[[Array], Array] | None) -> Array:
        """Scores of the first ``count`` samples, or more; only those not yet known are run."""
        name, start = self._tensor.name, 0 if known is None else len(known)
        if known is not None and start >= count:
            return known

        def changed(feeds: dict[str, Array]) -> dict[str, Array]:
            if change is not None:
                other = change(feeds[name].astype(np.float32, copy=False))
                feeds[name] = np.ascontiguousarray(other, feeds[name].dtype)
            return feeds

        batches = run_on(self._session, self._picked, self._inputs, samples=range(start, count), change=changed)
        return np.concatenate([*([] if known is None else [known]), *(batch[self._output] for batch in batches)])


def losses(scores: Array, labels: Array) -> tuple[Array, Array]:
    """Loss float64 [samples] at the best temperature, and whether the decision is right, bool [samples].

    Args:
        scores: float [samples, classes], or class numbers [samples]: their loss is 0 or 1.
        labels: int64 [samples].
    """
    if scores.dtype.kind in "iub":
        right = scores.reshape(-1) == labels
        return (~right).astype(np.float64), right
    rows = scores.reshape(len(scores), -1).astype(np.float64)
    rows = np.nan_to_num(rows, nan=0.0, posinf=1e30, neginf=-1e30)
    if are_probabilities(rows):
        rows = np.log(np.maximum(rows, 1e-12))
    spread = float(rows.std(axis=1).mean()) or 1.0
    best: Array | None = None
    for temperature in _TEMPERATURES:
        found = -log_softmax(rows * (temperature / spread))[np.arange(len(rows)), labels]
        if best is None or found.mean() < best.mean():
            best = found
    assert best is not None  # noqa: S101 - there are temperatures
    return best, rows.argmax(axis=1) == labels


def _ahead(differences: Array) -> float:
    """Mean over its standard error."""
    error = float(differences.std(ddof=1)) / math.sqrt(len(differences)) if len(differences) > 1 else 0.0
    mean = float(differences.mean())
    return mean / error if error else math.copysign(math.inf, mean) if mean else 0.0

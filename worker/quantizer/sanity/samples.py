"""Is the data such that ranges and figures can be taken from it? From what the samples themselves are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from service.contracts.dataset import DatasetSummary, InputSpec
from service.contracts.model import TensorInfo
from service.contracts.report.layers import Finding
from worker.quantizer.sanity.kind import declare
from worker.quantizer.sanity.look import Array, Look, first_values

# A new sample exceeds the range of n others with chance 2 / (n + 1), whatever the distribution (order statistics).
_FEW_SAMPLES = 20
# Spread between the samples, as a share of the largest magnitude or of the spread within them.
_HARDLY = 1e-3
# Share of repeated samples that is told.
_MANY = 0.5
# Calibration against evaluation data: ratio of the spreads, and shift of the means in spreads. Loud and quiet parts of
# one recording are 25 apart; what forgets to divide by 128, 255 or 32768 is further.
_OTHER_SPREAD, _OTHER_MEAN = 50.0, 3.0
_COLOURS = 3

CALIBRATION_CONSTANT = declare(
    "calibration-data-constant",
    "critical",
    "input {input!r} is {value:g} everywhere in the {count} calibration samples",
    hint="Check how the calibration data was stored and preprocessed: a range of one value is useless.",
)
EVALUATION_CONSTANT = declare(
    "evaluation-data-constant",
    "critical",
    "input {input!r} is {value:g} everywhere in the {count} evaluation samples",
    hint="Check how the data was stored and preprocessed: constant inputs show nothing about accuracy.",
    undermines_verdict=True,
)
CALIBRATION_IDENTICAL = declare(
    "calibration-samples-identical",
    "critical",
    "all {count} calibration samples are identical",
    hint="Use different samples: the ranges of one sample do not fit others.",
)
EVALUATION_IDENTICAL = declare(
    "evaluation-samples-identical",
    "critical",
    "all {count} evaluation samples are identical",
    hint="Use different samples: figures of one sample show nothing about others.",
    undermines_verdict=True,
)
NEARLY_CONSTANT = declare(
    "data-nearly-constant",
    "warning",
    "the samples of the {role} data hardly differ in input {input!r}: standard deviation "
    "{spread:.2g}, values up to {size:.2g}",
    hint="Check the preprocessing: an offset may be missing, or the scale may be much too small.",
)
CHANNEL_CONSTANT = declare(
    "channel-constant",
    "warning",
    ("channel {channel} of input {input!r} is {value:g} everywhere in the {role} data, the other channels vary"),
    hint="Check how the images were read: a color channel is missing.",
)
ONE_SAMPLE = declare(
    "one-calibration-sample",
    "critical",
    "ranges are calibrated on 1 sample",
    hint=("Use 100 or more calibration samples that represent the real inputs: most others will exceed these ranges."),
)
FEW_SAMPLES = declare(
    "few-calibration-samples",
    "warning",
    "ranges are calibrated on {count} samples: in each channel about {percent:.0f} % of new samples will exceed them",
    hint="Use 100 or more calibration samples that represent the real inputs.",
)
REPEATED = declare(
    "samples-repeated",
    "warning",
    "only {distinct} of {count} samples of the {role} data are distinct",
    hint=("Use different samples: repeated ones add no information and make confidence intervals too narrow."),
)
IN_CALIBRATION = declare(
    "evaluation-in-calibration",
    "warning",
    "{shared} of {count} evaluation samples are also calibration samples",
    hint=("Evaluate on other samples: figures on samples that ranges or weights were fitted to are too optimistic."),
)
SOME_IN_CALIBRATION = declare(
    "some-evaluation-in-calibration",
    "info",
    "{shared} of {count} evaluation samples are also calibration samples",
    hint=(
        "Evaluate on other samples: figures on samples that ranges or weights were fitted to are "
        "slightly too optimistic."
    ),
)
UNLIKE = declare(
    "calibration-unlike-evaluation",
    "critical",
    "input {input!r} has mean {mean:.3g} and standard deviation {spread:.3g} in the calibration "
    "data, {other_mean:.3g} and {other_spread:.3g} in the evaluation data",
    hint="Both have to represent the real inputs: compare how they were stored and preprocessed.",
)
OTHER_PREPROCESSING = declare(
    "preprocessing-differs",
    "warning",
    "input {input!r}, of 8-bit arrays in both datasets, has {calibration} in the calibration data, {evaluation} in the "
    "evaluation data",
    hint="Use the same preprocessing for calibration and evaluation data.",
)


def calibration_findings(look: Look, inputs: Sequence[TensorInfo], *, ranges: bool) -> Iterator[Finding]:
    """What is wrong with the calibration data; ``ranges``: those of activations are taken from it."""
    if ranges and look.samples == 1:
        yield ONE_SAMPLE()
    elif ranges and look.samples < _FEW_SAMPLES:
        yield FEW_SAMPLES(count=look.samples, percent=200.0 / (look.samples + 1))
    constant = list(_constant(look, inputs))
    yield from (CALIBRATION_CONSTANT({"input": name}, input=name, count=look.seen, value=v) for name, v in constant)
    if not constant:
        if look.seen > 1 and look.distinct == 1:
            yield CALIBRATION_IDENTICAL(count=look.seen)
        yield from _weak(look, inputs, "calibration")


def evaluation_findings(look: Look, inputs: Sequence[TensorInfo], *, role: str = "evaluation") -> Iterator[Finding]:
    """What is wrong with the data that both models are compared on."""
    constant = list(_constant(look, inputs))
    yield from (EVALUATION_CONSTANT({"input": name}, input=name, count=look.seen, value=v) for name, v in constant)
    if not constant:
        if look.seen > 1 and look.distinct == 1:
            yield EVALUATION_IDENTICAL(count=look.seen)
        if role == "evaluation":
            yield from _weak(look, inputs, role)


def pair_findings(
    calibration: Look,
    evaluation: Look,
    inputs: Sequence[TensorInfo],
    summaries: tuple[DatasetSummary, DatasetSummary],
) -> Iterator[Finding]:
    """What does not fit between calibration and evaluation data."""
    known = set(calibration.fingerprints)
    shared = sum(found in known for found in evaluation.fingerprints)
    if shared:
        kind = IN_CALIBRATION if shared > _MANY * evaluation.seen else SOME_IN_CALIBRATION
        yield kind(shared=shared, count=evaluation.seen)
    for tensor in inputs:
        specs = [summary.preprocessing.input(tensor.name) for summary in summaries]
        arrays = [summary.arrays.get(spec.array or tensor.name) for summary, spec in zip(summaries, specs, strict=True)]
        made = {(spec.scale, spec.mean, spec.std) for spec in specs}
        if len(made) > 1 and all(array is not None and array.dtype == "uint8" for array in arrays):
            one_way, other_way = map(_preprocessed, specs)
            where = {"input": tensor.name}
            yield OTHER_PREPROCESSING(where, input=tensor.name, calibration=one_way, evaluation=other_way)
        one, other = (first_values(look.picked, tensor) for look in (calibration, evaluation))
        if _is_data(tensor, one) and min(calibration.samples, evaluation.samples) > 1:
            yield from _unlike(tensor.name, one, other)


def _preprocessed(spec: InputSpec) -> str:
    """How integers become inputs, such as "scale 0.00392, mean 0.485, 0.456, 0.406"."""
    given = {"scale": (spec.scale,), "mean": spec.mean, "std": spec.std}
    return ", ".join(
        f"{name} {', '.join(f'{one:.4g}' for one in values[:_COLOURS])}{', ...' if len(values) > _COLOURS else ''}"
        for name, values in given.items()
    )


def _unlike(name: str, one: Array, other: Array) -> Iterator[Finding]:
    """Another scale or another mean, and that of nearly every sample: loud and quiet ones may come in any order."""
    rows = [values.reshape(len(values), -1).astype(np.float64) for values in (one, other)]
    means, spreads = [row.mean(axis=1) for row in rows], [row.std(axis=1) for row in rows]
    mean, spread = [float(found.mean()) for found in means], [float(found.mean()) for found in spreads]
    if not min(spread):
        return
    moved = abs(mean[0] - mean[1]) > _OTHER_MEAN * max(row.std() for row in rows) and _apart(*means)
    if moved or (max(spread) > _OTHER_SPREAD * min(spread) and _apart(*spreads)):
        yield UNLIKE(
            {"input": name}, input=name, mean=mean[0], spread=spread[0], other_mean=mean[1], other_spread=spread[1]
        )


def _apart(one: Array, other: Array) -> bool:
    """True if hardly a value of either lies among those of the other."""
    low, high = sorted((one, other), key=lambda values: float(np.median(values)))
    return bool(np.quantile(low, 0.95) < np.quantile(high, 0.05))


def _constant(look: Look, inputs: Sequence[TensorInfo]) -> Iterator[tuple[str, float]]:
    """Inputs of data that hold one value only; nothing where another input varies: masks and states may be constant."""
    held = [tensor for tensor in inputs if look.lows[tensor.name].min() != look.highs[tensor.name].max()]
    if not held:
        for tensor in inputs:
            values = first_values(look.picked, tensor)
            if values[0].size > 1:
                yield tensor.name, float(values.flat[0])


def _weak(look: Look, inputs: Sequence[TensorInfo], role: str) -> Iterator[Finding]:
    """Data that varies, but hardly."""
    if 1 < look.distinct < _MANY * look.seen:
        yield REPEATED(distinct=look.distinct, count=look.seen, role=role)
    if look.distinct < 2:
        return
    for tensor in inputs:
        values = first_values(look.picked, tensor)
        if not _is_data(tensor, values) or look.lows[tensor.name].min() == look.highs[tensor.name].max():
            continue
        wide = values.astype(np.float32)
        spread, size = float(wide.std(dtype=np.float64)), float(np.abs(wide).max())
        between = float(np.sqrt(wide.var(axis=0, dtype=np.float64).mean()))
        if spread < _HARDLY * size or between < _HARDLY * spread:
            yield NEARLY_CONSTANT({"input": tensor.name}, input=tensor.name, role=role, spread=between, size=size)
        yield from _channels(tensor.name, wide, role)


def _channels(name: str, values: Array, role: str) -> Iterator[Finding]:
    """A colour that is missing."""
    axis = next((k for k in (1, values.ndim - 1) if values.ndim == 4 and values.shape[k] == _COLOURS), None)
    if axis is None:
        return
    colours = np.moveaxis(values, axis, 0).reshape(_COLOURS, -1)
    flat = [k for k, colour in enumerate(colours) if colour.min() == colour.max()]
    if 0 < len(flat) < _COLOURS:
        for k in flat:
            yield CHANNEL_CONSTANT(
                {"input": name, "channel": k}, input=name, channel=k, role=role, value=float(colours[k, 0])
            )


def _is_data(tensor: TensorInfo, values: Array) -> bool:
    """Numbers to compute with, and more than one of them."""
    return tensor.dtype in ("float16", "float32", "float64", "bfloat16") and values[0].size > 1

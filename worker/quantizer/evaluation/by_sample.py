"""What every single sample says of a metric, so that two models can be compared on the same samples later."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from worker.quantizer.evaluation.certainty.contributions import Array, Contributions, Sums

# Of metrics that add up many columns, such as one per class, the work is bounded: samples times columns.
_MOST_ELEMENTS = 1 << 28
_FEWEST_SAMPLES = 3
# What all columns may take; the first metrics come first.
_MOST_BYTES = 64 * 1024 * 1024


def metric_columns(contributions: Mapping[str, Contributions], samples: int) -> dict[str, Array]:
    """By name of the metric, what each sample says of it, in its unit: float64 [sample].

    These are Tukey's pseudo-values (1958), n f - (n - 1) f_i with f_i the metric without sample i: of a mean they are
    the samples' own values, of any other function of sums what the sample moves it by, and their mean is the metric,
    but for a bias of the order 1/n. Metrics that do not tell samples apart, or are undefined without one of them, have
    none, nor have those for which there is no room.

    Args:
        contributions: of one model, by name.
        samples: how many it was asked about.
    """
    found: dict[str, Array] = {}
    most = _MOST_BYTES // (np.dtype(np.float64).itemsize * max(samples, 1))
    for name, one in contributions.items():
        if len(found) >= most:
            break
        if not isinstance(one, Sums) or not one.by_sample or one.units != samples or samples < _FEWEST_SAMPLES:
            continue
        if samples * len(one.total) > _MOST_ELEMENTS:
            continue
        column = samples * one.value - (samples - 1) * one.without(np.arange(samples))
        if np.isfinite(column).all():
            found[name] = column
    return found

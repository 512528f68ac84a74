"""Does the float model tell different samples apart?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from service.contracts.report.findings import Finding
from worker.quantizer.evaluation.metrics.distances import class_scores
from worker.quantizer.sanity.kind import declare
from worker.quantizer.sanity.look import Array

# Rounding of float32 sums.
_ROUNDING = 1e-6
# Spread of a class score over the samples, as a share of the spread of all scores.
_HARDLY = 0.02
_ENOUGH = 8

OUTPUT_CONSTANT = declare(
    "float-output-constant",
    "critical",
    "the float model returns the same for all {count} samples that were tried, and they differ",
    hint="Quantized or not, a model that ignores its input is always right about itself: check the scale and the range "
    "of the inputs. No statement about accuracy is made.",
    undermines_verdict=True,
)
OUTPUT_NEARLY_CONSTANT = declare(
    "float-output-nearly-constant",
    "critical",
    "scores in output {output!r} of the float model hardly depend on the sample: they vary by {percent:.2g} % of their "
    "spread over {count} samples",
    hint="Check the scale and the range of the inputs: they hardly reach the decision.",
)


OUTPUT_NOT_FINITE = declare(
    "float-output-not-finite",
    "critical",
    "output {output!r} of the float model is NaN somewhere in {share:.0f} % of {count} samples",
    hint="Check the scale and the range of the inputs, and the model itself. No statement about accuracy is made.",
    undermines_verdict=True,
)


def output_findings(names: Sequence[str], outputs: Sequence[Array]) -> Iterator[Finding]:
    """Judge float outputs of different samples.

    Args:
        names: of the outputs.
        outputs: each [samples, ...]; empty for one that gives no row for each sample.
    """
    there = [(name, found) for name, found in zip(names, outputs, strict=True) if len(found)]
    floats = [(name, found) for name, found in there if found.dtype.kind == "f"]
    for name, found in floats:
        lost = np.isnan(found).reshape(len(found), -1).any(axis=1)
        if lost.any():
            yield OUTPUT_NOT_FINITE({"output": name}, output=name, share=100.0 * lost.mean(), count=len(found))
    judged = floats or there
    if not judged or len(judged[0][1]) < 2:
        return
    if len(there) == len(names) and all(_is_constant(found) for _, found in judged):
        yield OUTPUT_CONSTANT(count=len(judged[0][1]))
        return
    name, first = judged[0]
    scores = class_scores(first)
    if scores is None or scores.ndim != 2 or len(scores) < _ENOUGH or not np.isfinite(scores).all():
        return
    wide = scores.astype(np.float64)
    share = float(np.sqrt(wide.var(axis=0).mean()) / (wide.std() or 1.0))
    if share < _HARDLY:
        yield OUTPUT_NEARLY_CONSTANT({"output": name}, output=name, percent=100.0 * share, count=len(scores))


def _is_constant(values: Array) -> bool:
    if values.dtype.kind != "f":
        return bool((values == values[:1]).all())
    if not np.isfinite(values).all():
        return False
    wide = values.astype(np.float64)
    return bool(np.abs(wide - wide[:1]).max(initial=0.0) <= _ROUNDING * np.abs(wide).max(initial=0.0))

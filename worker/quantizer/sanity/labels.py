"""Do the labels speak of the model's classes, and of more than one?"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from service.contracts.report.findings import Finding
from worker.quantizer.sanity.kind import declare
from worker.quantizer.sanity.look import Array

# Labels per class from which on a class without any is a surprise: it has a chance of e^-8 where all are as frequent.
_PER_CLASS = 8
_TOLD = 5

ONE_CLASS = declare(
    "labels-of-one-class",
    "warning",
    "all {count} labels are class {label}",
    hint="A metric of classes tells little where there is but one: give samples of all of them.",
)
NEVER_LABELLED = declare(
    "labels-never-occur",
    "info",
    "{missing} of {classes} classes never occur in {count} labels: {told}",
    hint="What quantization does to them is not measured: check that the labels number the classes as the model does, "
    "and give samples of all of them.",
)
NEVER_DECIDED = declare(
    "labels-never-decided",
    "warning",
    "class {label} is the label of {count} samples, and the float model decides for it on none of {samples}",
    hint="Check that the labels number the classes as the model does.",
)


def label_findings(labels: Array, classes: int | None) -> Iterator[Finding]:
    """Judge class numbers.

    Args:
        labels: int64 [samples], all of them.
        classes: of the model; None: not known.
    """
    found = np.unique(labels)
    if len(found) == 1 and len(labels) > 1 and (classes is None or classes > 1):
        yield ONE_CLASS(count=len(labels), label=int(found[0]))
    elif classes is not None and len(labels) >= _PER_CLASS * classes:
        missing = np.setdiff1d(np.arange(classes), found)
        if missing.size:
            told = ", ".join(map(str, missing[:_TOLD])) + (", ..." if missing.size > _TOLD else "")
            yield NEVER_LABELLED(missing=int(missing.size), classes=classes, count=len(labels), told=told)


def decision_findings(decided: Array, labels: Array) -> Iterator[Finding]:
    """Labels that the float model never decides for, where there are enough of them.

    Args:
        decided: best class of each sample, int64 [samples].
        labels: int64 [samples].
    """
    found, counts = np.unique(labels, return_counts=True)
    often = dict(zip(found.tolist(), counts.tolist(), strict=True))
    never = np.setdiff1d(found[counts >= _PER_CLASS], decided).tolist()
    for label in never[:_TOLD]:
        yield NEVER_DECIDED({"label": label}, label=label, count=often[label], samples=len(labels))

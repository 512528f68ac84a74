"""All checks of data and float model, before any costly work: the cheap ones always, dearer ones on suspicion.

A pass over the stored arrays, 8 samples through the first BatchNormalization nodes, 16 labelled ones through the float
model, and 8 to 16 more for every subtle alternative (channel order, another usual preprocessing). Only where fewer than
three in four are right are gross alternatives tried too, and only where decisions look like guesses does the float
model run on more of the evaluation data.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import get_args

import numpy as np
import onnx_ir as ir

from service.contracts.dataset import UNLABELLED, ArrayFormat
from service.contracts.report.layers import CRITICAL_LOGGED, Finding
from service.contracts.specs import needs_calibration
from worker.quantizer.data import OpenDataset
from worker.quantizer.evaluation.chance import Judged, judged_by
from worker.quantizer.refine.draft import Case
from worker.quantizer.run.services import Services
from worker.quantizer.sanity.alternatives import FITS_BETTER, WORKS, Alternative, PairedTrial, alternatives, main_input
from worker.quantizer.sanity.decisions import (
    AT_CHANCE,
    LABELS_SHIFTED,
    HitCounts,
    best_classes,
    decision_findings,
    hits_of,
    label_findings,
)
from worker.quantizer.sanity.float_model import CONTRADICTION, CONTRADICTS_BATCH_NORM, BatchNorms, output_findings
from worker.quantizer.sanity.kind import worst_first
from worker.quantizer.sanity.look import Array, Look, look_at, run_on
from worker.quantizer.sanity.samples import calibration_findings, evaluation_findings, pair_findings

# Labelled samples of the first look at the float model.
_FIRST = 16
# Samples at most, where decisions look like guesses; batch that they run in.
_MOST, _BATCH = 1024, 8
# After so many, and every time that they have doubled, it is asked whether more are needed.
_LOOK = 64
# An alternative explains a distance from the training if it leaves less of it than this.
_EXPLAINS = 0.3


def examine(case: Case, model: ir.Model | None, services: Services) -> tuple[Finding, ...]:
    """What a reader has to know before the figures, the worst first; critical findings are logged as warnings.

    Args:
        case: model, data and config.
        model: the float model as uploaded; None: its BatchNormalization nodes are not looked at.
        services: of the run.

    Raises:
        DatasetError: damaged bytes.
        EngineError: the runtime failed on the data.
        CanceledError: the run was canceled.
    """
    found = worst_first(_findings(case, model, services))
    for finding in found:
        if finding.severity == "critical":
            services.run.log(f"{CRITICAL_LOGGED}{finding.code}]: {finding.message}. {finding.hint}", "warning")
    return found


def _findings(case: Case, model: ir.Model | None, services: Services) -> Iterator[Finding]:
    run, inputs = services.run, case.inputs
    calibration = None
    if not case.calibration.is_random:
        calibration = look_at(case.calibration, inputs, limit=case.config.calibration_samples)
        config = case.config
        ranges = config.mode == "static" and needs_calibration(config.activation.dtype)
        yield from calibration_findings(calibration, inputs, ranges=ranges)
    if case.measured_on.is_random:
        return
    run.check()
    measured = look_at(case.measured_on, inputs) if case.evaluation is not None or calibration is None else calibration
    yield from evaluation_findings(measured, inputs, role=case.source)
    if calibration is not None and case.evaluation is not None:
        summaries = (case.calibration.summary, case.evaluation.summary)
        yield from pair_findings(calibration, measured, inputs, summaries)
    if measured.distinct < 2:
        return
    run.check()
    yield from _model_findings(case, model, measured, services)


def _model_findings(case: Case, model: ir.Model | None, look: Look, services: Services) -> Iterator[Finding]:
    """What the float model makes of the samples."""
    run, picked = services.run, look.picked
    first = _first_run(case, picked)
    yield from output_findings(first.names, first.outputs)
    judged = judged_by(case.config.evaluation, case.summary.outputs, case.measured_on)
    # Where samples have scores of different lengths (places in a text, say), what holds for classes does not.
    scored = judged is not None and first.outputs[judged.position].dtype.kind not in "iu"  # else class numbers
    if judged is not None and judged.classes is None and scored:
        judged = None if picked.varying(case.inputs) else judged
    decisions = _Decisions(judged, picked, first.outputs) if judged is not None else None
    labels, trusted = case.measured_on.labels, True
    if decisions is not None and decisions.fit and labels is not None:
        yield from label_findings(labels[labels != UNLABELLED], decisions.classes)
        run.check()
        if not decisions.hits.shows_skill:
            said = list(_guessing(case, decisions, services))
            yield from said
            trusted = all(finding.code != LABELS_SHIFTED.code for finding in said)
    tensor = main_input(picked, case.inputs)
    if tensor is None:
        return
    measured = case.measured_on
    arrays = measured.summary.format in get_args(ArrayFormat)
    tried = alternatives(look, tensor, measured.preprocessing, arrays=arrays)
    found = None
    if decisions is not None and decisions.fit and trusted:
        run.check()
        gross = decisions.hits.percent < 100.0 * WORKS
        trial = PairedTrial(case.float_session, picked, case.inputs, tensor, decisions.judged.position)
        trial.knows(first.outputs[decisions.judged.position])
        better = trial.best([one for one in tried if gross or not one.is_gross])
        if better is not None:
            found = better.alternative
            where: dict[str, str | int | float] = {"input": tensor.name, "fault": found.kind}
            yield FITS_BETTER(
                where,
                input=tensor.name,
                value=100.0 * better.given,
                better=100.0 * better.better,
                samples=better.samples,
                sigmas=better.sigmas,
                words=found.words,
                hint=found.hint,
            )
    if model is not None:
        run.check()
        # what labels have told is the better answer, and one is enough
        yield from _batch_norm(model, case, picked, tensor.name, [] if found is not None else tried, services)


@dataclass(frozen=True)
class _First:
    """The float model's outputs [samples, ...] of the first samples."""

    names: list[str]
    outputs: list[Array]


def _first_run(case: Case, picked: OpenDataset) -> _First:
    """Outputs that are arrays of one row per sample; others are left empty."""
    batches = run_on(case.float_session, picked, case.inputs, samples=range(_FIRST))
    names = case.float_session.output_names
    outputs = []
    for k in range(len(names)):
        parts = [batch[k] for batch in batches]
        rows = all(isinstance(part, np.ndarray) and part.ndim for part in parts)
        same = rows and len({part.shape[1:] for part in parts}) == 1
        outputs.append(np.concatenate(parts) if same else np.zeros((0,), np.float32))
    return _First(names, outputs)


class _Decisions:
    """What the float model decides, beside the labels."""

    def __init__(self, judged: Judged, picked: OpenDataset, outputs: list[Array]) -> None:
        self.judged = judged
        scores, labels = judged.scores(outputs), None if picked.labels is None else picked.labels[:_FIRST]
        self.fit = scores is not None and labels is not None and len(scores) == len(labels)
        if scores is None or labels is None or picked.labels is None or not self.fit:
            return
        self.classes = judged.classes if scores.ndim < 2 else scores.shape[1]
        known = labels != UNLABELLED
        self.fit = bool(known.any()) and (scores.ndim < 2 or bool((picked.labels < scores.shape[1]).all()))
        if not self.fit:
            return
        self.decided = decided_of(scores, judged.rank)[known]
        self.labels = labels = labels[known]
        self.hits = hits_of(self.decided, labels) if len(set(labels.tolist())) > 1 else self._of_one_class()

    def _of_one_class(self) -> HitCounts:
        """Shares of the labels tell nothing where there is but one: then every class is as likely."""
        hit = (self.decided == self.labels[:, None]).any(axis=1)
        share = min(1.0, self.judged.rank / (self.classes or 2))
        return HitCounts(len(self.labels), int(hit.sum()), share)


def decided_of(scores: Array, rank: int) -> Array:
    """The ``rank`` best classes, int64 [samples, rank]; of class numbers those themselves."""
    return best_classes(scores, rank) if scores.ndim == 2 else scores.astype(np.int64).reshape(-1, 1)


def _guessing(case: Case, first: _Decisions, services: Services) -> Iterator[Finding]:
    """Look at more decisions; say so if they are guesses, or are right about labels with one added or taken off."""
    judged = first.judged
    decided, truth = _decided(case, judged, services)
    if not len(truth):
        return
    hits = hits_of(decided, truth) if len(np.unique(truth)) > 1 else first.hits
    for step in (-1, 1):
        moved = truth + step
        kept = moved >= 0
        if kept.sum() < 2 or len(np.unique(truth)) < 2:
            continue
        shifted = hits_of(decided[kept], moved[kept])
        if shifted.shows_skill and not shifted.is_chance and shifted.percent > max(2 * hits.percent, 50.0):
            yield LABELS_SHIFTED(value=hits.percent, shifted=shifted.percent, samples=hits.count, step=step)
            return
    if hits.is_chance:
        yield AT_CHANCE(
            {"metric": judged.metric},
            metric=judged.metric,
            value=hits.percent,
            samples=hits.count,
            chance=100.0 * hits.expected,
        )
    else:
        yield from decision_findings(decided[:, 0], truth)


def _decided(case: Case, judged: Judged, services: Services) -> tuple[Array, Array]:
    """Decisions int64 [samples, rank] and labels of as many samples as it takes to tell them from guesses."""
    found, labels = [], []
    count, next_look = 0, _LOOK
    for expected in case.reference.outputs(services.run, batch_size=_BATCH, samples=range(_MOST)):
        batch = expected.batch
        scores = judged.scores([batch.cut(output) for output in expected.outputs.values()])
        if scores is None or batch.labels is None or len(scores) != len(batch.labels):
            break
        known = batch.labels != UNLABELLED
        found.append(decided_of(scores, judged.rank)[known])
        labels.append(batch.labels[known])
        count += int(known.sum())
        if count >= next_look:
            next_look *= 2
            if hits_of(np.concatenate(found), np.concatenate(labels)).is_clear:
                break
    if not found:
        return np.zeros((0, 1), np.int64), np.zeros(0, np.int64)
    return np.concatenate(found), np.concatenate(labels)


def _batch_norm(
    model: ir.Model,
    case: Case,
    picked: OpenDataset,
    name: str,
    tried: list[Alternative],
    services: Services,
) -> Iterator[Finding]:
    """Compare with the training's statistics; look for what would explain a distance."""
    norms = BatchNorms(model, threads=services.threads)
    nats = norms.nats(picked, case.inputs)
    if nats is None or nats < CONTRADICTION:
        return
    left: dict[str, tuple[Alternative, float]] = {}
    for one in tried:
        services.run.check()

        def changed(feeds: dict[str, Array], one: Alternative = one) -> dict[str, Array]:
            values = feeds[name]
            feeds[name] = np.ascontiguousarray(one.change(values.astype(np.float32, copy=False)), values.dtype)
            return feeds

        found = norms.nats(picked, case.inputs, changed)
        least = min([nats, *(left[part][1] for part in one.parts if part in left)])
        if found is not None and found < _EXPLAINS * least:
            left[one.words] = (one, found)
    best = min(left.values(), key=lambda pair: pair[1], default=None)
    fits = "" if best is None else f" {best[0].hint} ({best[1]:.2g} nats)."
    where: dict[str, str | int | float] = {"input": name, "node": norms.first or ""}
    yield CONTRADICTS_BATCH_NORM(where, node=norms.first, nats=nats, usual="less than 0.5", fits=fits)

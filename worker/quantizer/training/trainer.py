"""A training: its epochs, what is kept of them, and what is told of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
import torch

from service.contracts.algorithms.training import DistillationLoss, GraphLoss, QuantizationAwareTraining
from service.contracts.base import below, nearest_name
from service.contracts.costs import held_back_samples
from service.contracts.data_checks import next_tokens
from service.contracts.errors import InvalidConfigError
from service.contracts.reason import Reason, declare
from service.contracts.report import TrainingEpoch, TrainingFigures
from worker.quantizer.autodiff.program import choose_device, repeatable, threads_worth
from worker.quantizer.evaluation.metrics.base import finite
from worker.quantizer.evaluation.metrics.custom import read_graph
from worker.quantizer.graph.rewriting import opset_of
from worker.quantizer.preparation.prepare import LOWEST_OPSET
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import StepResult, Toolkit
from worker.quantizer.training.generated import with_generated
from worker.quantizer.training.loop import (
    DivergedError,
    TrainingCheckpoints,
    TrainingLoop,
    TrainingProgress,
    TwinState,
    state_of,
)
from worker.quantizer.training.losses import GraphOnTorch, Losses, OutputFacts, Tensors
from worker.quantizer.training.network import (
    Networks,
    TrainingContext,
    Validation,
    ValidationScore,
    pointer_of,
    seed_of,
)
from worker.quantizer.training.optimizer import Budget, ScheduledOptimizer, peak_of
from worker.quantizer.training.quantizers import shares
from worker.quantizer.training.samples import TrainingSamples, epoch_order, split_samples

NO_EPOCH_BETTER = declare("no-epoch-better", "no epoch was better than the network before the training")
TRAINED_WORSE = declare(
    "trained-worse", "on {samples} samples that it did not learn from the loss went from {before:.4g} to {after:.4g}"
)
TOO_FEW_SAMPLES = declare("too-few-samples-to-train", "{samples} samples are too few to train on and to choose by")

Ended = Literal["epochs", "steps", "seconds", "patience", "diverged"]
_SETTLED_ON = 64
# Samples that normalizations take their first statistics of.
_UNFOLDED_ON = 256


def train(spec: QuantizationAwareTraining, draft: Draft, toolkit: Toolkit) -> StepResult:
    """Train the quantized network of ``draft``; see ``TrainingStep``."""
    case, services, begin = toolkit.case, toolkit.services, time.monotonic()
    limits = [limit for limit in (spec.seconds, toolkit.time_limit.left) if limit is not None]
    seconds = min(limits, default=None)
    count = min(case.calibration.samples, spec.data_size or case.calibration.samples)
    if count < spec.FEWEST_SAMPLES:
        return StepResult.nothing(TOO_FEW_SAMPLES(samples=count))
    split = split_samples(
        count,
        validation_share=spec.validation_share,
        judging=0 if spec.accept == "always" else len(held_back_samples(count)),
        classes=None if case.calibration.labels is None else case.calibration.labels[:count],
        seed=seed_of(spec, toolkit),
    )
    device = choose_device(spec.device)
    with repeatable(services.threads):
        losses = _losses(spec, toolkit, device)
        _check_tensors(spec, draft, toolkit)
        learn_zeros = spec.zero_points == "learned"
        networks = Networks(draft, losses.outputs, losses.inner_tensors, device=device, learn_zeros=learn_zeros)
        arrays = tuple(name for name in case.metrics.arrays if case.calibration.stored(name) is not None)
        arrays = tuple(dict.fromkeys((*losses.arrays, *arrays)))
        with TrainingSamples(case.calibration, case.inputs, count, arrays, services.run) as samples:
            context, notes = TrainingContext(spec, toolkit, networks, losses, samples, split), list[str]()
            if spec.generated_samples:
                context, generated = with_generated(
                    context, draft.prepared.model, None if seconds is None else begin + seconds
                )
                notes.append(generated)
            return _Trainer(context, begin, seconds, notes).run()


def _losses(spec: QuantizationAwareTraining, toolkit: Toolkit, device: torch.device) -> Losses:
    case = toolkit.case
    facts = OutputFacts.of(case.summary.outputs, case.config.evaluation, case.calibration)
    scored = next_tokens(case.summary.inputs, case.summary.outputs)
    if spec.generated_samples and not isinstance(scored, str):
        facts = replace(facts, next_tokens=scored[1].name)
    pointer = pointer_of(spec, toolkit)
    graphs = {
        k: GraphOnTorch(_graph(loss, case.graphs, f"{pointer}/losses/{k}/graph"), device)
        for k, loss in enumerate(spec.losses)
        if isinstance(loss, GraphLoss)
    }
    return Losses(spec.losses, facts, graphs=graphs, pointer=pointer)


def _check_tensors(spec: QuantizationAwareTraining, draft: Draft, toolkit: Toolkit) -> None:
    """Make sure that inner tensors that a loss names are there.

    Raises:
        InvalidConfigError: one is not; points at it.
    """
    known = {value.name for node in draft.graph for value in node.outputs if value.name}
    for k, loss in enumerate(spec.losses):
        for place, name in enumerate(loss.tensors if isinstance(loss, DistillationLoss) else ()):
            if name not in known:
                near = nearest_name(name, sorted(known))
                raise InvalidConfigError(
                    f"the network has no inner tensor {name!r}" + (f"; did you mean {near!r}?" if near else ""),
                    hint="Tensors are those of the prepared network: preparation folds and renames some.",
                    pointer=below(pointer_of(spec, toolkit), "losses", k, "tensors", place),
                )


def _graph(loss: GraphLoss, files: Mapping[str, Path], pointer: str) -> ir.Model:
    """The graph of a loss, of an opset whose operators are known.

    Raises:
        InvalidConfigError: it is damaged, or too old.
    """
    model = ir.serde.deserialize_model(read_graph(loss.graph, files, pointer, what="loss"))
    if (opset_of(model) or 0) < LOWEST_OPSET:
        raise InvalidConfigError(
            f"the graph of the loss has opset {opset_of(model)}; its operators are known from {LOWEST_OPSET} on",
            hint=f"Make it with opset {LOWEST_OPSET} or later.",
            pointer=pointer,
        )
    common.InlinePass()(model)
    return model


class _Trainer:
    """One training; the losses of its context are not settled yet.

    It began at ``begin``, on the clock of ``time.monotonic``, and may last ``seconds``; None: there is no limit.
    ``notes`` are for the report.
    """

    def __init__(self, context: TrainingContext, begin: float, seconds: float | None, notes: Sequence[str]) -> None:
        self._begin, self._seconds = begin, seconds
        self._context = context
        self._spec, self._networks, self._losses = context.spec, context.networks, context.losses
        self._samples, self._split, self._run = context.samples, context.split, context.run
        services = context.toolkit.services
        one = self._samples.batch(self._split.training[: self._samples.fixed_batch or 1])
        self._networks.look(one.feeds, one.size)
        batch = min(self._spec.batch_size, len(self._split.training))
        torch.set_num_threads(threads_worth(self._networks.largest_elements(batch), services.threads))
        self._notes = [*notes, *([self._unfold()] if self._spec.batch_norm == "unfolded" else [])]
        self._settle()
        self._validation = Validation(context, self._split.validation)
        self._loop = TrainingLoop(context)
        self._budget = Budget.of(self._spec, seconds, epoch_steps=self._loop.epoch_steps)
        self._checkpoints = TrainingCheckpoints(services.checkpoint, self._networks.twin)
        self._learning_rate = peak_of(self._spec.optimizer)

    def run(self) -> StepResult:
        twin = self._networks.twin
        start, before = state_of(twin), self._validation.measure()
        optimizer = self._loop.begin(self._learning_rate)
        now = self._resumed(optimizer)
        if now is None:
            now = TrainingProgress([self._told(0, 0, None, before, 0.0)], 0, start, 0, before)
        ended: Ended = "epochs"
        while not self._budget.is_over(now.steps, self._spent):
            began = time.monotonic()
            try:
                loss, rate, steps = self._epoch(optimizer, now)
            except DivergedError:
                ended = "diverged"
                break
            trained = time.monotonic()
            self._project()
            score = self._validation.measure()
            self._budget.measured(trained - began, time.monotonic() - trained, self._spent)
            epoch = now.epoch + 1
            if self._validation.is_better(score, now.lowest):
                now.lowest, now.lowest_epoch = score, epoch
            if self._is_kept(score, before, now.lowest):
                now.best, now.best_epoch = state_of(twin), epoch
            now.epochs.append(self._told(epoch, steps, loss, score, rate * self._learning_rate))
            if self._spec.patience is not None and epoch - now.lowest_epoch >= self._spec.patience:
                ended = "patience"
                break
            now.budget, now.spent_seconds = self._budget.fixed, self._spent
            self._checkpoints.save(optimizer.optimizer, self._loop.oscillations, now)
        else:
            ended = self._budget.ended_by or "epochs"
        return self._result(now, start, ended)

    def _is_kept(self, score: ValidationScore, before: ValidationScore, lowest: ValidationScore) -> bool:
        """True for the last epoch that chance does not tell from the best one.

        Among epochs that few samples cannot tell apart, the best one is so by luck, while later ones have learned more
        at a lower rate.
        """
        validation = self._validation
        return validation.is_better(score, before) and not validation.is_surely_worse(score, lowest)

    @property
    def _spent(self) -> float:
        return time.monotonic() - self._begin

    def _settle(self) -> None:
        """Let the losses decide by some of the samples what the config leaves open."""
        numbers = self._split.training[:_SETTLED_ON]
        size = self._samples.fixed_batch or self._networks.largest_part(len(numbers))
        made, arrays = [], []
        for piece in self._samples.minibatches(numbers, size, fill=True):
            self._run.check()
            batch = self._samples.batch(piece)
            made.append(self._networks.teacher(self._networks.feeds(batch.feeds)).cut(batch.valid, batch.size))
            arrays.append(batch.arrays)
        self._losses.settle(
            Tensors.joined(made), {name: np.concatenate([part[name] for part in arrays]) for name in arrays[0]}
        )

    def _unfold(self) -> str:
        """Give the convolutions their normalizations back; a sentence for the report.

        Raises:
            InvalidConfigError: batches have no statistics.
        """
        spec, samples = self._spec, self._samples
        training = self._split.training
        part = self._networks.largest_part(min(spec.batch_size, len(training)))
        if samples.fixed_batch is not None:
            raise self._not_unfolded(
                f"the model takes {samples.fixed_batch} samples at once, no more and no fewer",
                "or export the model with a batch axis of any size",
            )
        if part < 2:
            raise self._not_unfolded("one sample runs at a time", "or batch_size to 2 or more if it is 1")
        order = training[epoch_order(len(training), self._context.seed, 0)[:_UNFOLDED_ON]]

        def batches() -> Iterator[Mapping[str, np.ndarray]]:
            for numbers in samples.minibatches(order, part, fill=True):
                self._run.check()
                yield samples.batch(numbers).feeds

        count = self._networks.unfold(batches())
        if not count:
            return "no convolution with its own bias has an integer weight: batch statistics are not used"
        return f"{count} convolutions were normalized by batches, and folded for the last third"

    def _not_unfolded(self, why: str, remedy: str) -> InvalidConfigError:
        return InvalidConfigError(
            f"batch_norm: unfolded normalizes by batches of two samples or more, but {why}",
            pointer=below(self._context.pointer, "batch_norm"),
            hint=f"Set batch_norm to folded, {remedy}.",
        )

    def _resumed(self, optimizer: ScheduledOptimizer) -> TrainingProgress | None:
        found = self._checkpoints.load(optimizer.optimizer, self._loop.oscillations)
        if found is None:
            return None
        if found.budget is not None:
            self._budget.resume(*found.budget)
        self._begin -= found.spent_seconds
        self._project()
        return found

    def _epoch(self, optimizer: ScheduledOptimizer, now: TrainingProgress) -> tuple[float, float, int]:
        """Train one epoch, or what the budget leaves of it; its mean loss, last learning rate, and steps at its end."""
        count = min(self._loop.epoch_steps, max(self._budget.total - now.steps, 1))

        def tell(done: int) -> None:
            steps = now.steps + done
            self._run.progress("qat", steps, self._budget.total, "steps", f"epoch {now.epoch + 1}")

        loss, factor, done = self._loop.steps(
            optimizer,
            epoch=now.epoch,
            count=count,
            number=now.steps,
            total=self._budget.total,
            tell=tell,
            over=lambda: self._seconds is not None and self._spent >= self._seconds,
        )
        return loss, factor, now.steps + done

    def _project(self) -> None:
        """Bring the grids to where the target can work with them: what is validated is what would be emitted."""
        written = self._networks.twin.write().on_target(self._context.toolkit.case.config)
        self._networks.twin.follow(written)

    def _told(self, epoch: int, steps: int, loss: float | None, score: ValidationScore, rate: float) -> TrainingEpoch:
        """The figures of an epoch, which a watcher is told."""
        oscillating, frozen = shares(self._loop.oscillations.values())
        entry = TrainingEpoch(
            epoch=epoch,
            steps=steps,
            train_loss=None if loss is None else finite(loss),
            validation_loss=finite(score.loss),
            metric=score.metric,
            learning_rate=rate,
            oscillating=oscillating,
            frozen=frozen,
        )
        self._run.metric("qat", epoch, entry.model_dump(exclude={"epoch"}))
        return entry

    def _judged(self, start: TwinState, best: TwinState) -> Reason | None:
        """Why the best epoch is to be undone, by the samples that it has not learned from; None if not.

        What counts there is what was trained for: a distance of outputs says little of a network that was trained for
        its classes. The samples that the epoch was chosen by count too, as few are less sure than chosen ones are
        biased: an epoch is not the best of many, but the last of the good ones.
        """
        if not len(self._split.judging):
            return None
        held = Validation(self._context, np.concatenate([self._split.judging, self._split.validation]))
        scores = []
        for state in (start, best):
            self._networks.twin.load_state_dict(state)
            self._project()
            scores.append(held.measure())
        before, after = scores
        if held.is_better(after, before):
            return None
        return TRAINED_WORSE(samples=held.samples, before=before.loss, after=after.loss)

    def _result(self, now: TrainingProgress, start: TwinState, ended: Ended) -> StepResult:
        figures = TrainingFigures(
            epochs=tuple(now.epochs),
            best_epoch=now.best_epoch,
            metric=self._validation.metric,
            samples=len(self._split.training),
            validation_samples=self._validation.samples,
            learning_rate=self._learning_rate,
            device=str(self._networks.device),
            ended=ended,
        )
        words = _words(figures, (*self._losses.notes, *self._samples.notes, *self._notes))
        if now.best_epoch == 0:
            return replace(StepResult.nothing(NO_EPOCH_BETTER.saying(words)), training=figures)
        worse = self._judged(start, now.best)
        if worse is not None:
            return replace(StepResult.nothing(replace(worse, words=f"{worse.words}; {words}")), training=figures)
        self._networks.twin.load_state_dict(now.best)
        written = self._networks.twin.write()
        return StepResult(written, self._networks.twin.nodes, words, training=figures, judged=False)


def _words(figures: TrainingFigures, notes: tuple[str, ...]) -> str:
    last = figures.epochs[-1]
    told = f"{len(figures.epochs) - 1} epochs ({last.steps} steps) on {figures.samples} samples"
    told += f", the best is epoch {figures.best_epoch}"
    losses = [entry.validation_loss for entry in (figures.epochs[0], figures.epochs[figures.best_epoch])]
    if None not in losses:
        told += f": loss {losses[0]:.4g} -> {losses[1]:.4g}"
    return "; ".join((told, *notes))

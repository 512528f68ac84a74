"""The course of a training: epochs, what is kept of them, and what is told of them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import onnx_ir as ir
import onnx_ir.passes.common as common
import torch

from service.contracts.algorithms.training import DistillationLoss, GraphLoss, QuantizationAwareTraining
from service.contracts.efforts import held_back_samples
from service.contracts.errors import InvalidConfigError
from service.contracts.nearest import nearest_name
from service.contracts.pointers import below
from service.contracts.reason import Reason, declare
from service.contracts.report import TrainingEpoch, TrainingFigures
from worker.quantizer.autodiff.device import choose_device, repeatable, threads_worth, use_threads
from worker.quantizer.evaluation.metrics.base import finite
from worker.quantizer.evaluation.metrics.custom import read_graph
from worker.quantizer.graph.rewriting import opset_of
from worker.quantizer.preparation.prepare import LOWEST_OPSET
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.step import Change, Toolkit
from worker.quantizer.training.augmentation import Augmenter
from worker.quantizer.training.descent import Descent, DivergedError
from worker.quantizer.training.losses import Facts, Losses, Tensors
from worker.quantizer.training.memory import Keeper, Memory
from worker.quantizer.training.network import GraphOnTorch, Networks
from worker.quantizer.training.optimizer import Mover, peak_of
from worker.quantizer.training.oscillation import shares
from worker.quantizer.training.samples import Numbers, TrainingSamples, epoch_order
from worker.quantizer.training.schedule import Budget
from worker.quantizer.training.split import Split, split
from worker.quantizer.training.validation import Standing, Validation

NO_EPOCH_BETTER = declare("no-epoch-better", "no epoch was better than the network before the training")
TRAINED_WORSE = declare(
    "trained-worse", "on {samples} samples that it did not learn from the loss went from {before:.4g} to {after:.4g}"
)
TOO_FEW_SAMPLES = declare("too-few-samples-to-train", "{samples} samples are too few to train on and to choose by")

Ended = Literal["epochs", "steps", "seconds", "patience", "diverged"]
_SETTLED_ON = 64
# Samples that normalizations take their first statistics of.
_UNFOLDED_ON = 256


def train(spec: QuantizationAwareTraining, draft: Draft, toolkit: Toolkit) -> Change:
    """Train the quantized network of ``draft``; see ``TrainingStep``."""
    case, services = toolkit.case, toolkit.services
    count = min(case.calibration.samples, spec.data_size or case.calibration.samples)
    if count < spec.FEWEST_SAMPLES:
        return Change.nothing(TOO_FEW_SAMPLES(samples=count))
    parts = split(
        count,
        validation_share=spec.validation_share,
        judging=0 if spec.accept == "always" else held_back_samples(count),
        classes=None if case.calibration.labels is None else case.calibration.labels[:count],
        seed=_seed(spec, toolkit),
    )
    device = choose_device(spec.device)
    with repeatable(services.threads):
        losses = _losses(spec, toolkit, device)
        _check_tensors(spec, draft, toolkit)
        learn_zeros = spec.zero_points == "learned"
        networks = Networks(draft, losses.outputs, losses.inner_tensors, device=device, learn_zeros=learn_zeros)
        arrays = tuple(name for name in case.metrics.arrays if case.calibration.stored(name) is not None)
        arrays = tuple(dict.fromkeys((*losses.arrays, *arrays)))
        with TrainingSamples(case.calibration, case.inputs, 0, count, arrays, services.run) as samples:
            return _Course(spec, draft, toolkit, networks, losses, samples, parts).run()


def _seed(spec: QuantizationAwareTraining, toolkit: Toolkit) -> int:
    return toolkit.case.config.seed if spec.fixed_seed is None else spec.fixed_seed


def _losses(spec: QuantizationAwareTraining, toolkit: Toolkit, device: torch.device) -> Losses:
    case = toolkit.case
    facts = Facts.of(case.summary.outputs, case.config.evaluation, case.calibration)
    pointer = _pointer(spec, toolkit)
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
                    pointer=below(_pointer(spec, toolkit), "losses", k, "tensors", place),
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


def _pointer(spec: QuantizationAwareTraining, toolkit: Toolkit) -> str:
    methods = [algorithm.method for algorithm in toolkit.case.config.algorithms]
    return below("/algorithms", methods.index(spec.method) if spec.method in methods else 0)


@dataclass
class _Progress:
    """Where a training stands."""

    epoch: int = 0
    steps: int = 0
    epochs: list[TrainingEpoch] = field(default_factory=list)
    best_epoch: int = 0
    lowest_epoch: int = 0


class _Course:
    """One training.

    Args:
        spec: of the config.
        draft: that it begins with.
        toolkit: of the step.
        networks: of the draft.
        losses: not settled yet.
        samples: of the calibration set.
        parts: which of them serve for what.
    """

    def __init__(
        self,
        spec: QuantizationAwareTraining,
        draft: Draft,
        toolkit: Toolkit,
        networks: Networks,
        losses: Losses,
        samples: TrainingSamples,
        parts: Split,
    ) -> None:
        self._spec, self._draft, self._toolkit = spec, draft, toolkit
        self._networks, self._losses, self._samples = networks, losses, samples
        self._run, self._config = toolkit.services.run, toolkit.case.config
        self._parts, self._seed = parts, _seed(spec, toolkit)
        self._begin = time.monotonic()
        one = samples.batch(parts.training[: samples.fixed_batch or 1])
        networks.look(one.feeds, one.size)
        batch = min(spec.batch_size, len(parts.training))
        use_threads(threads_worth(networks.largest_elements(batch), toolkit.services.threads))
        self._notes = [self._unfold()] if spec.batch_norm == "unfolded" else []
        self._settle()
        self._validation = self._validation_on(parts.validation)
        pointer = _pointer(spec, toolkit)
        augmenter = Augmenter(spec.augmentations, toolkit.case.inputs, self._seed, pointer=pointer)
        self._descent = Descent(spec, networks, losses, samples, parts.training, augmenter, self._run, self._seed)
        self._budget = Budget.of(spec, epoch_steps=self._descent.epoch_steps)
        self._keeper = Keeper(toolkit.services.checkpoint, networks.twin)

    def run(self) -> Change:
        """Train, and choose the best epoch."""
        start = Memory.of(self._networks.twin)
        before = self._validation.measure()
        learning_rate = peak_of(self._spec.optimizer)
        mover = self._descent.begin(learning_rate)
        now, best, lowest = self._resumed(mover, start, before)
        if not now.epochs:
            self._note(now, None, before, 0.0)
        ended: Ended = "epochs"
        while not self._budget.is_over(now.steps, self._spent):
            began = time.monotonic()
            try:
                loss, rate = self._epoch(mover, now)
            except DivergedError:
                ended = "diverged"
                break
            trained = time.monotonic()
            self._project()
            standing = self._validation.measure()
            self._budget.measured(trained - began, time.monotonic() - trained, self._spent)
            now.epoch += 1
            if self._validation.is_better(standing, lowest):
                lowest, now.lowest_epoch = standing, now.epoch
            if self._is_kept(standing, before, lowest):
                best, now.best_epoch = Memory.of(self._networks.twin), now.epoch
            self._note(now, loss, standing, rate * learning_rate)
            if self._spec.patience is not None and now.epoch - now.lowest_epoch >= self._spec.patience:
                ended = "patience"
                break
            kept, spent = (now.best_epoch, best), (self._budget.fixed, self._spent)
            self._keeper.save(
                mover.optimizer, self._descent.oscillations, now.epochs, kept, (now.lowest_epoch, lowest), spent
            )
        else:
            ended = self._budget.ended_by or "epochs"
        return self._change(now, start, best, ended, learning_rate)

    def _is_kept(self, standing: Standing, before: Standing, lowest: Standing) -> bool:
        """True for the last epoch that chance does not tell from the best one.

        Among epochs that few samples cannot tell apart, the best one is so by luck, while later ones have learned more
        at a lower rate.
        """
        validation = self._validation
        return validation.is_better(standing, before) and not validation.is_surely_worse(standing, lowest)

    def _validation_on(self, numbers: Numbers) -> Validation:
        case, services = self._toolkit.case, self._toolkit.services
        return Validation(case, services, self._losses, self._samples, numbers, self._networks)

    @property
    def _spent(self) -> float:
        return time.monotonic() - self._begin

    def _settle(self) -> None:
        """Let the losses decide by some of the samples what the config leaves open."""
        numbers = self._parts.training[:_SETTLED_ON]
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
        training = self._parts.training
        part = self._networks.largest_part(min(spec.batch_size, len(training)))
        if samples.fixed_batch is not None:
            raise self._not_unfolded(
                f"the model takes {samples.fixed_batch} samples at once, no more and no fewer",
                "or export the model with a batch axis of any size",
            )
        if part < 2:
            raise self._not_unfolded("one sample runs at a time", "or batch_size to 2 or more if it is 1")
        order = training[epoch_order(len(training), self._seed, 0)[:_UNFOLDED_ON]]

        def batches() -> Iterator[Mapping[str, np.ndarray]]:
            for numbers in samples.minibatches(order, part, fill=True):
                self._run.check()
                yield samples.batch(numbers).feeds

        count = self._networks.unfold(batches())
        if not count:
            return "no convolution with a bias of its own has a weight on integers: none is normalized by batches"
        return f"{count} convolutions were normalized by batches, and folded for the last third"

    def _not_unfolded(self, why: str, remedy: str) -> InvalidConfigError:
        return InvalidConfigError(
            f"batch_norm: unfolded normalizes by batches of two samples or more, but {why}",
            pointer=below(_pointer(self._spec, self._toolkit), "batch_norm"),
            hint=f"Set batch_norm to folded, {remedy}.",
        )

    def _resumed(self, mover: Mover, start: Memory, before: Standing) -> tuple[_Progress, Memory, Standing]:
        """Where an earlier attempt stood, or the beginning: progress, the best state, the standing to beat."""
        found = self._keeper.load(mover.optimizer, self._descent.oscillations)
        if found is None:
            return _Progress(), start, before
        if found.budget is not None:
            self._budget.resume(*found.budget)
        self._begin -= found.spent_seconds
        epochs = [TrainingEpoch.model_validate(entry) for entry in found.epochs]
        progress = _Progress(found.epoch, found.steps, epochs, found.best_epoch, found.lowest_epoch)
        self._project()
        return progress, found.best, found.lowest

    def _epoch(self, mover: Mover, now: _Progress) -> tuple[float, float]:
        """Train one epoch, or what the budget leaves of it; its mean loss and its last learning rate."""
        count = min(self._descent.epoch_steps, max(self._budget.total - now.steps, 1))

        def tell(done: int) -> None:
            steps = now.steps + done
            left = self._seconds_left(steps)
            words = f"epoch {now.epoch + 1}" + ("" if left is None else f", about {_duration(left)} left")
            self._run.progress("qat", steps, self._budget.total, "steps", words)

        loss, factor, done = self._descent.steps(
            mover,
            epoch=now.epoch,
            count=count,
            number=now.steps,
            total=self._budget.total,
            tell=tell,
            over=lambda: self._spec.seconds is not None and self._spent >= self._spec.seconds,
        )
        now.steps += done
        return loss, factor

    def _seconds_left(self, steps: int) -> float | None:
        if not self._descent.taken:
            return None
        return (self._budget.total - steps) * self._descent.seconds / self._descent.taken

    def _project(self) -> None:
        """Bring the grids to where the target can work with them: what is validated is what would be emitted."""
        written = self._networks.twin.write().on_target(self._config)
        self._networks.twin.follow(written)

    def _note(self, now: _Progress, loss: float | None, standing: Standing, rate: float) -> None:
        oscillating, frozen = shares(self._descent.oscillations.values())
        entry = TrainingEpoch(
            epoch=now.epoch,
            steps=now.steps,
            train_loss=None if loss is None else finite(loss),
            validation_loss=finite(standing.loss),
            metric=standing.metric,
            learning_rate=rate,
            oscillating=oscillating,
            frozen=frozen,
        )
        now.epochs.append(entry)
        self._run.metric("qat", now.epoch, entry.model_dump(exclude={"epoch"}))

    def _judged(self, start: Memory, best: Memory) -> Reason | None:
        """Why the best epoch is to be undone, by the samples that it has not learned from; None if not.

        What counts there is what was trained for: a distance of outputs says little of a network that was trained for
        its classes. The samples that the epoch was chosen by count too, as few are less sure than chosen ones are
        biased: an epoch is not the best of many, but the last of the good ones.
        """
        if not len(self._parts.judging):
            return None
        held = self._validation_on(np.concatenate([self._parts.judging, self._parts.validation]))
        standings = []
        for memory in (start, best):
            memory.load(self._networks.twin)
            self._project()
            standings.append(held.measure())
        before, after = standings
        if held.is_better(after, before):
            return None
        return TRAINED_WORSE(samples=held.samples, before=before.loss, after=after.loss)

    def _change(self, now: _Progress, start: Memory, best: Memory, ended: Ended, learning_rate: float) -> Change:
        figures = TrainingFigures(
            epochs=tuple(now.epochs),
            best_epoch=now.best_epoch,
            metric=self._validation.metric,
            samples=len(self._parts.training),
            validation_samples=self._validation.samples,
            learning_rate=learning_rate,
            device=str(self._networks.device),
            ended=ended,
        )
        words = _words(figures, (*self._losses.notes, *self._samples.notes, *self._notes))
        if now.best_epoch == 0:
            return replace(Change.nothing(NO_EPOCH_BETTER.saying(words)), training=figures)
        worse = self._judged(start, best)
        if worse is not None:
            return replace(Change.nothing(replace(worse, words=f"{worse.words}; {words}")), training=figures)
        best.load(self._networks.twin)
        written = self._networks.twin.write()
        return Change(written, self._networks.twin.nodes, words, training=figures, judged=False)


def _words(figures: TrainingFigures, notes: tuple[str, ...]) -> str:
    last = figures.epochs[-1]
    told = f"{len(figures.epochs) - 1} epochs ({last.steps} steps) on {figures.samples} samples"
    told += f", the best is epoch {figures.best_epoch}"
    losses = [entry.validation_loss for entry in (figures.epochs[0], figures.epochs[figures.best_epoch])]
    if None not in losses:
        told += f": loss {losses[0]:.4g} -> {losses[1]:.4g}"
    return "; ".join((told, *notes))


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.0f} min"

"""What a training makes small: the weighted sum of the terms that the config declares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from service.contracts.algorithms.training import (
    CrossEntropyLoss,
    DistillationLoss,
    GraphLoss,
    MeanSquareLoss,
    TrainingLoss,
)
from service.contracts.base import below
from worker.quantizer.training.loss_facts import OutputFacts
from worker.quantizer.training.loss_terms import (
    Arrays,
    CrossEntropyTerm,
    DistillationTerm,
    GraphOnTorch,
    GraphTerm,
    LossTerm,
    MeanSquareTerm,
    Tensors,
)

__all__ = ["Arrays", "GraphOnTorch", "Losses", "OutputFacts", "Tensors"]

_NOTHING = Tensors({})


class Losses:
    """The loss of a config; ``settle`` it before the first batch.

    ``graphs`` compute the terms given as graphs, by their place in ``specs``; ``pointer`` is that of the algorithm.

    Raises:
        InvalidConfigError: a term names an output that is not there, or that holds no floats.
    """

    def __init__(
        self,
        specs: Sequence[TrainingLoss],
        facts: OutputFacts,
        *,
        graphs: Mapping[int, GraphOnTorch] | None = None,
        pointer: str = "",
    ) -> None:
        self._weights = [spec.weight for spec in specs]
        self._terms = _terms(specs, facts, graphs or {}, pointer)
        self._settled = False
        #: What was decided by the float outputs, in words for the report.
        self.notes: tuple[str, ...] = ()

    @property
    def needs_teacher(self) -> bool:
        """True if every batch needs what the float network makes of it."""
        return any(term.needs_teacher for term in self._terms)

    @property
    def arrays(self) -> tuple[str | None, ...]:
        """Arrays of the dataset that the terms read, None being the labels."""
        return tuple(dict.fromkeys(name for term in self._terms for name in term.arrays))

    @property
    def outputs(self) -> tuple[str, ...]:
        """Outputs of the network that the terms read."""
        return tuple(dict.fromkeys(name for term in self._terms for name in term.read))

    @property
    def inner_tensors(self) -> tuple[str, ...]:
        """Tensors within the network that are compared, too."""
        return tuple(dict.fromkeys(name for term in self._terms for name in term.inner))

    def settle(self, teacher: Tensors, arrays: Arrays) -> None:
        """Decide once, on some samples, what the config leaves open: divergences, variances, axes of classes.

        Raises:
            InvalidConfigError: an output, an inner tensor or an array does not fit its term.
        """
        with torch.no_grad():
            # Distillation follows the labels in which axis holds the classes.
            ordered = sorted(self._terms, key=lambda term: not isinstance(term, CrossEntropyTerm))
            notes = [note for term in ordered for note in term.settle(teacher, arrays)]
        self.notes = tuple(dict.fromkeys(notes))
        self._settled = True

    def __call__(self, student: Tensors, teacher: Tensors | None, arrays: Arrays) -> Tensor:
        """The loss of one batch, a scalar float32 with its gradient; without samples that fill up (``Tensors.cut``).

        ``teacher`` may be None if no term needs it.

        Raises:
            InvalidConfigError: a label is no class of its output.
        """
        if not self._settled:
            raise ValueError("the loss is not settled yet")
        if teacher is None and self.needs_teacher:
            raise ValueError("the loss compares with the float network")
        values = [
            weight * term.value(student, teacher or _NOTHING, arrays)
            for weight, term in zip(self._weights, self._terms, strict=True)
        ]
        return torch.stack(values).sum()


def _terms(
    specs: Sequence[TrainingLoss], facts: OutputFacts, graphs: Mapping[int, GraphOnTorch], pointer: str
) -> list[LossTerm]:
    places = [below(pointer, "losses", k) for k in range(len(specs))]
    known: dict[int, LossTerm] = {}
    labelled: dict[str, CrossEntropyTerm] = {}
    for k, spec in enumerate(specs):
        if isinstance(spec, CrossEntropyLoss):
            term = CrossEntropyTerm(spec, places[k], facts)
            known[k] = labelled[term.output] = term
    for k, spec in enumerate(specs):
        if isinstance(spec, MeanSquareLoss):
            known[k] = MeanSquareTerm(spec, places[k], facts)
        elif isinstance(spec, DistillationLoss):
            known[k] = DistillationTerm(spec, places[k], facts, labelled)
        elif isinstance(spec, GraphLoss):
            known[k] = GraphTerm(spec, places[k], facts, graphs[k])
    return [known[k] for k in range(len(specs))]

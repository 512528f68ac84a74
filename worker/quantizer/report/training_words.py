"""What a report says of a training in words."""

from __future__ import annotations

from collections.abc import Sequence

from service.contracts.report import AlgorithmFigures, TrainingFigures

_ENDED = {
    "epochs": "all its epochs were done",
    "steps": "all its steps were done",
    "seconds": "its time was up",
    "diverged": "the loss was no number any more",
    "patience": "no better epoch came (patience)",
}


def training_notes(algorithms: Sequence[AlgorithmFigures]) -> list[str]:
    """One note per training: how long, on what, how fast, which epoch was taken, what ended it, which weights jump."""
    return [
        f"{figures.method} {training_words(figures.training)}{'' if figures.kept else '; it was not kept'}"
        for figures in algorithms
        if figures.training is not None
    ]


def training_words(figures: TrainingFigures) -> str:
    """The note without the name of the method."""
    last = max(figures.epochs, key=lambda epoch: epoch.epoch, default=None)
    epochs, steps = (0, 0) if last is None else (last.epoch, last.steps)
    parts = [
        f"trained {_count(epochs, 'epoch')} ({_count(steps, 'step')}) on {_count(figures.samples, 'sample')} with "
        f"{figures.validation_samples} held back ({figures.device})",
        _best(figures),
        f"learning rate {figures.learning_rate:g}",
        f"it ended because {_ENDED[figures.ended]}",
    ]
    if last is not None:
        parts.append(f"at the end {last.oscillating:.2%} of the weights were oscillating and {last.frozen:.2%} frozen")
    return "; ".join(parts)


def trained_words(algorithms: Sequence[AlgorithmFigures]) -> str:
    """For the summary: how long the network was trained; empty where it was not, or to no avail."""
    kept = [figures.training for figures in algorithms if figures.kept and figures.training is not None]
    return f"trained to epoch {kept[-1].best_epoch}" if kept and kept[-1].best_epoch else ""


def _best(figures: TrainingFigures) -> str:
    by = figures.metric or "the validation loss"
    if figures.best_epoch == 0:
        return f"no epoch was better than the network before it, by {by}"
    found = next((epoch for epoch in figures.epochs if epoch.epoch == figures.best_epoch), None)
    value = None if found is None else (found.validation_loss if figures.metric is None else found.metric)
    return f"epoch {figures.best_epoch} was the best by {by}" + ("" if value is None else f" ({value:.5g})")


def _count(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"

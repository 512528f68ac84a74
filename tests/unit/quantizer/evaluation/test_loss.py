"""What is lost is told from few samples: against counts over many, and by what must not change the answer."""

from __future__ import annotations

import numpy as np
import pytest

from service.contracts.algorithms import BiasCorrection
from tests.unit.quantizer.toolbox import rng
from worker.quantizer.evaluation.loss import LossEstimate


def changed(scores: np.ndarray, twins: np.ndarray) -> float:
    estimate = LossEstimate({"y"})
    estimate.update([("y", scores, twins)])
    return estimate.figures["y"]


def softmax(scores: np.ndarray) -> np.ndarray:
    found: np.ndarray = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return found


@pytest.mark.parametrize(("classes", "noise"), [(2, 0.1), (10, 0.05), (10, 0.3), (100, 0.1)])
def test_twenty_samples_tell_better_what_thousands_would_count_than_a_count_of_them(classes: int, noise: float) -> None:
    numbers = rng(classes)
    scores = numbers.standard_normal((20_000, classes)) * 3.0
    twins = scores + noise * numbers.standard_normal(scores.shape)
    other = scores.argmax(axis=1) != twins.argmax(axis=1)
    truth = 100.0 * other.mean()
    few = [slice(k, k + 20) for k in range(0, 4000, 20)]
    told = np.array([changed(scores[part], twins[part]) for part in few])
    counted = np.array([100.0 * other[part].mean() for part in few])
    assert 0.7 * truth < told.mean() < 1.4 * truth
    assert np.abs(told - truth).mean() < 0.7 * np.abs(counted - truth).mean()


def test_what_changes_no_decision_is_no_loss_and_what_gives_no_number_is() -> None:
    scores = rng(1).standard_normal((16, 10)) * 3.0
    twins = scores + 0.2 * rng(2).standard_normal(scores.shape)
    told = changed(scores, twins)
    assert changed(scores, 0.8 * twins + 5.0) == pytest.approx(told)
    assert changed(softmax(scores), softmax(twins)) == pytest.approx(told, rel=0.05)
    assert changed(scores, 0.9 * scores) == pytest.approx(0.0)
    assert changed(scores, -scores) == changed(scores, np.full_like(scores, np.nan)) == 100.0


def test_a_large_loss_is_ten_times_another() -> None:
    scores = rng(1).standard_normal((400, 10)) * 3.0
    noise = rng(2).standard_normal(scores.shape)
    steps = [BiasCorrection(when=when) for when in ("loss", "large_loss")]
    for part, lost in ((0.001, [False, False]), (0.1, [True, False]), (1.0, [True, True])):
        estimate = LossEstimate({"y"})
        estimate.update([("y", scores, scores + part * noise)])
        assert [estimate.words(step.lost_sqnr_db, step.lost_percent) is not None for step in steps] == lost
    for db, lost in ((28.0, [False, False]), (22.0, [True, False]), (12.0, [True, True])):
        estimate = LossEstimate(set())
        estimate.update([("z", scores, scores * (1.0 + 10.0 ** (-db / 20.0)))])
        assert [estimate.words(step.lost_sqnr_db, step.lost_percent) is not None for step in steps] == lost


def test_the_worst_output_is_named_by_its_kind() -> None:
    values = rng().standard_normal((8, 6))
    fine, poor = values + 1e-4, values + 0.2 * rng(1).standard_normal(values.shape)
    for name, twin, words in (("y", poor, "decisions at output 'y'"), ("z", poor, "SQNR of output 'z'")):
        estimate = LossEstimate({"y"})
        estimate.update([(other, values, twin if other == name else fine) for other in ("y", "z")])
        assert estimate.words() is not None
        assert words in estimate.words()
    estimate = LossEstimate({"y"})
    estimate.update([("y", values, fine), ("z", values, fine), ("n", np.arange(8), np.arange(8))])
    assert estimate.words() is None
    estimate.update([("n", np.arange(8), np.arange(8)[::-1])])
    assert estimate.words() is not None


def merged(decided: np.ndarray) -> list[list[int]]:
    return [[int(one) for k, one in enumerate(row) if k == 0 or one != row[k - 1]] for row in decided]


@pytest.mark.parametrize("noise", [0.01, 0.03, 0.1])
def test_sequences_lose_by_the_sample_what_a_count_over_many_finds(noise: float) -> None:
    numbers = rng(3)
    scores = 3.0 * (numbers.standard_normal((2000, 12, 4)).repeat(2, axis=1))
    scores += 0.03 * numbers.standard_normal(scores.shape)
    twins = scores + noise * numbers.standard_normal(scores.shape)
    before, after = (merged(found.argmax(axis=-1)) for found in (scores, twins))
    truth = 100.0 * float(np.mean([one != other for one, other in zip(before, after, strict=True)]))
    estimate = LossEstimate({"y"})
    for k in range(0, 64, 8):
        estimate.update([("y", scores[k : k + 8], twins[k : k + 8])])
    assert 0.6 * truth < estimate.sequences["y"] < 1.6 * truth
    assert estimate.figures["y"] < 0.2 * truth


def test_a_border_that_moves_changes_no_sequence() -> None:
    scores = np.tile(np.repeat(4.0 * np.eye(3), 4, axis=0), (8, 1, 1))
    scores[:, 3] = [2.02, 1.98, -1.0]  # the last step of the first decision, nearly the next one
    estimate = LossEstimate({"y"})
    estimate.update([("y", scores, scores + 0.05 * rng(4).standard_normal(scores.shape))])
    assert estimate.figures["y"] > 0.05
    assert estimate.sequences["y"] < 1e-3


def test_noise_counts_where_the_model_is_unsure() -> None:
    numbers = rng(5)
    scores = 3.0 * numbers.standard_normal((20_000, 10))
    margins = np.sort(scores, axis=1)[:, -1] - np.sort(scores, axis=1)[:, -2]
    scale = np.where(margins < np.quantile(margins, 0.2), 0.3, 0.02)[:, None]
    twins = scores + scale * numbers.standard_normal(scores.shape)
    truth = 100.0 * (scores.argmax(axis=1) != twins.argmax(axis=1)).mean()
    told = np.mean([changed(scores[k : k + 64], twins[k : k + 64]) for k in range(0, 6400, 64)])
    assert 0.7 * truth < told < 1.3 * truth


def test_noise_counts_between_the_classes_that_decide() -> None:
    numbers = rng(6)
    scores = 3.0 * numbers.standard_normal((20_000, 10))
    noise = 0.05 * numbers.standard_normal(scores.shape)
    best = np.argsort(-scores, axis=1)[:, :2]
    np.put_along_axis(noise, best, 0.3 * numbers.standard_normal(best.shape), axis=1)
    truth = 100.0 * (scores.argmax(axis=1) != (scores + noise).argmax(axis=1)).mean()
    told = np.mean([changed(scores[k : k + 64], (scores + noise)[k : k + 64]) for k in range(0, 6400, 64)])
    assert 0.7 * truth < told < 1.4 * truth

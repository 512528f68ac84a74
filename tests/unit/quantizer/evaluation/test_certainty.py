"""Intervals and tests against closed forms, brute force and simulation."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.distributions import (
    Pairs,
    mcnemar,
    normal_quantile,
    paired_interval,
    student_quantile,
    student_share,
    wilson,
)
from tests.unit.quantizer.toolbox import rng
from worker.quantizer.evaluation import certainty, contributions
from worker.quantizer.evaluation.certainty import (
    Evidence,
    difference_of,
    document_of,
    interval_of,
    spread_of,
    surely_differ,
)
from worker.quantizer.evaluation.contributions import CountSums, DenseSums, Hits, Remade, quotients


def mean_of(values: np.ndarray) -> DenseSums:
    found = DenseSums(lambda sums: quotients(sums[:, 0], sums[:, 1]))
    found.add(np.stack([values, np.ones(len(values))], axis=1), samples=len(values))
    return found


def hits_of(right: np.ndarray) -> Hits:
    found = Hits()
    found.add(np.stack([right, np.ones_like(right)], axis=1).astype(np.uint8), samples=len(right))
    return found


# Distributions: one degree of freedom is Cauchy's, two have a closed form, many are normal.


@given(st.floats(0.001, 0.999))
def test_quantiles_of_student_are_those_of_its_closed_forms(share: float) -> None:
    assert student_quantile(share, 1) == pytest.approx(math.tan(math.pi * (share - 0.5)), rel=1e-8, abs=1e-9)
    two = (2 * share - 1) * math.sqrt(1 / (2 * share * (1 - share)))
    assert student_quantile(share, 2) == pytest.approx(two, rel=1e-8, abs=1e-9)
    assert student_quantile(share, 900_000) == pytest.approx(normal_quantile(share), abs=1e-4)


@given(st.floats(-20, 20), st.floats(1, 200))
def test_a_quantile_is_the_inverse_of_the_share(value: float, freedom: float) -> None:
    share = student_share(value, freedom)
    assert student_share(-value, freedom) == pytest.approx(1 - share, abs=1e-12)
    if 1e-8 < share < 1 - 1e-8:
        assert student_share(student_quantile(share, freedom), freedom) == pytest.approx(share, abs=1e-10)


# Shares.


@given(st.integers(1, 500), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_ends_where_the_score_test_ends(samples: int, data: st.DataObject, confidence: float) -> None:
    hits = data.draw(st.integers(0, samples))
    low, high = wilson(hits, samples, confidence)
    assert 0 <= low <= hits / samples <= high <= 1
    z = normal_quantile(0.5 + confidence / 2)
    for end in (low, high):
        if 0 < end < 1:
            assert abs(hits / samples - end) == pytest.approx(z * math.sqrt(end * (1 - end) / samples), rel=1e-6)
    mirrored = wilson(samples - hits, samples, confidence)
    assert mirrored == pytest.approx((1 - high, 1 - low), abs=1e-12)


@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_binomial_of_a_fair_coin(lost: int, won: int) -> None:
    total = lost + won
    tail = sum(math.comb(total, k) for k in range(min(lost, won) + 1)) / 2**total
    assert mcnemar(lost, won) == pytest.approx(min(1.0, 2 * tail), rel=1e-9)
    assert mcnemar(lost, won) == mcnemar(won, lost)
    if lost >= won:
        assert mcnemar(lost + 1, won) <= mcnemar(lost, won) + 1e-12


def tables() -> st.SearchStrategy[Pairs]:
    return st.tuples(st.integers(0, 40), st.integers(0, 40), st.integers(1, 400)).map(
        lambda counts: Pairs(counts[0], counts[1], sum(counts))
    )


@given(tables(), st.sampled_from([0.8, 0.95, 0.99]))
def test_the_paired_interval_is_what_the_score_test_keeps(pairs: Pairs, confidence: float) -> None:
    low, high = paired_interval(pairs, confidence)
    difference = (pairs.lost - pairs.won) / pairs.samples
    assert -1 <= low <= difference <= high <= 1
    z = normal_quantile(0.5 + confidence / 2)
    for end in (low, high):
        if -1 < end < 1:
            assert abs(score(pairs, end)) == pytest.approx(z, rel=1e-3)
    swapped = paired_interval(Pairs(pairs.won, pairs.lost, pairs.samples), confidence)
    assert swapped == pytest.approx((-high, -low), abs=1e-9)
    wider = paired_interval(pairs, 0.5 + confidence / 2)
    assert wider[0] <= low and high <= wider[1]
    many = paired_interval(Pairs(*(100 * count for count in pairs)), confidence)
    assert many[1] - many[0] < high - low


def score(pairs: Pairs, delta: float) -> float:
    """The same statistic, its nuisance parameter by searching for the most likely one instead of by its root."""
    lost, won, samples = pairs
    low, high = max(0.0, -delta), (1 - delta) / 2
    shares = np.linspace(low, high, 20_001)
    for _ in range(3):
        with np.errstate(divide="ignore", invalid="ignore"):
            rest = (samples - lost - won) * np.log(np.maximum(1 - 2 * shares - delta, 0))
            terms = [count * np.log(each) for count, each in ((won, shares), (lost, shares + delta)) if count]
            likelihood = np.nan_to_num(sum(terms, rest), nan=-np.inf)
        best, step = shares[likelihood.argmax()], shares[1] - shares[0]
        shares = np.linspace(max(low, best - step), min(high, best + step), 2001)
    variance = samples * (2 * best + delta * (1 - delta))
    return float((lost - won - samples * delta) / math.sqrt(variance))


# The bootstrap.


@pytest.mark.parametrize("draw", ["normal", "exponential"])
def test_bootstrap_intervals_of_a_mean_cover_the_truth(draw: str) -> None:
    generator = rng(4)
    make = generator.standard_normal if draw == "normal" else lambda size: generator.exponential(size=size) - 1
    held = 0
    for _ in range(400):
        found = interval_of(mean_of(make(60)), 0.95)
        assert found is not None and found.method == "bootstrap" and found.samples == 60
        held += found.low <= 0 <= found.high
    assert 0.91 <= held / 400 <= 0.985


def test_the_jackknife_of_a_mean_is_students_t_and_one_that_is_made_anew_near_it() -> None:
    values = rng(5).standard_normal(12)
    spread = spread_of(mean_of(values))
    error = values.std(ddof=1) / math.sqrt(12)
    assert spread.standard_error == pytest.approx(error)
    found = spread.interval(0.95)
    assert found is not None and found.method == "student"
    half = student_quantile(0.975, 11) * error
    assert (found.low, found.high) == pytest.approx((values.mean() - half, values.mean() + half))
    # a metric that is made anew is left without each part
    values = rng(9).standard_normal(100)
    made = spread_of(Remade(100, lambda left_out: float(values[~left_out].mean())))
    sums = spread_of(mean_of(values))
    assert made is not None and sums is not None and made.drawn is None
    assert made.value == pytest.approx(values.mean())
    assert made.standard_error == pytest.approx(sums.standard_error, rel=0.5)


@given(st.integers(3, 300), st.integers(0, 5))
def test_a_difference_turns_round_with_its_models(samples: int, seed: int) -> None:
    one, other = rng(seed).standard_normal((2, samples))
    found, turned = (difference_of(mean_of(a), mean_of(b), 0.95) for a, b in ((one, other), (other, one)))
    assert (found.interval.low, found.interval.high) == pytest.approx((-turned.interval.high, -turned.interval.low))
    assert found.p_value == pytest.approx(turned.p_value)
    # in pairs: what all samples have alike has no spread, and so no interval, but the sign test
    shifted = difference_of(mean_of(one), mean_of(one - 1.0), 0.95)
    assert shifted is not None and shifted.interval is None
    assert shifted.p_value == 2.0 ** (1 - samples)


def test_a_confidence_that_asks_for_more_gives_a_wider_interval_and_the_same_samples_the_same() -> None:
    sums = mean_of(rng(6).exponential(size=80))
    spans = [interval_of(sums, confidence) for confidence in (0.5, 0.8, 0.95, 0.99, 0.999)]
    widths = [found.high - found.low for found in spans if found is not None]
    assert len(widths) == 5 and widths == sorted(widths)
    values = rng(7).standard_normal(3000)
    found = interval_of(mean_of(values), 0.95)
    assert found is not None and found.samples == 3000 and found == interval_of(mean_of(values), 0.95)
    assert found.high - found.low == pytest.approx(2 * 1.96 / math.sqrt(3000), rel=0.15)
    # too few carry nothing
    assert interval_of(mean_of(np.ones(2)), 0.95) is None
    assert difference_of(mean_of(np.ones(5)), mean_of(np.ones(6)), 0.95) is None


# Samples that do not differ.


def pixels_of(right: np.ndarray, of: int) -> Hits:
    found = Hits()
    found.add(np.stack([right, np.full(len(right), of)], axis=1), samples=len(right))
    return found


@given(st.integers(3, 1200), st.sampled_from([0.8, 0.95, 0.99]))
def test_a_share_of_which_no_sample_changed_is_bounded_by_the_rule_of_three(samples: int, confidence: float) -> None:
    right = rng(samples).integers(0, 9, samples)
    found = difference_of(pixels_of(right, 9), pixels_of(right, 9), confidence)
    assert found is not None and found.interval is not None and found.p_value == 1.0
    assert (found.interval.method, found.interval.samples) == ("rule_of_three", samples)
    assert found.interval.low == -found.interval.high
    for value in (0.0, 0.1, 7.3):  # of means of samples that are all alike nothing is told
        sums = mean_of(np.full(50, value))
        alike = difference_of(sums, sums, 0.95)
        assert interval_of(sums, 0.95) is None and (alike.interval, alike.p_value) == (None, 1.0)
    # a share of this size would stay unseen just as often as the interval may be wrong
    assert (1 - found.interval.high / 100) ** samples == pytest.approx(1 - confidence, rel=1e-6)
    whole = interval_of(pixels_of(np.full(samples, 9), 9), confidence)
    assert whole is not None and (whole.low, whole.high) == pytest.approx((100 - found.interval.high, 100))


def test_changes_that_cancel_out_are_changes() -> None:
    one, other = CountSums(worst_of_keys), CountSums(worst_of_keys)
    # the worst key decides; only the other one has changed
    for sums, moved in ((one, 0), (other, 1)):
        counts = np.concatenate([np.ones(40), np.full(40, 5 + moved)])
        sums.add(np.tile(np.arange(40), 2), np.repeat([0, 1], 40), counts, size=40, samples=40)
    assert one.same_as(one) and not one.same_as(other)
    found = difference_of(one, other, 0.95, is_share=True)
    assert found is not None and found.interval is None
    same = difference_of(one, one, 0.95, is_share=True)
    assert same is not None and same.interval is not None and same.interval.method == "rule_of_three"


def worst_of_keys(sums: np.ndarray) -> np.ndarray:
    return sums.min(axis=1)


# Very many samples, and very many columns.


@given(st.lists(st.integers(1, 150), min_size=1, max_size=25), st.sampled_from([1024, 1500, 4096]))
def test_neighbours_are_kept_in_units_of_one_size_whatever_the_batches(sizes: list[int], kept: int) -> None:
    samples = sum(sizes)
    values = rng(samples).standard_normal(samples)
    columns = np.stack([values, np.ones(samples)], axis=1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(contributions, "_KEPT_BYTES", kept)
        parts, whole = mean_of(values[:0]), mean_of(values[:0])
        for block in np.split(columns, np.cumsum(sizes)[:-1]):
            parts.add(block, samples=len(block))
        whole.add(columns, samples=samples)
    matrix = parts.matrix
    assert len(matrix) == parts.units and matrix.nbytes <= kept + 16
    size = matrix[0, 1] if len(matrix) > 1 else samples
    assert (matrix[:-1, 1] == size).all() and size / 2 <= matrix[-1, 1] < 2 * size
    assert size == 1 or size * kept / 16 <= 2 * samples
    assert parts.total == pytest.approx([values.sum(), samples])
    starts = np.arange(len(matrix)) * int(size)
    assert matrix[:, 0] == pytest.approx(np.add.reduceat(values, starts))
    # the same whether they come at once or not
    assert matrix == pytest.approx(whole.matrix)


def test_merged_neighbours_keep_the_standard_error_and_very_wide_rows_the_total(monkeypatch) -> None:
    monkeypatch.setattr(contributions, "_KEPT_BYTES", 64 * 1024 // 8)
    values = rng().standard_normal(3000)
    sums = mean_of(values[:0])
    for block in np.array_split(np.stack([values, np.ones(3000)], axis=1), 430):
        sums.add(block, samples=len(block))
    spread = spread_of(sums)
    assert 200 < sums.units <= 512 and spread is not None
    assert spread.standard_error == pytest.approx(values.std(ddof=1) / math.sqrt(3000), rel=0.25)
    # of very wide rows the total alone is kept
    monkeypatch.setattr(contributions, "_KEPT_BYTES", 64 * 8 * 10)
    for width, units in ((10, 20), (11, 0)):
        sums = DenseSums(lambda found: found.sum(axis=1))
        for _ in range(2):
            sums.add(np.ones((10, width)), samples=10)
        assert (sums.units, sums.total.tolist(), sums.value) == (units, [20.0] * width, 20.0 * width)
        assert (spread_of(sums) is None) == (units == 0)


def test_few_sets_at_a_time_give_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = rng(13)
    counts = CountSums(lambda sums: sums[:, 0] / sums.sum(axis=1))
    matrix = generator.integers(1, 4, (60, 5))
    units, keys = np.nonzero(matrix)
    counts.add(units, keys, matrix[units, keys], size=60, samples=60)
    whole = spread_of(counts)
    widths = []
    of = CountSums.of
    monkeypatch.setattr(CountSums, "of", lambda self, weights: widths.append(len(weights)) or of(self, weights))
    monkeypatch.setattr(certainty, "PART_ELEMENTS", 5 * 64)
    parts = spread_of(counts)
    assert whole is not None and parts is not None and whole.drawn is not None and parts.drawn is not None
    assert np.array_equal(whole.drawn, parts.drawn) and max(widths) == 64 and sum(widths) == 1000


# Evidence of the judges.


def test_what_differs_for_sure_and_that_chance_rarely_decides() -> None:
    right = np.ones(64, bool)
    five, six = right.copy(), right.copy()
    five[:5], six[:6] = False, False
    whole, less, lost = (Evidence.of(hits_of(each)) for each in (right, five, six))
    assert not surely_differ(whole, less)  # 2 / 2^5 is more than 5 %
    assert surely_differ(whole, lost)
    assert not surely_differ(whole, None)
    values = rng(10).standard_normal(16)
    noisy = values + rng(11).standard_normal(16)
    assert surely_differ(Evidence.of_means(values), Evidence.of_means(values + 0.1 + 0.01 * noisy))
    assert not surely_differ(Evidence.of_means(values), Evidence.of_means(noisy))
    # chance rarely decides
    draws = rng(12).standard_normal((600, 2, 16))
    said = [surely_differ(Evidence.of_means(one), Evidence.of_means(other)) for one, other in draws]
    assert np.mean(said) < 0.08


def test_evidence_is_made_when_it_is_asked_for_and_survives_a_checkpoint() -> None:
    asked = []
    values = rng(14).standard_normal(30)

    def value_of(sums: np.ndarray) -> np.ndarray:
        asked.append(len(sums))
        return quotients(sums[:, 0], sums[:, 1])

    found = DenseSums(value_of)
    found.add(np.stack([values, np.ones(30)], axis=1), samples=30)
    evidence = Evidence.of(found)
    assert evidence is not None and not asked
    again = Evidence.from_document(json.loads(json.dumps(document_of(evidence))))
    assert asked and again is not None and again.facts == evidence.facts
    count = len(asked)
    assert not surely_differ(evidence, again) and surely_differ(again, Evidence.of_means(values - 1.0))
    assert len(asked) == count
    assert Evidence.of_means(values[:2]).facts is None and document_of(Evidence.of_means(values[:2])) is None

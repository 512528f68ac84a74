"""Word error rate, against the definition of edit distance, and CTC decoding step by step."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.quantizer.evaluation.measuring import measured, value
from tests.unit.quantizer.toolbox import normal, rng


def edits(a: tuple[Any, ...], b: tuple[Any, ...]) -> int:
    """By the recursion that defines it."""

    @cache
    def between(i: int, j: int) -> int:
        if not i or not j:
            return i + j
        return min(between(i - 1, j) + 1, between(i, j - 1) + 1, between(i - 1, j - 1) + (a[i - 1] != b[j - 1]))

    return between(len(a), len(b))


def greedy(scores: np.ndarray, blank: int) -> tuple[int, ...]:
    """CTC: the best class of each step, repeats merged, blanks left out."""
    words: list[int] = []
    last = None
    for step in scores:
        best = int(step.argmax())
        if best != last and best != blank:
            words.append(best)
        last = best
    return tuple(words)


def padded(rows: list[tuple[int, ...]], width: int) -> np.ndarray:
    labels = np.full((len(rows), width), -1, np.int32)
    for row, words in zip(labels, rows, strict=True):
        row[: len(words)] = words
    return labels


def sequences(seed: int, samples: int = 9, classes: int = 5, width: int = 6) -> list[tuple[int, ...]]:
    random = rng(seed)
    return [tuple(random.integers(0, classes, random.integers(0, width + 1)).tolist()) for _ in range(samples)]


@given(seed=st.integers(0, 100), blank=st.integers(0, 4), batch=st.sampled_from([1, 4, 50]))
def test_ctc(seed: int, blank: int, batch: int) -> None:
    scores, rows = normal(9, 10, 5, seed=seed), [(1, 2), *sequences(seed)[1:]]
    expected = sum(edits(row, greedy(score, blank)) for row, score in zip(rows, scores, strict=True))
    metric = {"kind": "word_error_rate", "blank": blank}
    found = measured([metric], {"y": scores}, padded(rows, 6), batch=batch)
    words = sum(map(len, rows))
    assert found.values["word_error_rate"] == pytest.approx(100 * expected / words, abs=1e-4)
    assert found.details["word_error_rate"] == {"edits": expected, "words": words}


def test_time_first_and_lengths() -> None:
    scores, rows = normal(9, 10, 5), [(1, 2), *sequences(3)[1:]]
    expected = value({"kind": "word_error_rate"}, {"y": scores}, padded(rows, 6))
    turned = {"y": scores.transpose(1, 0, 2)}
    assert value({"kind": "word_error_rate", "time_first": True}, turned, padded(rows, 6), axis={"y": 1}) == expected
    zeros = np.maximum(padded(rows, 6), 0)
    lengths = {"n": np.array([len(row) for row in rows])}
    metric = {"kind": "word_error_rate", "label_lengths": "n"}
    assert value(metric, {"y": scores}, zeros, arrays=lengths) == expected
    # steps beyond an output's length do not count
    longer = np.concatenate([scores, normal(9, 4, 5, seed=8)], axis=1)
    outputs = {"y": longer, "steps": np.full(9, 10)}
    metric = {"kind": "word_error_rate", "output": "y", "output_lengths": "steps"}
    assert value(metric, outputs, padded(rows, 6)) == expected


def test_class_numbers_and_letters_of_words() -> None:
    rows, got = [(1, 2), *sequences(1)[1:]], sequences(2)
    expected = sum(edits(a, b) for a, b in zip(rows, got, strict=True))
    metric = {"kind": "word_error_rate", "decode": "argmax"}
    rate = value(metric, {"y": padded(got, 6)}, padded(rows, 6))
    assert rate == pytest.approx(100 * expected / sum(map(len, rows)), abs=1e-4)

    # letters make words
    def words(row: tuple[int, ...]) -> tuple[str, ...]:
        return tuple("".join(map(str, row)).replace("4", " ").split())

    rows, got = [(1, 4, 2), *sequences(5, width=9)[1:]], sequences(6, width=9)
    expected = sum(edits(words(a), words(b)) for a, b in zip(rows, got, strict=True))
    metric = {"kind": "word_error_rate", "decode": "argmax", "separator": 4}
    found = measured([metric], {"y": padded(got, 9)}, padded(rows, 9))
    assert found.details["word_error_rate"] == {"edits": expected, "words": sum(len(words(row)) for row in rows)}
    # labels without words have no rate
    found = measured([{"kind": "word_error_rate"}], {"y": normal(3, 4, 5)}, padded([(), (), ()], 4))
    assert found.values == {}
    assert "no word" in found.undefined["word_error_rate"]

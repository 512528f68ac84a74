"""Samples that are spread over data: of any order of its classes they hold all of them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from service.contracts.costs import held_back_samples, spread


@given(available=st.integers(0, 3000), wanted=st.integers(1, 300))
def test_every_part_of_equal_size_gives_one(available: int, wanted: int) -> None:
    numbers = spread(available, wanted)
    count = min(available, wanted)
    assert numbers == sorted(set(numbers))
    assert len(numbers) == count
    assert all(k * available // count <= number < (k + 1) * available // count for k, number in enumerate(numbers))


def test_those_held_back_hold_all_classes_whatever_their_order() -> None:
    for available in (120, 125, 384, 1000):
        held_back = np.asarray(held_back_samples(available))
        for classes in range(2, 9):
            fair = len(held_back) / classes
            by_class = np.bincount(held_back * classes // available, minlength=classes)
            assert abs(by_class - fair).max() < 2.0
            assert classes > 5 or np.bincount(held_back % classes, minlength=classes).min() > 0

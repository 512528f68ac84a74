"""How many threads a step of training is given."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.quantizer.autodiff.device import repeatable, threads_worth, use_threads

THREADS = st.integers(1, 256)
ELEMENTS = st.integers(0, 10**10)


@given(ELEMENTS, THREADS)
def test_never_more_than_there_are_and_never_none(elements: int, threads: int) -> None:
    assert 1 <= threads_worth(elements, threads) <= threads


@given(ELEMENTS, ELEMENTS, THREADS)
def test_larger_steps_get_no_fewer(one: int, other: int, threads: int) -> None:
    small, large = sorted((one, other))
    assert threads_worth(small, threads) <= threads_worth(large, threads)


@given(ELEMENTS, THREADS, THREADS)
def test_more_threads_change_nothing_once_there_are_enough(elements: int, one: int, other: int) -> None:
    """The same bits on every machine that has as many as the step is worth."""
    few, many = sorted((one, other))
    if threads_worth(elements, few) < few:
        assert threads_worth(elements, many) == threads_worth(elements, few)


@pytest.mark.parametrize(("elements", "threads"), [(32 * 16 * 32 * 32, 1), (32 * 48 * 112 * 112, 8)])
def test_small_pictures_are_computed_by_one_and_large_ones_by_all(elements: int, threads: int) -> None:
    assert threads_worth(elements, 8) == threads


def test_what_was_set_within_ends_with_it() -> None:
    before = torch.get_num_threads()
    with repeatable(2):
        assert torch.get_num_threads() == 2
        use_threads(1)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before

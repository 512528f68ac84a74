"""How many threads a step of training is given."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from worker.quantizer.autodiff.program import repeatable, threads_worth

THREADS = st.integers(1, 256)
ELEMENTS = st.integers(0, 10**10)


@given(ELEMENTS, ELEMENTS, THREADS, THREADS)
def test_larger_steps_get_no_fewer_and_never_more_than_there_are(a: int, b: int, one: int, other: int) -> None:
    (small, large), (few, many) = sorted((a, b)), sorted((one, other))
    assert 1 <= threads_worth(small, one) <= threads_worth(large, one) <= one
    # the same bits on every machine that has as many threads as the step is worth
    if threads_worth(a, few) < few:
        assert threads_worth(a, many) == threads_worth(a, few)


@pytest.mark.parametrize(("elements", "threads"), [(32 * 16 * 32 * 32, 1), (32 * 48 * 112 * 112, 8)])
def test_small_pictures_are_computed_by_one_and_large_ones_by_all(elements: int, threads: int) -> None:
    assert threads_worth(elements, 8) == threads


def test_what_was_set_within_ends_with_it() -> None:
    before = torch.get_num_threads()
    with repeatable(2):
        assert torch.get_num_threads() == 2
        torch.set_num_threads(1)
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == before

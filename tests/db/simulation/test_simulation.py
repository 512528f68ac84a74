"""Many histories of workers, a reconciler and a client with bad luck, by the real transitions.

A history that breaks a rule is printed with its seed; to see it again:

    QUANTMILL_TEST_SEED=1234 pytest -n 0 tests/db/simulation

More than those of every test run, with all cores (a history takes about 13 ms of one):

    QUANTMILL_TEST_SEEDS=10000 pytest -n auto tests/db/simulation
"""

from __future__ import annotations

import os
from itertools import count
from unittest.mock import patch

import pytest

from service import ids
from tests.db.simulation.store import store
from tests.db.simulation.world import World

SEEDS = int(os.environ.get("QUANTMILL_TEST_SEEDS") or 1500)
# Of this many seeds one has its histories with a cancel at every step.
SEEDS_PER_CANCELED = 75
_ONE_SEED = os.environ.get("QUANTMILL_TEST_SEED")
# Every twentieth seed in every run, the others in the long one.
RANGES = 20
ranges = pytest.mark.parametrize(
    "number", [0] if _ONE_SEED else [0, *(pytest.param(number, marks=pytest.mark.long) for number in range(1, RANGES))]
)


def simulate(seed: int, *, cancel_at: int | None = None) -> int:
    """One history, and how many steps it had; where it breaks a rule, the error tells all of it."""
    world = World(store(), seed, cancel_at)
    try:
        # ids in the order of creation, as ever, but the same each time: they break ties
        with patch.object(ids, "_uuid7", count().__next__):
            return world.run()
    except Exception as error:
        error.add_note("\n".join([f"QUANTMILL_TEST_SEED={seed} cancel_at={cancel_at}", *world.history]))
        raise


@ranges
def test_histories_keep_every_rule(number: int) -> None:
    for seed in [int(_ONE_SEED)] if _ONE_SEED else range(number, SEEDS, RANGES):
        simulate(seed)


@ranges
def test_a_cancel_at_every_step_keeps_every_rule(number: int) -> None:
    """The same histories again and again, with all that was submitted so far canceled one step later each time."""
    for seed in [int(_ONE_SEED)] if _ONE_SEED else range(number, max(1, SEEDS // SEEDS_PER_CANCELED), RANGES):
        for step in range(simulate(seed) + 1):
            simulate(seed, cancel_at=step)

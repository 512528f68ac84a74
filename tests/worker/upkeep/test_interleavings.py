"""Garbage collection against everybody who names files, in every order of their steps, on either database."""

from __future__ import annotations

import pytest

from tests.worker.upkeep.yard import Yard, every_way, interleave, seeded

DATA = b"the bytes"
OTHER = b"other bytes"
SEEDS = 10


def test_every_order_of_a_publication_and_a_round(yard: Yard) -> None:
    """The file is in the store already, and no row names it: the publisher relies on what the collector is after."""

    def play(choose) -> None:
        yard.put(DATA)
        interleave(yard, [yard.publish(DATA), yard.collect()], choose)
        yard.settle()

    assert every_way(play) >= 10


def test_orders_of_an_expiry_and_of_a_model_made_of_the_upload(yard: Yard) -> None:
    outcomes = set()

    def play(choose) -> None:
        upload_id = yard.add_upload()
        for _ in yard.complete(upload_id, DATA):
            pass
        interleave(yard, [yard.make_model(upload_id), yard.expire(), yard.collect()], choose)
        outcomes.add(bool(yard.refused))
        yard.settle()

    for seed in range(60):
        play(seeded(seed))
    assert outcomes == {True, False}, "both ends have to be seen"


@pytest.mark.both_databases
@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.long) for part in range(1, 4))])
def test_any_order_of_everybody(yard: Yard, part: int) -> None:
    for seed in range(part * SEEDS, (part + 1) * SEEDS):
        yard.put(DATA)
        first, second = yard.add_upload(), yard.add_upload(expires_in=60)
        actors = [
            yard.publish(DATA), yard.publish(OTHER), yard.alias(DATA), yard.complete(first, DATA),
            yard.complete(second, OTHER), yard.make_model(first), yard.make_model(second), yard.expire(),
            yard.collect(), yard.collect(), yard.collect(),
        ]  # fmt: skip
        try:
            interleave(yard, actors, seeded(seed))
            yard.settle()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise


def test_the_orders_find_a_publisher_that_does_not_keep_the_rule(yard: Yard) -> None:
    """The same game without ``name_files`` loses a file in some order: the game is not too easy."""
    yard.naming = lambda session, store, digests: None

    def play(choose) -> None:
        yard.put(DATA)
        interleave(yard, [yard.publish(DATA), yard.collect()], choose)
        yard.settle()

    with pytest.raises(AssertionError, match="which is not there"):
        every_way(play)

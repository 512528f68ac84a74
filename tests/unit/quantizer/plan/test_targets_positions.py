"""The solver of positions: lowers as little as the limits allow, and stays linear."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from worker.quantizer.plan.rules.shifts import Positions, ShiftLimit, Variable, settle

NAMES = "abcde"


def difference(lower: str, upper: str, span: int) -> ShiftLimit:
    """lower <= upper + span."""
    first, second = ("activation", lower), ("activation", upper)

    def ceilings(at: Positions) -> list[tuple[Variable, int]]:
        return [(first, at[second] + span)]

    return ShiftLimit("test", f"{lower}<={upper}+{span}", "", (first, second), ceilings)


def start(values: dict[str, int]) -> dict[Variable, int]:
    return {("activation", name): value for name, value in values.items()}


@given(
    st.dictionaries(st.sampled_from(NAMES), st.integers(-3, 5), min_size=5, max_size=5),
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMES), st.integers(0, 4)).filter(lambda t: t[0] != t[1]),
        max_size=8,
    ),
)
def test_the_highest_positions_within_the_limits_are_found(
    values: dict[str, int], spans: list[tuple[str, str, int]]
) -> None:
    settled = settle(start(values), [difference(*span) for span in spans])
    got = {name: settled.positions["activation", name] for name in NAMES}
    # by brute force: of all positions that keep the limits, the highest in every variable at once
    allowed = [
        dict(zip(NAMES, chosen, strict=True))
        for chosen in itertools.product(*(range(-3, values[name] + 1) for name in NAMES))
        if all(chosen[NAMES.index(a)] <= chosen[NAMES.index(b)] + span for a, b, span in spans)
    ]
    assert got == {name: max(chosen[name] for chosen in allowed) for name in NAMES}
    assert not settled.given_up
    assert {name for _, name in settled.cause} == {name for name in NAMES if got[name] < values[name]}


def test_long_chains_are_settled_in_few_steps() -> None:
    calls = 0
    length = 20_000
    variables = [("activation", str(index)) for index in range(length)]

    def limit(index: int) -> ShiftLimit:
        def ceilings(at: Positions) -> list[tuple[Variable, int]]:
            nonlocal calls
            calls += 1
            return [(variables[index + 1], at[variables[index]])]

        return ShiftLimit("test", str(index), "", (variables[index], variables[index + 1]), ceilings)

    begin = dict.fromkeys(variables, 6) | {variables[0]: 2}
    settled = settle(begin, [limit(index) for index in range(length - 1)])
    assert set(settled.positions.values()) == {2}
    assert calls < 4 * length

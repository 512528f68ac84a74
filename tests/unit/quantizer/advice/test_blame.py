"""What hurts, as the report tells it: parts of one whole, by cause and by layer."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from service.contracts.report import LayerFigures
from worker.quantizer.advice.blame import causes_of, with_blame
from worker.quantizer.advice.damage import Damage, Harm, Kind, Place

NODES = [f"n{k}" for k in range(12)]


@st.composite
def damages(draw: st.DrawFn) -> Damage:
    harms = {}
    for kind in draw(st.lists(st.sampled_from(list(Kind)), unique=True, max_size=4)):
        names = draw(st.lists(st.sampled_from(["", *NODES]), min_size=1, unique=True))
        noises = sorted((draw(st.floats(1e-6, 1.0)) for _ in names), reverse=True)
        places = tuple(Place(node, noise, "a fact") for node, noise in zip(names, noises, strict=True))
        harms[kind] = Harm(kind, draw(st.floats(1e-4, 1.0)), places)
    return Damage(harms, {})


def rows(*groups: tuple[str, ...]) -> list[LayerFigures]:
    return [LayerFigures(name=group[0], op="Conv", nodes=group) for group in groups]


@given(damages())
def test_parts_are_of_one_whole_and_the_worst_come_first(damage: Damage) -> None:
    causes = causes_of(damage)
    parts = [cause.error_percent for cause in causes]
    assert parts == sorted(parts, reverse=True)
    assert sum(parts) <= 100.1
    for cause in causes:
        places = [place.error_percent for place in cause.places]
        assert places == sorted(places, reverse=True)
        harm = damage.harms[Kind(cause.kind)]
        assert len(places) + cause.places_left_out == len(harm.places)
        if not cause.places_left_out:
            assert abs(sum(places) - cause.error_percent) < 0.1
    told = with_blame(rows(*((node,) for node in NODES)), damage)
    nowhere = sum(
        harm.noise * place.noise / sum(one.noise for one in harm.places)
        for harm in damage.harms.values()
        for place in harm.places
        if not place.node
    )
    if damage.harms:
        whole = sum(row.error_percent or 0.0 for row in told) + 100 * nowhere / damage.total
        assert abs(whole - 100) < 0.5
    else:
        assert causes == () and all(row.error_percent is None for row in told)


def test_a_row_has_the_error_of_all_its_nodes_and_one_in_float_has_none() -> None:
    harm = Harm(Kind.WEIGHT_ROUNDING, 0.5, (Place("n0", 0.3, "a"), Place("n1", 0.2, "b")))
    left = LayerFigures(name="n1", op="Relu", nodes=("n1",), reason="left in float", reason_code="left-in-float")
    both, alone, float_ = with_blame([*rows(("n0", "n1"), ("n2",)), left], Damage({harm.kind: harm}, {}))
    assert (both.error_percent, alone.error_percent, float_.error_percent) == (100.0, 0.0, None)

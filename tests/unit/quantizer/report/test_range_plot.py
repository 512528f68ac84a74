"""The drawing of ranges: well-formed, every tensor in it, higher figures higher up."""

from __future__ import annotations

from xml.etree import ElementTree

from hypothesis import given, settings
from hypothesis import strategies as st

from service.contracts.calibration import TensorRange
from service.contracts.report import AlgorithmFigures, RangeChange
from worker.quantizer.report.range_plot import publish_ranges, ranges_svg
from worker.quantizer.run.extra import ExtraFiles

SVG = "{http://www.w3.org/2000/svg}"


def change(tensor: str, before: float, after: float, kind: str = "weight", spread: float | None = None) -> RangeChange:
    return RangeChange(
        tensor=tensor,
        kind=kind,
        before=TensorRange(minimum=-before, maximum=before / 2),
        after=TensorRange(minimum=-after, maximum=after / 2),
        spread_before=spread,
        spread_after=spread,
    )


def marks(drawn: bytes) -> dict[str, list[float]]:
    """Heights of the two dots of each tensor, by the words of its tooltip; the first panel it is in."""
    found: dict[str, list[float]] = {}
    for group in ElementTree.fromstring(drawn).iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None and title.text is not None:
            found.setdefault(title.text, [float(dot.get("cy", "nan")) for dot in group.findall(f"{SVG}circle")])
    return found


def test_every_tensor_is_drawn_at_the_height_of_its_figures() -> None:
    found = marks(
        ranges_svg([change("wide", 100.0, 1.0), change("narrow", 10.0, 1.0), change("seen", 3, 4, "activation")])
    )
    assert set(found) == {"wide: 100 -> 1", "narrow: 10 -> 1", "seen: 3 -> 4"}
    wide, narrow = found["wide: 100 -> 1"], found["narrow: 10 -> 1"]
    assert wide[0] < narrow[0] < narrow[1] == wide[1]  # y grows downwards


def test_spreads_have_panels_of_their_own() -> None:
    assert "w: 7 -> 7" in marks(ranges_svg([change("w", 1.0, 1.0, spread=7.0)]))


def test_zeros_are_left_out() -> None:
    drawn = ranges_svg([change("zero", 0.0, 1.0)])
    assert not marks(drawn)
    assert b"nothing to show" in drawn


@settings(max_examples=60, deadline=None)
@given(st.text(), st.floats(1e-30, 1e30), st.floats(1e-30, 1e30))
def test_any_name_and_any_figure_gives_well_formed_xml(name: str, before: float, after: float) -> None:
    assert len(marks(ranges_svg([change(name, before, after)]))) == 1


def test_only_ranges_of_kept_algorithms_are_published() -> None:
    figures = AlgorithmFigures(method="cross_layer_equalization", kept=False, summary="", ranges=(change("w", 1, 2),))
    files = ExtraFiles()
    publish_ranges([figures], files)
    assert not files.all
    publish_ranges([figures.model_copy(update={"kept": True})], files)
    assert [(file.kind, file.filename) for file in files.all] == [("ranges_svg", "ranges.svg")]

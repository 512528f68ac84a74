"""What a report says of a training and of ranges: pictures, note, summary."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from service.contracts.report import AlgorithmFigures, RangeChange, TrainingEpoch, TrainingFigures
from service.contracts.specs import TensorRange
from tests.support.each import each
from worker.quantizer.report.plots import publish_ranges, publish_training, ranges_svg, training_svg
from worker.quantizer.report.words import trained_words, training_notes
from worker.quantizer.run.services import ExtraFiles

SVG = "{http://www.w3.org/2000/svg}"
SERIES = ["train loss", "validation loss", "top1", "learning rate", "oscillating", "frozen"]


def epoch(number: int, **changes: Any) -> TrainingEpoch:
    facts: dict[str, Any] = {
        **{"epoch": number, "steps": 4 * number, "metric": 80.0 + number, "frozen": 0.0},
        **{"train_loss": 1.0 / number if number else None, "validation_loss": 2.0 / (number + 1)},
        **{"learning_rate": 0.01 * number, "oscillating": 0.02 * number},
    }
    return TrainingEpoch.model_validate({**facts, **changes})


def training(*epochs: TrainingEpoch, **changes: Any) -> TrainingFigures:
    facts: dict[str, Any] = {
        **{"epochs": epochs or tuple(epoch(number) for number in range(5)), "best_epoch": 3, "metric": "top1"},
        **{"samples": 90, "validation_samples": 10, "learning_rate": 0.05, "device": "cpu", "ended": "patience"},
    }
    return TrainingFigures.model_validate({**facts, **changes})


def outcome(figures: TrainingFigures | None, *, kept: bool = True) -> AlgorithmFigures:
    return AlgorithmFigures(method="qat", kept=kept, summary="trained", training=figures)


def series(drawn: str) -> dict[str, list[list[tuple[float, float]]]]:
    """Every series by its name: its lines, each as places, and its dots."""
    found = {}
    for group in ElementTree.fromstring(drawn).iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None and title.text is not None:
            lines = [
                [place.split(",") for place in part.get("points", "").split()]
                for part in group.findall(f"{SVG}polyline")
            ]
            dots = [[(dot.get("cx", "nan"), dot.get("cy", "nan"))] for dot in group.findall(f"{SVG}circle")]
            found[title.text] = [[(float(x), float(y)) for x, y in line] for line in lines + dots]
    return found


def words(drawn: str) -> list[str]:
    return [found.text or "" for found in ElementTree.fromstring(drawn).iter(f"{SVG}text")]


def test_every_series_is_there_and_goes_where_its_figures_go() -> None:
    found = series(training_svg(training()))
    assert list(found) == SERIES
    ((before, *after),) = found["validation loss"]
    assert len(after) == 4
    assert [len(line) for line in found["train loss"]] == [4], "epoch 0 has none"
    assert found["train loss"][0][0][0] == after[0][0], "epochs stand in one place in every panel"
    heights = [y for _, y in (before, *after)]
    assert heights == sorted(heights), "a falling loss falls: y grows downwards"
    rising = [y for _, y in found["top1"][0]]
    assert rising == sorted(rising, reverse=True)
    # of both losses, which share their axes, the larger one stands higher
    assert after[0][1] == found["train loss"][0][0][1]
    assert after[-1][1] < found["train loss"][0][-1][1]


def test_axes_say_what_stands_on_them() -> None:
    told = words(training_svg(training(metric="<script>&")))
    for title in ("loss", "<script>& of the validation samples", "learning rate of weights", "share of weights (%)"):
        assert title in told
    assert told.count("epoch") == told.count("best") == 4
    assert {"0", "1", "2", "3", "4"} <= set(told)
    assert {"2", "0.25"} <= set(told), "the largest and the smallest loss"
    assert "8" in told, "8 % of the weights oscillate in the last epoch"


def test_a_long_training_is_thinned_and_keeps_its_ends() -> None:
    long = training(*(epoch(number) for number in range(5001)), best_epoch=7)
    (line,) = series(training_svg(long))["learning rate"]
    assert 400 < len(line) < 600
    assert (line[0], line[-1]) == (max(line, key=lambda at: at[1]), min(line, key=lambda at: at[1]))


def test_a_line_is_broken_where_a_figure_is_not_known() -> None:
    epochs = [epoch(0), epoch(1), epoch(2, metric=None), epoch(3), epoch(4)]
    assert sorted(len(line) for line in series(training_svg(training(*epochs)))["top1"]) == [2, 2]
    lonely = [epoch(0, metric=None), epoch(1), epoch(2, metric=None)]
    assert [len(line) for line in series(training_svg(training(*lonely)))["top1"]] == [1]
    without = training_svg(training(*(epoch(number, metric=None) for number in range(3)), metric=None))
    assert "nothing to show" in words(without)
    assert series(without)["metric"] == []


numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@given(st.text(), st.lists(st.tuples(numbers, numbers, numbers), max_size=5), st.integers(-1, 6))
def test_any_figures_give_well_formed_xml_with_all_series(
    metric: str, rows: list[tuple[float | None, float | None, float | None]], best: int
) -> None:
    epochs = tuple(
        epoch(k, train_loss=train, validation_loss=validation, metric=value)
        for k, (train, validation, value) in enumerate(rows)
    )
    figures = training(metric=metric, best_epoch=best).model_copy(update={"epochs": epochs})
    drawn = training_svg(figures)
    assert "nan" not in drawn.replace(metric, "")
    for lines in series(drawn).values():
        for x, y in (place for line in lines for place in line):
            assert 0.0 <= x <= 640.0
            assert 0.0 <= y <= 240.0
    assert {"train loss", "validation loss", "learning rate", "oscillating", "frozen"} <= set(series(drawn))


@each("kept", [True, False])
def test_the_picture_is_a_file_of_the_run(kept: bool) -> None:
    files = ExtraFiles()
    publish_training([outcome(None)], files)
    assert (files.all, training_notes([outcome(None)]), trained_words([outcome(None)])) == ((), [], "")
    publish_training([outcome(None), outcome(training(), kept=kept)], files)
    (file,) = files.all
    assert (file.kind, file.filename, file.media_type) == ("training_svg", "training.svg", "image/svg+xml")
    assert isinstance(file.content, bytes)
    assert list(series(file.content.decode())) == SERIES


def test_the_note_tells_how_it_went() -> None:
    figures = training(best_epoch=3)
    (note,) = training_notes([outcome(figures)])
    for told in (
        "qat trained 4 epochs (16 steps) on 90 samples with 10 held out (cpu)",
        "epoch 3 was the best by top1 (83)",
        "learning rate 0.05",
        "(patience)",
        "8.00% of the weights were oscillating and 0.00% frozen",
    ):
        assert told in note
    assert trained_words([outcome(figures)]) == "trained to epoch 3"
    for ended in ("epochs", "steps", "seconds"):
        (note,) = training_notes([outcome(training(ended=ended))])
        assert "it ended because" in note
    vain = training(epoch(0), epoch(1), best_epoch=0, metric=None, ended="steps")
    (note,) = training_notes([outcome(vain, kept=False)])
    assert "trained 1 epoch (4 steps)" in note and "learning rate 0.05" in note
    assert "no epoch was better than the network before it, by the validation loss" in note
    assert note.endswith("; it was not kept")
    assert trained_words([outcome(vain)]) == trained_words([outcome(training(), kept=False)]) == ""


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
    assert "w: 7 -> 7" in marks(ranges_svg([change("w", 1.0, 1.0, spread=7.0)])), "spreads have panels of their own"
    zeros = ranges_svg([change("zero", 0.0, 1.0)])
    assert not marks(zeros)
    assert b"nothing to show" in zeros


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

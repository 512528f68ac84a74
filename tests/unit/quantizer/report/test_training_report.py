"""What a report says of a training: its picture, its note, its summary."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contracts.report import AlgorithmFigures, TrainingEpoch, TrainingFigures
from worker.quantizer.report.training_plot import publish_training, training_svg
from worker.quantizer.report.training_words import trained_words, training_notes
from worker.quantizer.run.extra import ExtraFiles

SVG = "{http://www.w3.org/2000/svg}"
SERIES = ["train loss", "validation loss", "top1", "learning rate", "oscillating", "frozen"]


def epoch(number: int, **changes: Any) -> TrainingEpoch:
    facts: dict[str, Any] = {
        "epoch": number,
        "steps": 4 * number,
        "train_loss": 1.0 / number if number else None,
        "validation_loss": 2.0 / (number + 1),
        "metric": 80.0 + number,
        "learning_rate": 0.01 * number,
        "oscillating": 0.02 * number,
        "frozen": 0.0,
    }
    return TrainingEpoch.model_validate({**facts, **changes})


def training(*epochs: TrainingEpoch, **changes: Any) -> TrainingFigures:
    facts: dict[str, Any] = {
        "epochs": epochs or tuple(epoch(number) for number in range(5)),
        "best_epoch": 3,
        "metric": "top1",
        "samples": 90,
        "validation_samples": 10,
        "learning_rate": 0.05,
        "device": "cpu",
        "ended": "patience",
    }
    return TrainingFigures.model_validate({**facts, **changes})


def outcome(figures: TrainingFigures | None, *, kept: bool = True) -> AlgorithmFigures:
    return AlgorithmFigures(method="qat", kept=kept, summary="trained", training=figures)


def series(drawn: str) -> dict[str, list[list[tuple[float, float]]]]:
    """Every series by its name: its lines, each as places."""
    found = {}
    for group in ElementTree.fromstring(drawn).iter(f"{SVG}g"):
        title = group.find(f"{SVG}title")
        if title is not None and title.text is not None:
            lines = [
                [(float(x), float(y)) for x, y in (point.split(",") for point in part.get("points", "").split())]
                for part in group.findall(f"{SVG}polyline")
            ]
            dots = [
                [(float(dot.get("cx", "nan")), float(dot.get("cy", "nan")))] for dot in group.findall(f"{SVG}circle")
            ]
            found[title.text] = lines + dots
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
    told = words(training_svg(training()))
    for title in ("loss", "top1 of the validation samples", "learning rate of weights", "share of weights (%)"):
        assert title in told
    assert told.count("epoch") == told.count("best") == 4
    assert {"0", "1", "2", "3", "4"} <= set(told)
    assert {"2", "0.25"} <= set(told), "the largest and the smallest loss"
    assert "8" in told, "8 % of the weights oscillate in the last epoch"


def test_a_line_is_broken_where_a_figure_is_not_known() -> None:
    epochs = [epoch(0), epoch(1), epoch(2, metric=None), epoch(3), epoch(4)]
    assert sorted(len(line) for line in series(training_svg(training(*epochs)))["top1"]) == [2, 2]
    lonely = [epoch(0, metric=None), epoch(1), epoch(2, metric=None)]
    assert [len(line) for line in series(training_svg(training(*lonely)))["top1"]] == [1]
    without = training_svg(training(*(epoch(number, metric=None) for number in range(3)), metric=None))
    assert "nothing to show" in words(without)
    assert series(without)["metric"] == []


def test_a_long_training_is_thinned_and_keeps_its_ends() -> None:
    long = training(*(epoch(number) for number in range(5001)), best_epoch=7)
    (line,) = series(training_svg(long))["learning rate"]
    assert 400 < len(line) < 600
    rate = [y for _, y in line]
    assert (line[0], line[-1]) == (max(line, key=lambda at: at[1]), min(line, key=lambda at: at[1]))
    assert rate == sorted(rate, reverse=True)


def test_it_is_legible_without_scripts() -> None:
    drawn = training_svg(training(metric="<script>&"))
    root = ElementTree.fromstring(drawn)
    assert {found.tag.removeprefix(SVG) for found in root.iter()} == {
        "svg", "rect", "g", "title", "text", "line", "polyline",
    }  # fmt: skip
    background = root.find(f"{SVG}rect")
    assert background is not None
    assert background.get("fill") == "white"
    colors = {found.get("fill") for found in root.iter(f"{SVG}text")}
    assert all(color is not None and sum(bytes.fromhex(color[1:])) < 3 * 128 for color in colors), "dark on light"
    assert "<script>" not in drawn
    assert "<script>&" in series(drawn)


numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)


@settings(max_examples=60, deadline=None)
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


@pytest.mark.parametrize("kept", [True, False])
def test_the_picture_is_a_file_of_the_run(kept: bool) -> None:
    files = ExtraFiles()
    publish_training([outcome(None), outcome(training(), kept=kept)], files)
    (file,) = files.all
    assert (file.kind, file.filename, file.media_type) == ("training_svg", "training.svg", "image/svg+xml")
    assert isinstance(file.content, bytes)
    assert list(series(file.content.decode())) == SERIES


def test_nothing_trained_nothing_published() -> None:
    files = ExtraFiles()
    publish_training([outcome(None)], files)
    assert files.all == ()
    assert training_notes([outcome(None)]) == []
    assert trained_words([outcome(None)]) == ""


def test_the_note_tells_how_it_went() -> None:
    figures = training(best_epoch=3)
    assert training_notes([outcome(figures)]) == [
        "qat trained 4 epochs (16 steps) on 90 samples with 10 held back (cpu); epoch 3 was the best by top1 (83); "
        "learning rate 0.05; it ended because no better epoch came "
        "(patience); at the end 8.00% of the weights were oscillating and 0.00% frozen"
    ]
    assert trained_words([outcome(figures)]) == "trained to epoch 3"


def test_a_training_to_no_avail_says_so() -> None:
    figures = training(epoch(0), epoch(1), best_epoch=0, metric=None, ended="steps")
    (note,) = training_notes([outcome(figures, kept=False)])
    assert "trained 1 epoch (4 steps)" in note
    assert "no epoch was better than the network before it, by the validation loss" in note
    assert "learning rate 0.05" in note
    assert note.endswith("; it was not kept")
    assert trained_words([outcome(figures)]) == ""
    assert trained_words([outcome(training(), kept=False)]) == ""


@pytest.mark.parametrize("ended", ["epochs", "steps", "seconds", "patience"])
def test_every_end_has_words(ended: str) -> None:
    (note,) = training_notes([outcome(training(ended=ended))])
    assert "it ended because" in note

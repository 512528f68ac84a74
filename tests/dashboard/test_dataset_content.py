"""The page of a dataset shows what is in it: classes, values and waveforms, each drawn and as figures."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from service.contracts.dataset import (
    MAX_BINS,
    MAX_CLASSES,
    MAX_PROFILED_ARRAYS,
    ArraySummary,
    DataProfile,
    DatasetSummary,
    LabelSummary,
    PreprocessingSpec,
)
from service.dashboard import datasets
from service.dashboard.datasets import class_outline
from tests.dashboard.test_resources import shown as page_at
from tests.support.filled import HOSTILE_CLASS, class_counts, full_profile, profiled_summary, value_profile, waveform
from tests.support.front import Front, dataset_summary
from tests.support.media import archive, wav
from worker.quantizer.data import inspect_dataset


def shown(front: Front, summary: DatasetSummary) -> str:
    return page_at(front, f"/datasets/{front.ready_dataset(summary)}")


def part(page: str, name: str) -> str:
    """One section of it."""
    found = re.search(rf'<section aria-labelledby="{name}">.*?</section>', page, re.DOTALL)
    assert found is not None, f"there is no section {name}"
    return found[0]


def pictures(text: str) -> list[ElementTree.Element]:
    return [ElementTree.fromstring(svg) for svg in re.findall(r"<svg .*?</svg>", text, re.DOTALL)]


def figures(text: str) -> list[list[str]]:
    """Rows of the table that stands behind a drawing."""
    (body,) = re.findall(r"<details>.*?<tbody>(.*?)</tbody>", text, re.DOTALL)
    cells = [re.findall(r"<t[hd][^>]*>(.*?)</t[hd]>", row, re.DOTALL) for row in re.findall(r"<tr>.*?</tr>", body)]
    return [[html.unescape(re.sub(r"<[^>]*>", "", cell)) for cell in row] for row in cells]


def with_profile(profile: DataProfile | None, **changes: Any) -> DatasetSummary:
    return dataset_summary().model_copy(update={"profile": profile, **changes})


def test_classes_values_and_waveforms_are_drawn(sqlite_front: Front) -> None:
    page = shown(sqlite_front, profiled_summary())
    classes = part(page, "classes")
    assert "3 classes of 4 to 20 samples each." in classes
    (picture,) = pictures(classes)
    assert picture.get("role") == "img" and "3 in all" in str(picture.get("aria-label"))
    assert [item.text for item in picture.iter("text")][:4] == ["cat", "20", "dog", "8"]
    assert [row[0] for row in figures(classes)] == ["0", "1", "2"]
    assert figures(classes)[1] == ["1", "dog", "8"]
    assert HOSTILE_CLASS not in html.unescape(classes) and "<svg onload" not in classes
    values = part(page, "values")
    (picture,) = pictures(values)
    assert ": counts; " in str(picture.get("aria-label"))
    assert len(list(picture.iter("rect"))) == len(figures(values)) == 5, "an empty bin has no row"
    assert "mean and counts are of 3,925 of 6,144 values (63.88 %)" in values
    assert all(f'data-label="{word}">' in part(page, "facts") for word in ("Minimum", "Maximum", "Mean"))
    waves = part(page, "waveforms")
    assert [str(one.get("aria-label"))[:20] for one in pictures(waves)] == [f"Waveform of sample {k}" for k in range(5)]
    heights = []
    for one in pictures(waves):
        points = [point.split(",") for line in one.iter("polyline") for point in str(line.get("points")).split()]
        heights.append(max(float(y) for _, y in points) - min(float(y) for _, y in points))
    assert heights == pytest.approx([0, 15, 30, 45, 60], abs=0.2), "on one scale"
    assert figures(waves)[4] == ["4", "1.00 s", "−8000", "8000", "24.4 % of full scale"]


def test_classes_without_names_and_without_samples(sqlite_front: Front) -> None:
    labels = LabelSummary(array="labels", count=9, minimum=0, maximum=5, dtype="int64", shape=(9,))
    profile = DataProfile(classes=class_counts(5, 4))
    text = part(shown(sqlite_front, with_profile(profile, labels=labels)), "classes")
    assert "4 of the 6 classes up to the highest label have no samples." in text
    assert figures(text) == [["0", "5"], ["1", "4"]]


def test_classes_that_have_no_samples_are_gaps_of_the_outline() -> None:
    drawn = class_outline((0, 3), (1, 2), "samples by class")
    (points,) = re.findall(r'points="([^"]*)"', drawn)
    heights = [float(point.split(",")[1]) for point in points.split()]
    assert heights == [160, 90, 90, 160, 160, 160, 160, 20, 20, 160]


def test_a_thousand_classes_are_drawn_in_one_outline_and_of_more_the_largest_told(sqlite_front: Front) -> None:
    counts = class_counts(*(1 + k % 7 for k in range(MAX_CLASSES)))
    page = shown(sqlite_front, with_profile(DataProfile(classes=counts)))
    (picture,) = pictures(part(page, "classes"))
    (outline,) = picture.iter("polyline")
    assert len(str(outline.get("points")).split()) == 2 * MAX_CLASSES // 5 + 2
    assert "25 samples in 5 classes" in part(page, "classes")
    assert len(figures(part(page, "classes"))) == MAX_CLASSES
    assert len(page) < 300_000
    counts = class_counts(9, 5).model_copy(update={"distinct": MAX_CLASSES + 1, "fewest": 1})
    text = part(shown(sqlite_front, with_profile(DataProfile(classes=counts))), "classes")
    assert pictures(text) == []
    assert "Too many classes for a chart" in text and "the 2 largest classes" in text


def test_constant_huge_empty_and_unknown_values(sqlite_front: Front) -> None:
    constant = value_profile(7, low=2.0, high=3.0).model_copy(update={"maximum": 2.0, "mean": 2.0})
    text = part(shown(sqlite_front, with_profile(DataProfile(values={"x": constant}))), "values")
    assert "Every value is 2." in text and pictures(text) == []
    for most in (1e38, 1.7976931348623157e308):
        profile = DataProfile(values={"x": value_profile(*range(1, 8), low=-most, high=most)})
        (picture,) = pictures(part(shown(sqlite_front, with_profile(profile)), "values"))
        assert "nan" not in ElementTree.tostring(picture, "unicode")
    silent = waveform(0, 0.0).model_copy(update={"length": 0, "lows": (), "highs": ()})
    assert "polyline" not in datasets.waveform(silent, 0.0, "a")
    older = shown(sqlite_front, with_profile(None))
    assert "Classes and values are not counted" in older
    assert pictures(older) == [] and 'id="values"' not in older


def test_the_largest_page_stays_small(sqlite_front: Front) -> None:
    names = [f"array {k}" for k in range(MAX_PROFILED_ARRAYS)]
    arrays = {name: ArraySummary(dtype="float32", shape=(32, 8)) for name in names}
    full = value_profile(*range(10**6, 10**6 + MAX_BINS), low=-0.123456789, high=0.98765432)
    changes = {"values": dict.fromkeys(names, full), "classes": class_counts(*[10**6] * MAX_CLASSES)}
    page = shown(sqlite_front, with_profile(full_profile().model_copy(update=changes), arrays=arrays))
    assert "76 more arrays without a chart" in page
    assert len(page) < 700_000


def test_what_is_validated_is_what_is_shown(sqlite_front: Front, tmp_path: Path) -> None:
    tone = np.rint(9000 * np.sin(np.arange(900) / 5)).astype(np.int16)
    files = {f"{'a' if k % 4 else 'b'}/{k:02d}.wav": wav(tone // (k + 1), 8000) for k in range(20)}
    spec = PreprocessingSpec.model_validate({"sounds": {"sample_rate_hz": 8000, "length": 900}})
    page = shown(sqlite_front, inspect_dataset(archive(tmp_path / "x.tar", files), spec))
    assert figures(part(page, "classes")) == [["0", "a", "15"], ["1", "b", "5"]]
    assert len(pictures(part(page, "waveforms"))) == 16
    assert "-9000 to 9000" in part(page, "values")

"""Results by sample read back, and compared in pairs: against counting by hand and simulated models."""

from __future__ import annotations

import contextlib
import io
import zipfile
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from service.comparison import samples
from service.comparison.pairing import MeanDifference, mean_differences, paired
from service.comparison.samples import MOST_SAMPLES, Decisions, SamplesUnreadableError, read_samples
from tests.support.each import each
from worker.quantizer.evaluation.decisions import OutputDecisions as Written
from worker.quantizer.evaluation.decisions import packed

CLASSES = st.lists(st.tuples(*[st.integers(0, 9)] * 3), min_size=1, max_size=50)


def one_hot(classes: list[int]) -> Any:
    return np.eye(10, dtype=np.float32)[classes] * 5


@given(CLASSES, st.booleans())
def test_what_the_engine_writes_is_read(samples: list[tuple[int, int, int]], labeled: bool) -> None:
    before, after, labels = (list(column) for column in zip(*samples, strict=True))
    written = Written()
    written.update(one_hot(before), one_hot(after), np.array(labels) if labeled else None)
    found = read_samples(packed(written.arrays)).decisions
    assert found is not None
    assert found.labeled is labeled
    assert found.quantized.tolist() == after
    assert found.expected.tolist() == (labels if labeled else before)
    assert found.right.tolist() == [a == e for a, e in zip(after, found.expected.tolist(), strict=True)]


def npz(columns: dict[str, bytes]) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in columns.items():
            archive.writestr(f"{name}.npy", data)
    return stream.getvalue()


def npy(array: Any, *, version: tuple[int, int] = (1, 0)) -> bytes:
    stream = io.BytesIO()
    np.lib.format.write_array(stream, array, version=version, allow_pickle=True)
    return stream.getvalue()


def claimed(shape: str, dtype: str = "<i4", data: bytes = b"") -> bytes:
    head = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b" " * (64 - (len(head) + 11) % 64) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(head).to_bytes(2, "little") + head + data


FINE = npy(np.arange(4, dtype=np.int32))


NO_CLASSES = [
    npy(np.array([{}], dtype=object)), npy(np.arange(4.0)), npy(np.arange(4, dtype=np.int32).reshape(2, 2)),
    npy(np.arange(4, dtype=">i4")), npy(np.arange(5, dtype=np.int32)),
    npy(np.arange(4, dtype=np.int32), version=(2, 0)), FINE[:-1], FINE + b"more", claimed("(4000000000000,)"),
    claimed(f"({MOST_SAMPLES + 1},)", data=bytes(4 * MOST_SAMPLES + 4)), claimed("(-1,)"), claimed("(4.5,)"),
    claimed("(4," * 3000 + ")" * 3000), claimed("__import__('os').abort()"), b"",
]  # fmt: skip
NO_METRICS = [
    npy(np.arange(4, dtype=np.float32)), npy(np.arange(5.0)),
    *(npy(np.array([0.0, value, 0.0, 0.0])) for value in (np.nan, np.inf)),
]  # fmt: skip


@each(
    "data",
    [
        *(npz({"float_class": FINE, "quantized_class": hostile}) for hostile in NO_CLASSES),
        *(npz({"float_class": FINE, "quantized_class": FINE, "metric.loss": metric}) for metric in NO_METRICS),
        b"",
        b"PK",
        packed({"float_class": np.arange(3, dtype=np.int32)})[:-30],
        npz({"float_class": FINE}),
        npz({f"c{k}": FINE for k in range(100)}),
    ],
)
def test_what_it_does_not_write_is_refused(data: bytes) -> None:
    with pytest.raises(SamplesUnreadableError):
        read_samples(data)


def test_metrics_need_no_decisions() -> None:
    found = read_samples(packed({"index": np.arange(4, dtype=np.int32), "metric.rmse": np.arange(4.0)}))
    assert found.decisions is None
    assert found.metrics["rmse"].tolist() == [0, 1, 2, 3]


def test_more_bytes_than_any_job_keeps_are_not_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    data = packed({"metric.loss": np.zeros(1000)})
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        whole = sum(info.file_size for info in archive.infolist())
    monkeypatch.setattr(samples, "_MOST_BYTES", whole)
    assert len(read_samples(data).metrics["loss"]) == 1000
    monkeypatch.setattr(samples, "_MOST_BYTES", whole - 1)
    with pytest.raises(SamplesUnreadableError, match="bytes"):
        read_samples(data)


@given(st.binary(max_size=4), st.integers(0, 600), st.sampled_from(["zip", "npy"]))
def test_flipped_bytes_end_in_an_error_or_in_columns(noise: bytes, place: int, where: str) -> None:
    if where == "npy":
        data = npz({"float_class": FINE, "quantized_class": FINE[:place] + noise + FINE[place + len(noise) :]})
    else:
        whole = npz({"float_class": FINE, "quantized_class": FINE})
        data = whole[:place] + noise + whole[place + len(noise) :]
    with contextlib.suppress(SamplesUnreadableError):
        decisions = read_samples(data).decisions
        assert decisions is None or len(decisions.right) == 4


SIDES = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2), st.integers(0, 2)), min_size=1, max_size=60)


def decisions(quantized: object, expected: object, *, labeled: bool = True) -> Decisions:
    return Decisions(np.asarray(quantized, dtype=np.int64), np.asarray(expected, dtype=np.int32), labeled)


@given(SIDES)
def test_sides_are_counted(samples: list[tuple[int, int, int]]) -> None:
    first, second, labels = (list(column) for column in zip(*samples, strict=True))
    found = paired(decisions(first, labels), decisions(second, labels))
    assert found is not None
    lost = [k for k, (a, b, label) in enumerate(samples) if a == label != b]
    won = [k for k, (a, b, label) in enumerate(samples) if b == label != a]
    assert found.flipped.tolist() == sorted(lost + won)
    assert tuple(found.counts) == (len(lost), len(won), len(samples))
    low, high = found.interval_percent
    assert low - 1e-9 <= found.drop_percent <= high + 1e-9
    assert found.drop_percent == pytest.approx(100 * (len(lost) - len(won)) / len(samples))
    back = paired(decisions(second, labels), decisions(first, labels))
    assert back is not None
    assert back.p_value == pytest.approx(found.p_value)
    assert back.interval_percent == pytest.approx((-high, -low), abs=1e-6)
    assert not (found.significantly_worse() and back.significantly_worse())


def test_only_the_same_samples_are_paired() -> None:
    one = decisions([0, 1], [0, 1])
    assert paired(one, decisions([0, 1], [1, 0])) is None
    assert paired(one, decisions([0, 1, 2], [0, 1, 2])) is None
    assert paired(one, decisions([0, 1], [0, 1], labeled=False)) is None
    assert paired(decisions([], []), decisions([], [])) is None
    assert paired(decisions([0, 1], [-1, -1]), decisions([0, 1], [-1, -1])) is None  # none has a label


def test_samples_without_a_label_do_not_count() -> None:
    labels = np.array([1, -1, 2, -1])
    written = [Written(), Written()]
    for one, after in zip(written, ([1, 0, 2, 1], [0, 0, 2, -1]), strict=True):
        one.update(np.array([1, 0, 0, 0]), np.array(after), labels)
    assert written[0].arrays["quantized_correct"].tolist() == [1, 0, 1, 0]
    first, second = (read_samples(packed(one.arrays)).decisions for one in written)
    assert first is not None and second is not None
    found = paired(first, second)
    assert found is not None
    assert (found.counts.lost, found.counts.won, found.counts.samples, found.drop_percent) == (1, 0, 2, 50.0)


def test_equal_models_are_rarely_called_worse_and_worse_ones_mostly() -> None:
    random = np.random.default_rng(5)
    labels = np.zeros(1000, dtype=np.int32)

    def alarms(wrong: float, flips: float, drop: float) -> int:
        found = 0
        for _ in range(200):
            base = random.random(1000) < wrong
            other = np.where(random.random(1000) < flips, ~base, base) | (random.random(1000) < drop)
            pair = paired(decisions(base, labels), decisions(other, labels))
            assert pair is not None
            found += pair.significantly_worse()
        return found

    # of half right ones flips go both ways alike
    assert alarms(0.5, 0.05, 0.0) <= 14, "one in forty of equal models at most, but for luck"
    assert alarms(0.1, 0.02, 0.03) >= 190


VALUES = st.lists(st.tuples(st.floats(-1e6, 1e6), st.floats(-1e6, 1e6)), min_size=3, max_size=60)


def compared(first: object, second: object, confidence: float = 0.95) -> MeanDifference:
    columns = [{"loss": np.asarray(values, dtype=np.float64)} for values in (first, second)]
    return mean_differences(columns[0], columns[1], confidence)["loss"]


@given(VALUES)
def test_sides_may_be_exchanged(values: list[tuple[float, float]]) -> None:
    first, second = (np.array(column) for column in zip(*values, strict=True))
    there, back = compared(first, second), compared(second, first)
    assert there.difference == pytest.approx(first.mean() - second.mean(), abs=1e-6)
    assert there.interval[0] <= there.difference <= there.interval[1]
    assert back.interval == pytest.approx((-there.interval[1], -there.interval[0]), rel=1e-9, abs=1e-6)
    assert back.p_value == pytest.approx(there.p_value)
    assert 0.0 <= there.p_value <= 1.0
    assert (there.method == "bootstrap") <= (len(values) >= 20)


def test_few_samples_are_judged_by_student() -> None:
    # t = 2 / (sqrt(10/4) / sqrt(5)) = 2.828 of 4 degrees of freedom: p = 0.0474 of any table
    found = compared([2.0, 3, 4, 5, 6], [2.0, 2, 2, 2, 2])
    assert (found.method, found.samples) == ("student", 5)
    assert found.difference == 2.0
    assert found.p_value == pytest.approx(0.0474, abs=5e-4)
    assert found.interval == pytest.approx((2 - 2.776 * np.sqrt(0.5), 2 + 2.776 * np.sqrt(0.5)), abs=1e-3)


def test_equal_files_differ_in_nothing() -> None:
    same = np.random.default_rng(0).normal(size=500)
    found = compared(same, same)
    assert (found.difference, found.interval, found.p_value) == (0.0, (0.0, 0.0), 1.0)
    assert compared(same + 1.0, same).p_value < 1e-9


@pytest.mark.parametrize(
    ("count", "times"),
    [(30, 60), (300, 60), *(pytest.param(*row, marks=pytest.mark.long) for row in ((30, 400), (1500, 50)))],
)
def test_intervals_hold_the_truth_and_equal_models_are_rarely_called_different(count: int, times: int) -> None:
    random = np.random.default_rng(count)
    held = alarms = 0
    for _ in range(times):
        first = random.exponential(size=count)
        second = first + random.normal(0.1, 0.5, count) * random.exponential(size=count)
        found = compared(second, first)
        held += found.interval[0] <= 0.1 <= found.interval[1]
        alarms += compared(second - 0.1, first).p_value <= 0.05
    assert held >= 0.88 * times
    assert alarms <= 0.12 * times


def test_a_p_value_that_no_set_reaches_is_students() -> None:
    random = np.random.default_rng(1)
    first = random.normal(size=400)
    found = compared(first + random.normal(1.0, 0.5, 400), first)
    assert found.method == "bootstrap"
    assert 0.0 < found.p_value < 1e-6


def test_only_columns_that_both_have_in_one_length_are_compared() -> None:
    first = {"a": np.arange(4.0), "b": np.arange(4.0), "c": np.arange(2.0)}
    second = {"a": np.arange(4.0), "b": np.arange(5.0), "c": np.arange(2.0), "d": np.arange(4.0)}
    assert set(mean_differences(first, second, 0.95)) == {"a"}
    assert mean_differences({}, second, 0.95) == {}

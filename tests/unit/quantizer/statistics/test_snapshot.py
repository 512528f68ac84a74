"""Reducers go on from a snapshot as if nothing had happened, and nothing else is taken for one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from service.contracts.config import parse_config
from service.contracts.specs import ActivationSpec
from tests.unit.quantizer.toolbox import normal
from worker.quantizer.run.arrays import pack, unpack
from worker.quantizer.statistics.ranges import range_reducer
from worker.quantizer.statistics.reducers import ChannelMean, MinMax, Reducer
from worker.quantizer.statistics.rows import ChannelExtremes, RowSample
from worker.quantizer.statistics.snapshot import Snapshot, restore

SAMPLES, SIZE = 24, 40
METHODS: dict[str, dict[str, Any]] = {
    "minmax": {"method": "minmax"},
    "moving average": {"method": "minmax", "moving_average": 0.1},
    "percentile": {"method": "percentile", "percentile": 95.0},
    "layerwise percentile": {"method": "layerwise_percentile"},
    "entropy": {"method": "entropy"},
    "distribution": {"method": "distribution"},
    "mse": {"method": "mse"},
}


def spec_of(method: dict[str, Any], **settings: Any) -> ActivationSpec:
    activation = parse_config({"activation": {"calibration": method, **settings}}).activation
    assert isinstance(activation, ActivationSpec)
    return activation


def reducers() -> dict[str, Reducer]:
    """One of every kind that a pass may be asked for."""
    of_ranges = {name: range_reducer(spec_of(method), samples=SAMPLES) for name, method in METHODS.items()}
    scale = {"scale": "power_of_two"}
    return {
        **of_ranges,
        "mse on a power of two": range_reducer(spec_of(METHODS["mse"], **scale), samples=SAMPLES),
        "non overflow": range_reducer(spec_of({"method": "non_overflow"}, **scale), samples=SAMPLES),
        "symmetric percentile": range_reducer(spec_of(METHODS["percentile"], symmetric=True), samples=SAMPLES),
        "channel mean": ChannelMean(),
        "channel extremes": ChannelExtremes(1),
        "rows": RowSample(rows=16, fewest=4),
    }


def fed(found: dict[str, Reducer], stream: np.ndarray, first: int, last: int, step: int) -> None:
    for start in range(first, last, step):
        batch = stream[start : min(start + step, last)]
        for reducer in found.values():
            reducer.update(batch, len(batch))


def results(found: dict[str, Reducer]) -> dict[str, Any]:
    """What each gives, as words: arrays are not compared by one truth."""
    return {name: repr(reducer.result()) for name, reducer in found.items()}  # type: ignore[attr-defined]


@settings(max_examples=20)
@given(batches=st.integers(0, 6), seed=st.integers(0, 99))
def test_a_pass_that_goes_on_gives_what_a_whole_one_gives(batches: int, seed: int) -> None:
    stream = normal(SAMPLES, 3, SIZE, seed=seed)
    whole, broken_off = reducers(), reducers()
    fed(whole, stream, 0, SAMPLES, 4)
    done = 4 * batches
    fed(broken_off, stream, 0, done, 4)
    data = Snapshot(list(broken_off.values())).to_bytes(done)
    going_on = reducers()
    assert restore(list(going_on.values()), data) == done
    fed(going_on, stream, done, SAMPLES, 4)
    assert results(going_on) == results(whole)


def test_long_streams_go_on_alike_where_values_are_sampled_and_tails_rounded() -> None:
    stream = normal(40, 70_000, seed=5)
    method = spec_of({"method": "mse", "bins": 128})
    made = [range_reducer(method, samples=40) for _ in range(3)]
    for batch in stream[:, None]:
        made[0].update(batch, 1)
    for batch in stream[:17, None]:
        made[1].update(batch, 1)
    restore([made[2]], Snapshot([made[1]]).to_bytes(17))
    for batch in stream[17:, None]:
        made[2].update(batch, 1)
    assert made[2].result() == made[0].result()


@pytest.mark.parametrize("what", ["more reducers", "another kind", "another order", "other bytes", "cut off"])
def test_what_belongs_to_others_changes_nothing(what: str) -> None:
    stream = normal(8, 3, SIZE)
    seen = {"a": MinMax(), "b": ChannelMean()}
    fed(seen, stream, 0, 8, 4)
    data = Snapshot(list(seen.values())).to_bytes(8)
    fresh: list[object] = [MinMax(), ChannelMean()]
    if what == "more reducers":
        fresh.append(MinMax())
    elif what == "another kind":
        fresh[1] = ChannelExtremes()
    elif what == "another order":
        fresh.reverse()
    elif what == "other bytes":
        data = pack({"head": np.zeros(3, np.uint8)})
    else:
        data = data[:-8]
    before = [repr(vars(reducer)) for reducer in fresh]
    with pytest.raises((ValueError, LookupError)):
        restore(fresh, data)
    assert [repr(vars(reducer)) for reducer in fresh] == before


def test_what_is_asked_for_shows_in_fresh_reducers() -> None:
    made = [
        range_reducer(spec_of({"method": "percentile", "percentile": share}), samples=count)
        for share, count in ((99.0, 8), (99.9, 8), (99.0, 9))
    ]
    assert len({Snapshot([reducer]).to_bytes(0) for reducer in made}) == 3


def test_arrays_come_back_as_they_were_and_objects_do_not_go_in() -> None:
    arrays = {
        "a/b": normal(2, 3), "none": np.zeros((0, 4), np.int64), "one": np.asarray(np.uint64(2**63)),
        "view": np.arange(12, dtype=">i2").reshape(3, 4).T, "truth": np.array([True, False]), "": np.float16([np.nan]),
    }  # fmt: skip
    found = unpack(pack(arrays))
    assert list(found) == list(arrays)
    for name, array in arrays.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].flags.writeable
    with pytest.raises(TypeError, match="object"):
        pack({"a": np.array([{}])})


@pytest.mark.parametrize("data", [b"", b"\0" * 8, b"\xff" * 40, pack({"a": np.zeros(3)})[:-1], pack({}) + b"x"])
def test_other_bytes_are_no_arrays(data: bytes) -> None:
    with pytest.raises(ValueError):
        unpack(data)

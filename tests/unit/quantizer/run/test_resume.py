"""A run that is broken off at any save goes on from there, and gives the bytes of a run that was not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from service.contracts.config import parse_config
from service.contracts.runner import DatasetSource
from tests.unit.quantizer.run.test_checkpoint import Listener
from tests.unit.quantizer.search.benches import chain_of_convolutions, samples
from worker.quantizer.pipeline import Provisions, Result, quantize
from worker.quantizer.run.cache import Cache
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.statistics import collect

INT4 = {"weight": {"dtype": "int4", "granularity": "per_tensor"}}
GOAL = {"kind": "distance", "metric": "sqnr", "limit": 60.0}
RECIPES: dict[str, dict[str, Any]] = {
    "ranges": {"activation": {"calibration": {"method": "mse"}}},
    "adaround": {**INT4, "algorithms": [{"method": "cross_layer_equalization"}, {"method": "adaround"}]},
    "adaquant": {**INT4, "algorithms": [{"method": "adaquant", "num_iterations": 20}]},
    "sensitivity": {"algorithms": [{"method": "sensitivity"}]},
    "autopilot": {**INT4, "algorithms": [{"method": "autopilot", "goal": GOAL, "budget": {"max_trials": 6}}]},
}


LONG = [pytest.param(name, marks=pytest.mark.long) for name in ("adaquant", "sensitivity", "autopilot")]


class Killed(BaseException):
    """As sudden as a signal: nobody catches it."""


class Passes(Listener):
    def __init__(self) -> None:
        super().__init__()
        self.begun: list[tuple[int, int | None]] = []
        self.at: tuple[int, int | None] | None = None

    def progress(self, stage: str, done: int = 0, total: int | None = None, *rest: Any, **words: Any) -> None:
        if stage == "statistics" and (self.at is None or done <= self.at[0]):
            self.begun.append((done, total))
        self.at = (done, total) if stage == "statistics" else None


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    monkeypatch.setattr(collect, "_MOST_TIME", 1e9)
    monkeypatch.setattr(collect, "_FIRST_SECONDS", 0.0)
    return Bench(tmp_path, monkeypatch)


class Bench:
    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._patch = folder, monkeypatch
        self.model, self.data = folder / "net.onnx", folder / "data.npz"
        onnx.save(chain_of_convolutions(3, batch="2"), self.model)
        np.savez(self.data, x=samples(16)["x"])

    def run(self, recipe: str, *, kept: str | None, cache: str | None = None, run: Listener | None = None) -> Result:
        folder = None if kept is None else self.folder / kept
        if folder is not None:
            folder.mkdir(exist_ok=True)
        evaluation = {"latency_runs": 1, "layer_samples": 1, "advice_seconds": 0}
        return quantize(
            self.model,
            parse_config({**RECIPES[recipe], "evaluation": evaluation}),
            DatasetSource(path=str(self.data)),
            run=run or Listener(),
            threads=1,
            provisions=Provisions(
                checkpoint_dir=folder, cache=None if cache is None else Cache(self.folder / cache, scope="one")
            ),
        )

    def killed_at(self, number: int, recipe: str, *, kept: str) -> bool:
        """Run until something has been saved ``number`` times; False if it is not so often."""
        original, saved = CheckpointStore.keep, []

        def keep(store: CheckpointStore, key: str, data: bytes, *, shared: bool = True) -> None:
            original(store, key, data, shared=shared)
            saved.append(key)
            if len(saved) == number:
                raise Killed

        with self._patch.context() as patch:
            patch.setattr(CheckpointStore, "keep", keep)
            try:
                self.run(recipe, kept=kept)
            except Killed:
                return True
        return False


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["ranges", "adaround", *LONG])
def test_a_run_that_was_broken_off_anywhere_gives_the_same_bytes(bench: Bench, recipe: str) -> None:
    whole = bench.run(recipe, kept=None)
    killed = 0
    for number in (1, 3, 8, 9, 11, 17):
        if not bench.killed_at(number, recipe, kept=f"kept-{number}"):
            break
        killed += 1
        listener = Listener()
        resumed = bench.run(recipe, kept=f"kept-{number}", run=listener)
        assert resumed.model == whole.model, f"killed after save {number}"
        assert [level for level, _ in listener.said].count("warning") == 0, listener.said
        assert ("info", "reusing results of an earlier attempt") in listener.said
    assert killed >= 3


@pytest.mark.slow
def test_a_pass_over_the_data_goes_on_where_it_was_broken_off_and_is_not_repeated(bench: Bench) -> None:
    assert bench.killed_at(3, "ranges", kept="kept")
    middle, after = Passes(), Passes()
    first = bench.run("ranges", kept="kept", run=middle)
    assert middle.begun == [(6, 16)], "three batches of two samples were done"
    second = bench.run("ranges", kept="kept", run=after)
    assert after.begun == [(16, 16)]
    assert first.model == second.model


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["adaround", pytest.param("autopilot", marks=pytest.mark.long)])
def test_another_job_of_the_tenant_takes_over_what_one_has_finished(bench: Bench, recipe: str) -> None:
    whole = bench.run(recipe, kept=None)
    listener = Passes()
    first = bench.run(recipe, kept="first", cache="cache")
    second = bench.run(recipe, kept="second", cache="cache", run=listener)
    assert first.model == second.model == whole.model
    assert ("info", "reusing results of an earlier job") in listener.said
    assert {done for done, total in listener.begun if total == 16} == {16}
    if recipe == "adaround":
        (_, algorithm) = second.report.algorithms
        assert "4 reused from an earlier attempt or job" in algorithm.summary


@pytest.mark.slow
def test_what_is_torn_or_holds_something_else_under_a_right_seal_is_told_and_done_again(bench: Bench) -> None:
    whole = bench.run("adaround", kept="kept", cache="cache")
    original = CheckpointStore._find_own
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CheckpointStore, "_find_own", lambda *at: original(*at) and b"of somebody else")
        listener = Listener()
        assert bench.run("adaround", kept="kept", run=listener).model == whole.model
    assert sum("unexpected content" in words for level, words in listener.said if level == "warning") >= 5
    places = [path for name in ("kept", "cache") for path in sorted((bench.folder / name).rglob("*")) if path.is_file()]
    for number, path in enumerate(places):
        path.write_bytes(path.read_bytes()[: number * 40] if number % 2 else b"foreign" * number)
    listener = Listener()
    assert bench.run("adaround", kept="kept", cache="cache", run=listener).model == whole.model
    assert sum(level == "warning" for level, _ in listener.said) >= 5

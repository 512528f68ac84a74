"""Recipes as a tree of drafts: what two recipes have in common is done once."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from service.contracts.config import QuantizationConfig
from service.contracts.report import Score
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.precision.autopilot.space import Basis, Chain, recipe_words
from worker.quantizer.precision.goal import Measured, Referee
from worker.quantizer.precision.mixed.assignment import ranges_of
from worker.quantizer.precision.structure import structure_of
from worker.quantizer.refine.calibration import calibrate
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.driver import try_step
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Step, Toolkit
from worker.quantizer.run.checkpoint import CheckpointStore
from worker.quantizer.run.extra import ExtraFile

_LATENCY_RUNS = 20
_NO_SCORE_DB = -200.0


@dataclass(frozen=True)
class Trial:
    """One recipe and how near it comes.

    Attributes:
        basis: how tensors are represented.
        chain: algorithms on top.
        score: on the samples held back.
        kept: False if its last algorithm had nothing to do, or made the network worse and was undone.
        resumed: it was scored by another attempt, or job.
        seconds: what its last algorithm and the scoring took.
    """

    basis: Basis
    chain: Chain
    score: Score
    kept: bool
    resumed: bool
    seconds: float

    @property
    def name(self) -> str:
        """For people."""
        return recipe_words(self.basis, self.chain)

    @property
    def sqnr_db(self) -> float:
        """Of the score; very low where undefined."""
        return _NO_SCORE_DB if self.score.sqnr_db is None else self.score.sqnr_db


@dataclass(frozen=True)
class Finalist:
    """A trial evaluated in full.

    Attributes:
        trial: the recipe.
        measured: how its model stands to the goal.
        size_bytes: of the model.
        latency_ratio: latency over that of the float model; measured once for all models with the same structure.
    """

    trial: Trial
    measured: Measured
    size_bytes: int
    latency_ratio: float


class Bench:
    """Makes, scores and evaluates the drafts of recipes on one prepared network.

    Args:
        draft: calibrated as the config says.
        toolkit: of the step.
        judge: scores drafts.
        referee: evaluates them.
    """

    def __init__(self, draft: Draft, toolkit: Toolkit, judge: Judge, referee: Referee) -> None:
        self.draft = draft
        self.case, self.services = toolkit.case, toolkit.services
        self.referee = referee
        self._toolkit = toolkit
        self.judge = judge
        self._drafts: dict[str, Draft] = {}
        self._trials: dict[str, Trial] = {}
        self._configs: dict[str, QuantizationConfig] = {}
        self._steps: list[Step[Any]] = []
        self._latencies: dict[str, float] = {}

    @property
    def trials(self) -> list[Trial]:
        """In the order in which they were made."""
        return list(self._trials.values())

    def trial(self, basis: Basis, chain: Chain) -> Trial:
        """The trial of a recipe; what an earlier attempt has scored is taken over.

        Raises:
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        key = _key(basis, chain)
        if key in self._trials:
            return self._trials[key]
        if chain:
            self.trial(basis, chain[:-1])  # so that it stands before this one
        found = self._store.load_as(f"trial {key}", partial(_trial, basis, chain))
        if found is not None:
            trial = found
        else:
            begin = time.monotonic()
            self.services.run.progress("autopilot", len(self._trials), None, "recipes", recipe_words(basis, chain))
            draft = self._make(basis, chain)
            kept = not chain or draft is not self._make(basis, chain[:-1])
            score = self.judge.score(draft)
            trial = Trial(basis, chain, score, kept, False, time.monotonic() - begin)
            document = {"score": score.model_dump(mode="json"), "kept": kept, "seconds": trial.seconds}
            self._store.save(f"trial {key}", json.dumps(document).encode(), shared=True)
        self._enter(key, trial)
        return trial

    def add(self, trial: Trial, draft: Draft) -> None:
        """Enter a trial that was made elsewhere."""
        key = _key(trial.basis, trial.chain)
        self._drafts[key] = draft
        self._enter(key, trial)

    def draft_of(self, trial: Trial) -> Draft:
        """The trial's draft, made again if an earlier attempt made it."""
        return self._make(trial.basis, trial.chain)

    def evaluate(self, trial: Trial) -> Finalist:
        """The figures of a trial's model on all data, which are told beside its score.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        finalist = self._evaluated(trial)
        figures = {
            "sqnr_db": trial.score.sqnr_db,
            self.referee.figure: finalist.measured.value,
            "size_bytes": finalist.size_bytes,
            "latency_ratio": finalist.latency_ratio,
        }
        self.services.run.metric("autopilot", self._number(_key(trial.basis, trial.chain)), figures)
        return finalist

    def _evaluated(self, trial: Trial) -> Finalist:
        key = f"evaluation {_key(trial.basis, trial.chain)}"
        found = self._store.load_as(key, json.loads)
        if found is not None:
            self._latencies.setdefault(found["structure"], found["latency_ratio"])
            return Finalist(trial, Measured.of(found["measured"]), found["size_bytes"], found["latency_ratio"])
        draft = self.draft_of(trial)
        model = draft.emitted().model
        structure, data = structure_of(model), to_bytes(model)
        measured = self.referee.measure(draft)
        if structure not in self._latencies:
            self._latencies[structure] = self.referee.latency_ratio(data, runs=_LATENCY_RUNS)
        finalist = Finalist(trial, measured, len(data), self._latencies[structure])
        if not self._store.is_kept:
            return finalist
        document = {
            "measured": measured.document,
            "structure": structure,
            "size_bytes": finalist.size_bytes,
            "latency_ratio": finalist.latency_ratio,
        }
        self._store.save(key, json.dumps(document).encode())
        return finalist

    def keep_model(self, finalist: Finalist, number: int) -> str:
        """Put the finalist's model among the files of the job; returns its name there."""
        name = f"pareto_{number}.onnx"
        data = self.draft_of(finalist.trial).emitted_bytes()
        self.services.files.add(ExtraFile(f"pareto_{number}_model", name, "application/octet-stream", data))
        return name

    def toolkit_of(self, basis: Basis, chain: Chain) -> Toolkit:
        """What a step works with on this basis; its checkpoints are its own."""
        config = self.config_of(basis)
        store = self._store.scoped(f"{_key(basis, chain)} ")
        case, services = replace(self.case, config=config), replace(self.services, checkpoint=store)
        return replace(self._toolkit, case=case, services=services, to_come=self._steps)

    def config_of(self, basis: Basis) -> QuantizationConfig:
        """The job's config on another basis."""
        if basis.name not in self._configs:
            self._configs[basis.name] = basis.config(self.case.config)
        return self._configs[basis.name]

    def expect(self, chains: Sequence[Chain]) -> None:
        """Say which algorithms will be tried, so that their statistics are collected together."""
        found = [algorithm for chain in chains for algorithm in chain]
        self._steps = [self._toolkit.step_of(one) for k, one in enumerate(found) if one not in found[:k]]

    def _enter(self, key: str, trial: Trial) -> None:
        """Number a finished trial and tell its score."""
        self._trials[key] = trial
        number, sqnr_db = self._number(key), trial.score.sqnr_db
        self.services.run.metric("autopilot", number, {"sqnr_db": sqnr_db})
        words = "an undefined SQNR" if sqnr_db is None else f"SQNR {sqnr_db:.4g} dB"
        self.services.run.log(f"autopilot, recipe {number}: {trial.name}, {words}")

    def _number(self, key: str) -> int:
        """Of a trial, from 1, in the order in which they were made."""
        return list(self._trials).index(key) + 1

    @property
    def _store(self) -> CheckpointStore:
        return self.services.checkpoint

    def _make(self, basis: Basis, chain: Chain) -> Draft:
        key = _key(basis, chain)
        if key not in self._drafts:
            self._drafts[key] = self._calibrated(basis) if not chain else self._extended(basis, chain)
        return self._drafts[key]

    def _calibrated(self, basis: Basis) -> Draft:
        case, services = replace(self.case, config=self.config_of(basis)), self.services
        draft = self.draft.replanned(case.config)
        draft.plan.silent = dict(self.draft.plan.silent)
        ranges = ranges_of(self.draft, draft.plan, case, services)
        return calibrate(draft, case, services, self._steps, kept=ranges)

    def _extended(self, basis: Basis, chain: Chain) -> Draft:
        step, before = self._toolkit.step_of(chain[-1]), self._make(basis, chain[:-1])
        return try_step(step, before, self.toolkit_of(basis, chain), self.judge).draft


def _trial(basis: Basis, chain: Chain, stored: bytes) -> Trial:
    document = json.loads(stored)
    return Trial(basis, chain, Score(**document["score"]), document["kept"], True, document["seconds"])


def _key(basis: Basis, chain: Chain) -> str:
    """The recipe in full, as a key."""
    document = [basis.name, basis.settings, [algorithm.model_dump(mode="json") for algorithm in chain]]
    return json.dumps(document, sort_keys=True)

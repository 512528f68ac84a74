"""Recipes as a tree of drafts: what two recipes have in common is done once."""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from service.contracts.algorithms import Algorithm
from service.contracts.calibration import TensorRange
from service.contracts.config import QuantizationConfig
from service.contracts.report import Score
from worker.quantizer.checkpoint import CheckpointStore, ScopedCheckpoints
from worker.quantizer.evaluation.compare import latencies_ms
from worker.quantizer.extra import ExtraFile
from worker.quantizer.graph.prepare import Prepared
from worker.quantizer.plan.build import build_plan
from worker.quantizer.plan.targets import move_grids
from worker.quantizer.precision.assignment import ranges_of
from worker.quantizer.precision.goal import Measured, Referee
from worker.quantizer.precision.recipes import Basis, Chain, recipe_words
from worker.quantizer.precision.structure import structure_of
from worker.quantizer.refine.calibration import calibrate, take_over
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Change, Step, Workshop
from worker.quantizer.runtime import Session, to_bytes
from worker.quantizer.statistics.collect import Request

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
        resumed: it was scored by an attempt that was broken off.
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
        workshop: of the step.
        judge: scores drafts.
        referee: evaluates them.
    """

    def __init__(self, draft: Draft, workshop: Workshop, judge: Judge, referee: Referee) -> None:
        self.draft = draft
        self.context = workshop.context
        self.referee = referee
        self._workshop = workshop
        self._judge = judge
        self._drafts: dict[str, Draft] = {}
        self._trials: dict[str, Trial] = {}
        self._configs: dict[str, QuantizationConfig] = {}
        self._steps: list[Step] = []
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
        stored = self._store.load(f"trial {key}")
        if stored is not None:
            document = json.loads(stored)
            trial = Trial(basis, chain, Score(**document["score"]), document["kept"], True, document["seconds"])
        else:
            begin = time.monotonic()
            self.context.run.progress("autopilot", len(self._trials), None, "recipes", recipe_words(basis, chain))
            draft = self._make(basis, chain)
            kept = not chain or draft is not self._make(basis, chain[:-1])
            score = self._judge.score(draft)
            trial = Trial(basis, chain, score, kept, False, time.monotonic() - begin)
            document = {"score": score.model_dump(mode="json"), "kept": kept, "seconds": trial.seconds}
            self._store.save(f"trial {key}", json.dumps(document).encode())
        self._trials[key] = trial
        return trial

    def add(self, trial: Trial, draft: Draft) -> None:
        """Enter a trial that was made elsewhere."""
        key = _key(trial.basis, trial.chain)
        self._trials[key], self._drafts[key] = trial, draft

    def draft_of(self, trial: Trial) -> Draft:
        """The trial's draft, made again if an earlier attempt made it."""
        return self._make(trial.basis, trial.chain)

    def score(self, draft: Draft) -> Score:
        """The judge's."""
        return self._judge.score(draft)

    def evaluate(self, trial: Trial) -> Finalist:
        """The figures of a trial's model on all data."""
        key = f"evaluation {_key(trial.basis, trial.chain)}"
        stored = self._store.load(key)
        if stored is not None:
            found = json.loads(stored)
            measured = Measured(found["value"], found["gap"], tuple(found["parts"]))
            self._latencies.setdefault(found["structure"], found["latency_ratio"])
            return Finalist(trial, measured, found["size_bytes"], found["latency_ratio"])
        draft = self.draft_of(trial)
        model = draft.emitted()
        structure, data = structure_of(model), to_bytes(model)
        measured = self.referee.measure(draft)
        if structure not in self._latencies:
            self._latencies[structure] = self._latency_ratio(data)
        finalist = Finalist(trial, measured, len(data), self._latencies[structure])
        document = {
            "value": measured.value,
            "gap": measured.gap,
            "parts": measured.parts,
            "structure": structure,
            "size_bytes": finalist.size_bytes,
            "latency_ratio": finalist.latency_ratio,
        }
        self._store.save(key, json.dumps(document).encode())
        return finalist

    def _latency_ratio(self, data: bytes) -> float:
        context = self.context
        session = Session(data, threads=context.threads, what="quantized model")
        before, after = latencies_ms(
            context.float_session, session, context.measured_on, context.inputs, runs=_LATENCY_RUNS, run=context.run
        )
        return after / before if before else 1.0

    def keep_model(self, finalist: Finalist, number: int) -> str:
        """Put the finalist's model among the files of the job; returns its name there."""
        name = f"pareto_{number}.onnx"
        data = self.draft_of(finalist.trial).emitted_bytes()
        self.context.files.add(ExtraFile(f"pareto_{number}_model", name, "application/octet-stream", data))
        return name

    def workshop_of(self, basis: Basis, chain: Chain) -> Workshop:
        """What a step works with on this basis; its checkpoints are its own."""
        config = self.config_of(basis)
        store = ScopedCheckpoints(self._store, f"{_key(basis, chain)} ")
        context = replace(self.context, config=config, checkpoint=store)

        def recalibrate(changed: Prepared, *, base: Draft | None = None, touched: Collection[str] = ()) -> Draft:
            plan = build_plan(changed.graph, config, changed.op_types)
            kept = {} if base is None else take_over(base.plan, plan, touched)
            return calibrate(changed, plan, context, self._steps, {}, kept=kept)

        return replace(self._workshop, context=context, recalibrate=recalibrate)

    def config_of(self, basis: Basis) -> QuantizationConfig:
        """The job's config on another basis."""
        if basis.name not in self._configs:
            self._configs[basis.name] = basis.config(self.context.config)
        return self._configs[basis.name]

    def expect(self, chains: Sequence[Chain]) -> None:
        """Say which algorithms will be tried, so that their statistics are collected together."""
        algorithms: dict[str, list[Algorithm]] = {}
        for algorithm in (algorithm for chain in chains for algorithm in chain):
            known = algorithms.setdefault(algorithm.method, [])
            if algorithm not in known:
                known.append(algorithm)
        self._steps = [_Expected([self._workshop.step_of(one) for one in found]) for found in algorithms.values()]

    @property
    def _store(self) -> CheckpointStore:
        return self.context.checkpoint

    def _make(self, basis: Basis, chain: Chain) -> Draft:
        key = _key(basis, chain)
        if key not in self._drafts:
            self._drafts[key] = self._calibrated(basis) if not chain else self._extended(basis, chain)
        return self._drafts[key]

    def _calibrated(self, basis: Basis) -> Draft:
        context = replace(self.context, config=self.config_of(basis))
        prepared = self.draft.prepared
        plan = build_plan(prepared.graph, context.config, prepared.op_types)
        plan.silent = dict(self.draft.plan.silent)
        ranges = ranges_of(self.draft, plan, context)
        known = {name: TensorRange(minimum=found.minimum, maximum=found.maximum) for name, found in ranges.items()}
        return calibrate(prepared, plan, context, self._steps, known)

    def _extended(self, basis: Basis, chain: Chain) -> Draft:
        before = self._make(basis, chain[:-1])
        workshop = self.workshop_of(basis, chain)
        change = self._workshop.step_of(chain[-1]).apply(before, workshop)
        if change.draft is None:
            return before
        move_grids(change.draft.graph, change.draft.plan, workshop.context.config)
        made = replace(change.draft, algorithm=chain[-1].method, changed=change.nodes)
        return before if self._judge.worse(made, before) is not None else made


class _Expected:
    """Asks for the statistics of several variants of one method; what they are is up to the variant that is tried."""

    def __init__(self, variants: Sequence[Step]) -> None:
        self._variants = variants
        self.method = variants[0].method

    def requests(self, draft: Draft) -> list[Request]:
        """Those of all variants."""
        return [request for step in self._variants for request in step.requests(draft)]

    def apply(self, draft: Draft, workshop: Workshop) -> Change:
        """What the first variant makes of it."""
        return self._variants[0].apply(draft, workshop)


def _key(basis: Basis, chain: Chain) -> str:
    """The recipe in full, as a key."""
    document = [basis.name, basis.settings, [algorithm.model_dump(mode="json") for algorithm in chain]]
    return json.dumps(document, sort_keys=True)

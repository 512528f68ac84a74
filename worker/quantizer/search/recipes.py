"""What the autopilot tries: representations and chains of algorithms, as a tree of drafts that share what they can."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import onnx_ir as ir

from service.contracts.algorithms import Algorithm, BiasCorrection, CrossLayerEqualization, SmoothQuant
from service.contracts.base import search_space
from service.contracts.config import QuantizationConfig
from service.contracts.report import Score
from service.contracts.specs import PercentileCalibration, is_integer
from worker.quantizer.graph.serialized import to_bytes
from worker.quantizer.ops.linear import CONVOLUTIONS, MATRIX_PRODUCTS
from worker.quantizer.refine.draft import Draft
from worker.quantizer.refine.driver import try_step
from worker.quantizer.refine.judge import Judge
from worker.quantizer.refine.step import Step, Toolkit, calibrate
from worker.quantizer.run.services import ExtraFile
from worker.quantizer.search.goal import GoalEvaluator, GoalMeasurement
from worker.quantizer.search.levels import ranges_of
from worker.quantizer.search.trials import Trials

Chain = tuple[Algorithm, ...]


@dataclass(frozen=True)
class Basis:
    """One way to represent activations and weights, before any algorithm."""

    name: str
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def is_smaller(self) -> bool:
        """True if weights take fewer bits than the job's config says."""
        return "weight" in self.settings

    def config(self, base: QuantizationConfig) -> QuantizationConfig:
        """``base`` with this basis's settings and without algorithms."""
        document = base.model_dump(mode="json")
        for key, values in self.settings.items():
            document[key] = {**document[key], **values}
        document["algorithms"] = []
        return QuantizationConfig.model_validate(document)


def bases(base: QuantizationConfig, *, smaller: bool) -> list[Basis]:
    """The bases to try, the config's own first.

    Args:
        base: the job's config.
        smaller: 4-bit weights are worth a try.
    """
    found = [Basis("as configured")]
    if not is_integer(base.activation.dtype):
        return found
    own = base.activation.calibration.model_dump(mode="json")
    percentiles = search_space(PercentileCalibration)["percentile"]
    methods = [(f"percentile {value:g}", {"method": "percentile", "percentile": value}) for value in percentiles]
    for words, settings in (*methods, ("mse", {"method": "mse"})):
        if any(own.get(key) != value for key, value in settings.items()):
            found.append(Basis(f"activations by {words}", {"activation": {"calibration": settings}}))
    if smaller and base.weight.dtype in ("int8", "uint8") and base.target in ("onnxruntime_cpu", "onnxruntime_gpu"):
        weight = {"dtype": "int4", "symmetric": True, "granularity": "per_channel", "calibration": {"method": "mse"}}
        found.append(Basis("4-bit weights", {"weight": weight}))
    return found


def chains(graph: ir.Graph) -> list[Chain]:
    """The quick chains that suit the network: those whose algorithms find something to do. Tried on the best bases."""
    op_types = {node.op_type for node in graph}
    found: list[Chain] = [(BiasCorrection(),)]
    if not op_types.isdisjoint(CONVOLUTIONS):
        found.append((CrossLayerEqualization(), BiasCorrection(mode="full")))
    if not op_types.isdisjoint(MATRIX_PRODUCTS) and "LayerNormalization" in op_types:
        found.append((SmoothQuant(), BiasCorrection()))
    return found


def variants(chain: Chain) -> list[Chain]:
    """The chain with one knob of one algorithm at another of the values that it declares to be worth a try."""
    found = []
    for place, algorithm in enumerate(chain):
        for knob, values in search_space(type(algorithm)).items():
            others = [value for value in values if value != getattr(algorithm, knob)]
            changed = [algorithm.model_copy(update={knob: value}) for value in others]
            found += [(*chain[:place], other, *chain[place + 1 :]) for other in changed]
    return found


def recipe_words(basis: Basis, chain: Chain) -> str:
    """The recipe for a reader: methods, and knobs of the search that are not at their defaults."""
    return f"{basis.name}: {' + '.join(map(_words, chain)) or 'calibration alone'}"


def _words(algorithm: Algorithm) -> str:
    record = type(algorithm)
    turned = [
        str(getattr(algorithm, knob))
        for knob in search_space(record)
        if getattr(algorithm, knob) != record.model_fields[knob].default
    ]
    return f"{algorithm.method} ({', '.join(turned)})" if turned else algorithm.method


# Recipes as a tree of drafts: what two recipes have in common is done once.

_LATENCY_RUNS = 20
_NO_SCORE_DB = -200.0


@dataclass(frozen=True)
class RecipeTrial:
    """One recipe and how near it comes."""

    basis: Basis  # how tensors are represented
    chain: Chain  # algorithms on top
    score: Score  # on the samples held back
    kept: bool  # False if its last algorithm had nothing to do, or made the network worse and was undone
    resumed: bool  # it was scored by another attempt, or job
    seconds: float  # what its last algorithm and the scoring took

    @property
    def name(self) -> str:
        """For people."""
        return recipe_words(self.basis, self.chain)

    @property
    def key(self) -> str:
        """The recipe in full."""
        return _key(self.basis, self.chain)

    @property
    def sqnr_db(self) -> float:
        """Of the score; very low where undefined."""
        return _NO_SCORE_DB if self.score.sqnr_db is None else self.score.sqnr_db

    @property
    def document(self) -> dict[str, Any]:
        """For a checkpoint; the recipe is its key."""
        return {"score": self.score.model_dump(mode="json"), "kept": self.kept, "seconds": self.seconds}


@dataclass(frozen=True)
class Finalist:
    """A trial evaluated in full."""

    trial: RecipeTrial  # the recipe
    measured: GoalMeasurement  # how its model stands to the goal
    size_bytes: int  # of the model
    latency_ratio: float  # latency over that of the float model; measured once for all models with the same structure
    structure: str = ""  # of the model, see ``structure_of``

    @property
    def document(self) -> dict[str, Any]:
        """For a checkpoint; the recipe is its key."""
        figures = {name: getattr(self, name) for name in ("size_bytes", "latency_ratio", "structure")}
        return {"measured": self.measured.document, **figures}


class RecipeTrials:
    """Makes, scores and evaluates the drafts of recipes on one prepared network.

    Args:
        draft: calibrated as the config says.
        toolkit: of the step.
        judge: scores drafts.
        evaluator: evaluates them.
    """

    def __init__(self, draft: Draft, toolkit: Toolkit, judge: Judge, evaluator: GoalEvaluator) -> None:
        self.draft = draft
        self.case, self.services = toolkit.case, toolkit.services
        self.judge, self.evaluator = judge, evaluator
        self._toolkit = toolkit
        self._drafts: dict[str, Draft] = {}
        self._steps: list[Step[Any]] = []
        store = self.services.checkpoint
        self.tried = Trials[RecipeTrial](store.scoped("trial "), told=self._tell, shared=True)
        self.finalists = Trials[Finalist](store.scoped("evaluation "))

    def trial(self, basis: Basis, chain: Chain) -> RecipeTrial:
        """The trial of a recipe; what an earlier attempt has scored is taken over.

        Raises:
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        key = _key(basis, chain)
        if chain and self.tried.get(key) is None:
            self.trial(basis, chain[:-1])  # so that it stands before this one
        return self.tried.of(
            key,
            lambda: self._score(basis, chain),
            lambda found: RecipeTrial(basis, chain, Score(**found["score"]), found["kept"], True, found["seconds"]),
        )

    def _score(self, basis: Basis, chain: Chain) -> RecipeTrial:
        begin = time.monotonic()
        self.services.run.progress("autopilot", len(self.tried), None, "recipes", recipe_words(basis, chain))
        draft = self._make(basis, chain)
        kept = not chain or draft is not self._make(basis, chain[:-1])
        return RecipeTrial(basis, chain, self.judge.score(draft), kept, False, time.monotonic() - begin)

    def add(self, trial: RecipeTrial, draft: Draft) -> None:
        """Enter a trial that was made elsewhere."""
        self._drafts[trial.key] = draft
        self.tried.enter(trial.key, trial)

    def draft_of(self, trial: RecipeTrial) -> Draft:
        """The trial's draft, made again if an earlier attempt made it."""
        return self._make(trial.basis, trial.chain)

    def evaluate(self, trial: RecipeTrial) -> Finalist:
        """The figures of a trial's model on all data, which are told beside its score.

        Raises:
            InvalidConfigError: the data cannot give the goal's metric.
            EngineError: the runtime failed.
            CanceledError: the run was canceled.
        """
        finalist = self.finalists.of(
            trial.key,
            lambda: self._evaluated(trial),
            lambda found: Finalist(trial, **{**found, "measured": GoalMeasurement.of(found["measured"])}),
        )
        figures = {
            "sqnr_db": trial.score.sqnr_db,
            self.evaluator.figure: finalist.measured.value,
            "size_bytes": finalist.size_bytes,
            "latency_ratio": finalist.latency_ratio,
        }
        self.services.run.metric("autopilot", self.tried.number(trial.key), figures)
        return finalist

    def _evaluated(self, trial: RecipeTrial) -> Finalist:
        draft = self.draft_of(trial)
        model = draft.emitted().model
        structure, data = structure_of(model), to_bytes(model)
        measured = self.evaluator.measure(draft)
        known = [finalist.latency_ratio for finalist in self.finalists if finalist.structure == structure]
        ratio = known[0] if known else self.evaluator.latency_ratio(data, runs=_LATENCY_RUNS)
        return Finalist(trial, measured, len(data), ratio, structure)

    def keep_model(self, finalist: Finalist, number: int) -> str:
        """Put the finalist's model among the files of the job; returns its name there."""
        name = f"pareto_{number}.onnx"
        data = self.draft_of(finalist.trial).emitted_bytes()
        self.services.files.add(ExtraFile(f"pareto_{number}_model", name, "application/octet-stream", data))
        return name

    def toolkit_of(self, basis: Basis, chain: Chain) -> Toolkit:
        """What a step works with on this basis; its checkpoints are its own."""
        config = self.config_of(basis)
        store = self.services.checkpoint.scoped(f"{_key(basis, chain)} ")
        case, services = replace(self.case, config=config), replace(self.services, checkpoint=store)
        return replace(self._toolkit, case=case, services=services, to_come=self._steps)

    def config_of(self, basis: Basis) -> QuantizationConfig:
        """The job's config on another basis."""
        return basis.config(self.case.config)

    def expect(self, chains: Sequence[Chain]) -> None:
        """Say which algorithms will be tried, so that their statistics are collected together."""
        found = [algorithm for chain in chains for algorithm in chain]
        self._steps = [self._toolkit.step_of(one) for k, one in enumerate(found) if one not in found[:k]]

    def _tell(self, number: int, trial: RecipeTrial) -> None:
        """Tell the score of a finished trial."""
        sqnr_db = trial.score.sqnr_db
        self.services.run.metric("autopilot", number, {"sqnr_db": sqnr_db})
        words = "an undefined SQNR" if sqnr_db is None else f"SQNR {sqnr_db:.4g} dB"
        self.services.run.log(f"autopilot, recipe {number}: {trial.name}, {words}")

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


def _key(basis: Basis, chain: Chain) -> str:
    """The recipe in full, as a key."""
    document = [basis.name, basis.settings, [algorithm.model_dump(mode="json") for algorithm in chain]]
    return json.dumps(document, sort_keys=True)


def structure_of(model: ir.Model) -> str:
    """Lowercase hex sha256 of the operators, their attributes, and the types and shapes of all constants.

    Two models with the same one run the same kernels on the same shapes, whatever their weights and scales are.

    Args:
        model: with all of its initializers.
    """
    digest = hashlib.sha256()
    for graph in (model.graph, *model.graph.subgraphs()):
        made = {value: f"input {k}" for k, value in enumerate(graph.inputs)}
        for position, node in enumerate(graph):
            words = [node.domain, node.op_type]
            words += [_operand(value, made) for value in node.inputs]
            words += sorted(_attribute(attribute) for attribute in node.attributes.values())
            digest.update(("|".join(words) + "\n").encode())
            made.update({value: f"{position} {k}" for k, value in enumerate(node.outputs)})
        digest.update(("|".join(_operand(value, made) for value in graph.outputs) + "\n").encode())
    return digest.hexdigest()


def _operand(value: ir.Value | None, made: dict[ir.Value, str]) -> str:
    if value is None:
        return ""
    if value in made:
        return made[value]
    tensor = value.const_value
    return f"outer {value.name}" if tensor is None else f"constant {tensor.dtype.name} {list(tensor.shape.numpy())}"


def _attribute(attribute: ir.Attr) -> str:
    if attribute.type in (ir.AttributeType.GRAPH, ir.AttributeType.GRAPHS):
        return attribute.name  # sub-graphs have their own turn
    if attribute.type is ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{attribute.name} {tensor.dtype.name} {list(tensor.shape.numpy())}"
    return f"{attribute.name} {attribute.value}"

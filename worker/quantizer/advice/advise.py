"""From a report to advice: what hurt, what would take it away on this target, and what became of trying it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from service.contracts.config import QuantizationConfig, parse_config, patch_between
from service.contracts.errors import CanceledError, InvalidConfigError, QuantmillError, UnsupportedModelError
from service.contracts.report import Advice, Report
from service.contracts.runner import RESULT_STAGE
from worker.quantizer.advice.damage import Damage, HarmKind, causes_of, find_damage, with_blame
from worker.quantizer.advice.table import RULES, AdviceContext, AdviceRule, relief, worst_layers
from worker.quantizer.advice.trial import AccuracyLoss, AdviceTrial, ConfigTrials, find_loss
from worker.quantizer.plan.types import QuantizationPlan
from worker.quantizer.refine.draft import Case, QuantizedDraft
from worker.quantizer.run.interface import Run, SilentRun
from worker.quantizer.run.progress import trials_seconds
from worker.quantizer.run.services import Services
from worker.quantizer.search.trials import ModelBuilder

# Keeps advice to what a target can do: what its rules would undo is none.

Document = dict[str, Any]
# What the plan is made of; other keys change how its numbers are found.
_PLANNED = ("activation", "weight", "bias", "exclude", "include", "overrides")


@dataclass(frozen=True)
class Fitted:
    """A change of a config that its target takes."""

    config: QuantizationConfig  # changed, resolved
    patch: Document  # that makes it of the one before (RFC 7396)


class Fitting:
    """Judges changes of one config.

    Args:
        config: resolved.
        builder: makes plans.
        run: asked before each plan whether to stop.
    """

    def __init__(self, config: QuantizationConfig, builder: ModelBuilder, run: Run | None = None) -> None:
        self.document: Document = config.model_dump(mode="json")
        self._config, self._builder, self._run = config, builder, run or SilentRun()

    def fit(self, changed: Mapping[str, Any]) -> Fitted | None:
        """The change, if it is one: valid, and not undone by the target's rules; else None.

        Args:
            changed: the whole config as it would be, as a document.
        """
        self._run.check()
        try:
            config = parse_config(changed)
        except InvalidConfigError:
            return None
        resolved = config.model_dump(mode="json")
        if resolved == self.document or config.target != self._config.target:
            return None
        # The short form of what was changed: what it leaves out is a default.
        patch = patch_between(self.document, changed)
        different = {key for key in resolved if resolved[key] != self.document[key]}
        if different <= {*_PLANNED, "tensor_ranges"} and different & set(_PLANNED) and not self._matters(config):
            return None
        return Fitted(config, patch)

    def _matters(self, config: QuantizationConfig) -> bool:
        """True if the plan gets another one."""
        try:
            return _representation(self._builder.planned(config)) != self._before
        except (InvalidConfigError, UnsupportedModelError):
            return False

    @cached_property
    def _before(self) -> Document:
        return _representation(self._builder.planned(self._config))


def _representation(plan: QuantizationPlan) -> Document:
    """How everything is represented, as far as it is known without numbers."""
    return {
        "activations": {name: entry.spec for name, entry in plan.activations.items()},
        "weights": {name: (entry.spec, entry.granularity) for name, entry in plan.weights.items()},
        "biases": {
            name: (entry.spec, None if entry.reason is None else entry.reason.code)
            for name, entry in plan.biases.items()
        },
        "nodes": {name: entry.role for name, entry in plan.nodes.items()},
    }


# Advice that goes together, without and with what takes long.
TOGETHER, THOROUGH = "together", "together-thorough"
# Pieces of advice in a report; what takes less of the noise away than this part of the best guess is not among them.
_MOST, _LEAST_PART = 8, 0.1
_LEAST_NOISE = 1e-4
# What a rule has to take away of all noise to go together with others.
_JOINED_PART = 0.005
# Advice that costs so many passes over the data has to give twice as much.
_DEAR_PASSES = 30.0
# Causes that are named, and nodes.
_TOLD = 2
_NODES = 8


@dataclass(frozen=True)
class AdviceCandidate:
    """A piece of advice before it is tried."""

    code: str  # stable
    message: str  # what to do
    relief: float  # noise that it takes away, as a guess
    fitted: Fitted | None  # the change; None: it is no matter of the config
    kinds: frozenset[HarmKind]  # causes that it treats
    cost: float  # of a trial, in passes over the calibration data
    nodes: tuple[str, ...] = ()  # that it is about; empty: the whole network


def with_advice(report: Report, done: QuantizedDraft, case: Case, services: Services, builder: ModelBuilder) -> Report:
    """The report with what hurts and what would help, the most helpful first; nothing of it where nothing was lost.

    Which advice there is follows from the model, the data and the config; the clock decides which of it is tried, and
    so in which order it stands. Where it cannot be looked for, a note says why: the model is made and measured.

    Args:
        report: whole, but for this.
        done: what it is about.
        case: what was quantized, on which data.
        services: of the run.
        builder: quantizes the same model under other configs.

    Raises:
        CanceledError: the run was canceled.
    """
    loss = None if done.plan.is_empty else find_loss(report, case.config.evaluation)
    changes: dict[str, Any] = {}
    if loss is not None:
        try:
            changes = _advised(report, loss, done, case, services, builder)
        except CanceledError:
            raise
        except QuantmillError as error:
            changes["notes"] = (*report.notes, f"advice is not available: {error.detail}")
    return report.model_copy(update={**changes, "stages": tuple(services.stages.figures)})


def _advised(
    report: Report, loss: AccuracyLoss, done: QuantizedDraft, case: Case, services: Services, builder: ModelBuilder
) -> dict[str, Any]:
    """The fields of the report that tell of it."""
    limit = 0.0 if loss.is_small else case.config.evaluation.advice_seconds
    with services.stages.stage("advice", expected_seconds=trials_seconds(services.stages.spent_seconds, limit)):
        # what was measured is told before the trials, which may take as long as all that came before
        services.run.progress(RESULT_STAGE, message=report.summary)
        services.run.progress("advice")
        trials = ConfigTrials(builder, loss, done, case, services, seconds=limit)
        quiet = Services(trials.run, services.threads)
        damage = find_damage(done.filled.draft, case, quiet, sqnr_db=report.fidelity.sqnr_db)
        candidates = find_candidates(
            damage, Fitting(case.config, builder, services.run), sqnr_db=report.fidelity.sqnr_db
        )
        trials.run.total = len(candidates)
        tried = []
        for candidate in candidates:
            if candidate.fitted is None:
                trial = AdviceTrial(why="not tried: not a configuration change")
            else:
                trial = trials.attempt(candidate.code, candidate.fitted.config, candidate.cost)
            trials.run.done += 1
            tried.append((candidate, trial))
    tried.sort(key=lambda pair: _place(pair[1], loss))
    advice = tuple(_advice(candidate, trial, damage, loss) for candidate, trial in tried)
    return {"advice": advice, "causes": causes_of(damage), "layers": with_blame(report.layers, damage)}


def find_candidates(damage: Damage, fitting: Fitting, *, sqnr_db: float | None) -> list[AdviceCandidate]:
    """Advice that suits the damage and the target, the best guess first."""
    config = fitting.document
    setting = AdviceContext(config["target"], damage, sqnr_db)
    singles = sorted(_singles(damage, setting, fitting), key=lambda pair: -_worth(pair[0], pair[1].relief))
    best = max((candidate.relief for _, candidate in singles), default=0.0)
    if best < _LEAST_NOISE:
        return []
    kept = [(rule, candidate) for rule, candidate in singles if candidate.relief >= _LEAST_PART * best]
    found = [candidate for _, candidate in kept][:_MOST]
    rules = [rule for rule, _ in kept if not (rule.dear or rule.by_hand)]
    known = [candidate.fitted.config for candidate in found if candidate.fitted is not None]
    joined = []
    for code, worth in ((TOGETHER, _worth), (THOROUGH, lambda _, taken: taken)):
        candidate = _together(code, rules, worth, damage, setting, fitting)
        if candidate is not None and candidate.fitted is not None and candidate.fitted.config not in known:
            known.append(candidate.fitted.config)
            joined.append(candidate)
    return [*joined, *found][:_MOST]


def _singles(damage: Damage, setting: AdviceContext, fitting: Fitting) -> Iterator[tuple[AdviceRule, AdviceCandidate]]:
    """Every rule of the table that has something to say."""
    for rule in RULES:
        guess = relief(rule, damage)
        if guess <= 0:
            continue
        changed = rule.edit(fitting.document, setting)
        fitted = None if changed is None or rule.by_hand else fitting.fit(changed)
        if changed is None or (fitted is None and not rule.by_hand):
            continue
        kinds = frozenset(rule.treats) or frozenset(damage.harms)
        nodes = tuple(worst_layers(damage)) if rule.code == "worst-in-float" else ()
        yield rule, AdviceCandidate(rule.code, rule.message, guess, fitted, kinds, rule.cost, nodes)


def _together(
    code: str,
    rules: list[AdviceRule],
    worth: Callable[[AdviceRule, float], float],
    damage: Damage,
    setting: AdviceContext,
    fitting: Fitting,
) -> AdviceCandidate | None:
    """The rules that complement each other, applied one after another, each to what those before it leave.

    Args:
        code: of the advice.
        rules: to choose from.
        worth: of a rule and the noise that it takes away; the largest comes first.
        damage: to be mended.
        setting: what rules may look at.
        fitting: keeps them to what the target can do.
    """
    left = {kind: damage.noise(kind) for kind in damage.harms}
    document: Document = fitting.document
    chosen: list[AdviceRule] = []
    while rules:
        rule = max(rules, key=lambda one: worth(one, _taken(one, left)))  # the first of equals
        rules = [other for other in rules if other is not rule]
        if _taken(rule, left) < _JOINED_PART * damage.total:
            break
        changed = rule.edit(document, setting)
        if changed is None or fitting.fit(changed) is None:
            continue
        document = changed
        chosen.append(rule)
        left = {kind: noise * (1 - rule.treats.get(kind, 0.0)) for kind, noise in left.items()}
    fitted = fitting.fit(document) if len(chosen) > 1 else None
    if fitted is None:
        return None
    message = " ".join(rule.message for rule in chosen)
    kinds = frozenset(kind for rule in chosen for kind in rule.treats)
    taken = damage.total - sum(left.values())
    return AdviceCandidate(code, message, taken, fitted, kinds, sum(rule.cost for rule in chosen))


def _worth(rule: AdviceRule, taken: float) -> float:
    """Of two that give about as much, the one comes first that is quicker, or costs neither bytes nor time."""
    return taken / (1.0 + rule.cost / _DEAR_PASSES) / (2.0 if rule.dear else 1.0)


def _taken(rule: AdviceRule, left: dict[HarmKind, float]) -> float:
    """Noise that a rule takes away of what is left."""
    return sum(share * left.get(kind, 0.0) for kind, share in rule.treats.items())


def _place(trial: AdviceTrial, loss: AccuracyLoss) -> tuple[int, float, float]:
    """What helped by its figures, what was not tried in the order of guesses, what did not help."""
    if trial.helped and trial.score is not None:
        first, second = loss.rank(trial.score)
        return 0, -first, -second
    return (1 if trial.helped is None else 2), 0.0, 0.0


def _advice(candidate: AdviceCandidate, trial: AdviceTrial, damage: Damage, loss: AccuracyLoss) -> Advice:
    harms = [harm for harm in damage.harms.values() if harm.kind in candidate.kinds]
    worst = sorted(harms, key=lambda harm: -harm.noise)[:_TOLD]
    worst = [harm for harm in worst if harm.noise >= _LEAST_PART * worst[0].noise]
    places = [place.node for harm in worst for place in harm.places if place.node]
    return Advice(
        code=candidate.code,
        because="; ".join([loss.words, *(harm.words for harm in worst)]),
        message=candidate.message,
        config={} if candidate.fitted is None else candidate.fitted.patch,
        nodes=candidate.nodes or tuple(dict.fromkeys(places))[:_NODES],
        status="untried" if trial.helped is None else "tried",
        helped=trial.helped,
        why=trial.why,
        figure=trial.figure,
    )

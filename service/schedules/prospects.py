"""Validates a schedule's gate when it is created: names that do not exist, clauses that can never be met.

Refused is what no run to come could mend: a metric that no report of the template's config has, a job that has no
report and will have none. An alias could be made later, but one that is not there is a slip of the pen more often: it
is refused, too, unless the schedule itself gives it. What depends on data that another version may have is told.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from sqlalchemy.orm import Session

from service.contracts.base import nearest_name, read_stored
from service.contracts.dataset import DatasetSummary
from service.contracts.errors import FieldProblem, InvalidRequestError, problem_summary
from service.contracts.evaluation import AGREEMENT, DEFAULT_METRICS, EvaluationSpec
from service.contracts.regression import Baseline, MaxDrop, NotSignificantlyWorse, OfAlias, OfJob, RegressionGate
from service.jobs import repository as jobs
from service.jobs.errors import JobNotFoundError
from service.jobs.submission import Submission
from service.names import repository as names
from service.names.aliases.repository import alias_of
from service.names.kinds import DATASETS, MODELS
from service.names.repository import look_up

_HINT = (
    "Use existing names: create an alias with PUT /v1/models/NAME@VERSION/aliases/ALIAS, declare metrics "
    "under config.evaluation.metrics of the template."
)
_WITHOUT_REPORT = frozenset({"failed", "canceled"})


@dataclass
class _GateProblems:
    """What is wrong, and what is odd."""

    problems: list[FieldProblem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)

    def wrong(self, pointer: str, code: str, message: str) -> None:
        self.problems.append(FieldProblem(pointer=pointer, code=code, message=message))

    def odd(self, message: str) -> None:
        if message not in self.warnings:
            self.warnings.append(message)


def gate_prospects(
    session: Session,
    tenant_id: str,
    gate: RegressionGate,
    promote_to: str | None,
    given: Submission,
    *,
    elsewhere: str | None = None,
) -> list[str]:
    """What is odd about the gate of a schedule whose template was checked.

    Args:
        session: to read by.
        tenant_id: whose.
        gate: of the schedule.
        promote_to: likewise.
        given: the job of its template, as it would be submitted now.
        elsewhere: the field of the request that is the reason, where the request has no gate.

    Raises:
        InvalidRequestError: it names a metric, an alias or a job that no run could be judged by; one problem for each.
    """
    found = _GateProblems()
    for pointer, baseline in _baselines(gate):
        _look_at_baseline(session, tenant_id, found, elsewhere or pointer, baseline, promote_to, given)
    data = _measured_on(session, tenant_id, given)
    for k, clause in enumerate(gate.clauses):
        if isinstance(clause, MaxDrop | NotSignificantlyWorse) and clause.metric is not None:
            pointer = elsewhere or f"/gate/clauses/{k}/metric"
            _look_at_metric(found, pointer, clause.metric, given.evaluation, data)
    if found.problems:
        problems = tuple(dict.fromkeys(found.problems))
        raise InvalidRequestError(problem_summary(problems), errors=problems, hint=_HINT)
    return found.warnings


def _baselines(gate: RegressionGate) -> Iterator[tuple[str, Baseline]]:
    """Those that clauses are judged by, each with its place."""
    if not gate.clauses or any(clause.baseline is None for clause in gate.clauses):
        yield "/gate/baseline", gate.baseline
    for k, clause in enumerate(gate.clauses):
        if clause.baseline is not None:
            yield f"/gate/clauses/{k}/baseline", clause.baseline


def _look_at_baseline(
    session: Session,
    tenant_id: str,
    found: _GateProblems,
    pointer: str,
    baseline: Baseline,
    promote_to: str | None,
    given: Submission,
) -> None:
    below = pointer.startswith("/gate")
    if isinstance(baseline, OfAlias) and baseline.alias != promote_to and given.model is not None:
        name = given.model[0]
        if alias_of(session, MODELS, tenant_id, name, baseline.alias) is None:
            there = names.alias_words(session, MODELS, tenant_id, name)
            near = nearest_name(baseline.alias, there)
            told = f"did you mean {near!r}?" if near else f"its aliases: {', '.join(there) or 'none'}"
            place = f"{pointer}/alias" if below else pointer
            found.wrong(place, "alias-not-found", f"{name!r} has no alias {baseline.alias!r}; {told}")
    elif isinstance(baseline, OfJob):
        place = f"{pointer}/job_id" if below else pointer
        _look_at_job(session, tenant_id, found, place, baseline.job_id)


def _look_at_job(session: Session, tenant_id: str, found: _GateProblems, place: str, job_id: str) -> None:
    try:
        job = jobs.get(session, tenant_id, job_id)
    except JobNotFoundError as error:
        found.wrong(place, error.code, error.detail)
        return
    if job.kind != "quantize":
        found.wrong(place, "job-kind", f"job {job_id} is not a quantize job (kind {job.kind})")
    elif job.state in _WITHOUT_REPORT:
        found.wrong(
            place,
            "job-without-report",
            f"job {job_id} {'failed' if job.state == 'failed' else 'was canceled'} and has no report",
        )
    elif job.state != "succeeded":
        found.odd(
            f"Job {job_id} has not ended: gate clauses that compare with it are undecided until it has succeeded."
        )


def _look_at_metric(
    found: _GateProblems, pointer: str, metric: str, spec: EvaluationSpec, data: DatasetSummary | None
) -> None:
    declared = [one.name for one in spec.metrics]
    known = declared or list(DEFAULT_METRICS)
    if metric not in known:
        near = nearest_name(metric, known)
        told = f"did you mean {near!r}?" if near else f"their metrics: {', '.join(known)}"
        if metric == AGREEMENT:
            told = "it compares a model with its own float model; declare a metric to compare versions"
        found.wrong(pointer, "metric-unknown", f"reports of this config have no metric {metric!r}; {told}")
    elif not declared and (data is None or not data.has_classes):
        found.odd(
            "The data that the models are compared on currently has no class labels: reports will not "
            f"contain {metric}, and clauses about it will be undecided."
        )


def _measured_on(session: Session, tenant_id: str, given: Submission) -> DatasetSummary | None:
    dataset_id = given.job.evaluation_dataset_id or given.job.calibration_dataset_id
    if dataset_id is None:
        return None
    row = look_up(session, DATASETS, tenant_id, dataset_id)
    return None if row.summary is None else read_stored(DatasetSummary, row.summary)

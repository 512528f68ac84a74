"""The regression gate: how a job's result is judged against one that was accepted before."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field, StringConstraints

from service.contracts.base import MOST_ALIAS_CHARS, Contract, is_alias
from service.contracts.report import Interval

MOST_CLAUSES = 16
OnUndecided = Literal["fail", "pass"]
MetricName = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def _alias(word: str) -> str:
    if not is_alias(word):
        raise ValueError("must be a word of lower-case letters and digits, such as prod, and not 'latest'")
    return word


AliasWord = Annotated[str, Field(min_length=1, max_length=MOST_ALIAS_CHARS), AfterValidator(_alias)]


class LastPass(Contract):
    """The last accepted job of the schedule. If there is none yet, clauses hold and say so."""

    kind: Literal["last_pass"] = "last_pass"


class OfJob(Contract):
    """A given job."""

    kind: Literal["job"]
    job_id: Annotated[str, StringConstraints(max_length=64)]


class OfAlias(Contract):
    """The job behind an alias: for the model version that the alias refers to, the last accepted job of this schedule,
    or else the newest succeeded job.
    """

    kind: Literal["alias"]
    alias: AliasWord


Baseline = Annotated[LastPass | OfJob | OfAlias, Field(discriminator="kind")]


class MaxDrop(Contract):
    """Maximum drop of a metric of the quantized model compared with the baseline, in the metric's unit."""

    kind: Literal["max_drop"]
    metric: MetricName = Field(description="Name of the metric in the report.")
    max_drop: float = Field(ge=0)
    baseline: Baseline | None = Field(default=None, description="Default: the baseline of the gate.")


class NotSignificantlyWorse(Contract):
    """On the same samples, the quantized model is not significantly worse than the baseline's, by a two-sided test.

    Without ``metric`` it compares shares of correct decisions, by McNemar's exact test on prediction flips; if the
    output has no class per sample, the first metric of the report that both jobs keep by sample. A metric is compared
    by the paired bootstrap. If the jobs keep no results by sample, or were measured on different data, the clause is
    undecided.
    """

    kind: Literal["not_significantly_worse"]
    metric: MetricName | None = Field(
        default=None,
        description="Name of the metric in the report; default: metrics that are shares of correct predictions.",
    )
    alpha: float = Field(
        default=0.05, gt=0, lt=0.5, description="Significance level: p-values up to this count as significantly worse."
    )
    baseline: Baseline | None = Field(default=None, description="Default: the baseline of the gate.")


class SizeRatio(Contract):
    """Maximum size of the quantized model, as a multiple of the baseline's size."""

    kind: Literal["size"]
    max_ratio: float = Field(gt=0, le=1000)
    baseline: Baseline | None = Field(default=None, description="Default: the baseline of the gate.")


class LatencyRatio(Contract):
    """Maximum latency ratio (quantized divided by float), as a multiple of the baseline's latency ratio. Both models of
    a job are timed alternately, so load on the machine affects both; absolute times of two jobs are not compared.
    """

    kind: Literal["latency"]
    max_ratio: float = Field(gt=0, le=1000)
    baseline: Baseline | None = Field(default=None, description="Default: the baseline of the gate.")


Clause = Annotated[MaxDrop | NotSignificantlyWorse | SizeRatio | LatencyRatio, Field(discriminator="kind")]


class RegressionGate(Contract):
    """Conditions for accepting a job, in addition to success with a verdict other than fail."""

    clauses: tuple[Clause, ...] = Field(default=(), max_length=MOST_CLAUSES)
    # made anew, so that the API's document has no default that is an object: generators of clients stumble over those
    baseline: Baseline = Field(
        default_factory=LastPass, description="Baseline of clauses that do not name one; default: last_pass."
    )
    on_undecided: OnUndecided = Field(default="fail", description="Result of a clause or a verdict that is undecided.")

    @property
    def baselines(self) -> tuple[Baseline | None, ...]:
        """The gate's and those of its clauses."""
        return (self.baseline, *(clause.baseline for clause in self.clauses))

    @property
    def names_something(self) -> bool:
        """True if it names a metric, an alias or a job, which may not be there."""
        named = (getattr(clause, "metric", None) for clause in self.clauses)
        return any(isinstance(one, OfJob | OfAlias) for one in self.baselines) or any(named)


class ClauseResult(Contract):
    """Result of one clause."""

    kind: str
    metric: str | None = None
    baseline_job_id: str | None = Field(default=None, description="Null if there was no baseline job.")
    limit: float = Field(description="Limit of the clause: max_drop, alpha or max_ratio.")
    value: float | None = Field(
        default=None,
        description="Drop compared with the baseline, in the metric's unit (percent of the samples for "
        "not_significantly_worse), or the ratio. Null if unknown.",
    )
    baseline_value: float | None = Field(default=None, description="Value of the baseline.")
    interval: Interval | None = Field(default=None, description="Confidence interval of ``value``.")
    p_value: float | None = Field(default=None, ge=0, le=1)
    holds: bool | None = Field(description="Null if undecided; see ``reason``.")
    reason: str | None = Field(default=None, description="Why it failed or is undecided.")

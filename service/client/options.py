"""Keywords of calls that submit and list jobs, declared once for all calls that take them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Required, TypedDict

from service.client.connection import Resource
from service.contracts.devices import DeviceChoice
from service.contracts.documents import Config
from service.contracts.evaluation import EvaluationSpec
from service.contracts.regression import RegressionGate
from service.contracts.report import Verdict
from service.datasets.schemas import DatasetOut
from service.jobs.schemas import EventOut, ShownState, UsersKind
from service.models.schemas import ModelOut
from service.schedules.schemas import Misfire, Overlap


class SubmitOptions(TypedDict, total=False):
    """Of all jobs; see ``submit``."""

    name: str | None
    labels: Mapping[str, str] | None
    priority: int
    idempotency_key: str | None


class BatchOptions(SubmitOptions, total=False):
    """Of quantizations, one or many."""

    device: DeviceChoice
    reuse: bool


class QuantizationOptions(BatchOptions, total=False):
    """Of one quantization."""

    ranges_from: Resource | str | None
    hand_over: Sequence[Mapping[str, Any]]


class QuantizationRequest(QuantizationOptions, total=False):
    """See ``submit``."""

    model: Required[ModelOut | str]
    calibration: DatasetOut | str | None
    evaluation: DatasetOut | str | None
    config: Config | None
    preset: str | None


class BatchRequest(BatchOptions, total=False):
    """See ``submit_batch``."""

    presets: Sequence[str]
    configs: Sequence[Config]
    calibration: DatasetOut | str | None
    evaluation: DatasetOut | str | None
    members: Sequence[Mapping[str, Any]]


class EvaluationRequest(SubmitOptions, total=False):
    """See ``submit_evaluation``."""

    model: Required[ModelOut | str]
    evaluation: Required[DatasetOut | str]
    reference: ModelOut | str | None
    spec: EvaluationSpec | Mapping[str, Any] | None


class ScheduleOptions(TypedDict, total=False):
    """See ``create_schedule``."""

    timezone: str
    overlap: Overlap
    misfire: Misfire
    misfire_grace_seconds: int
    jitter_seconds: int
    skip_unchanged: bool
    gate: RegressionGate | Mapping[str, Any] | None
    promote_to: str | None
    paused: bool
    idempotency_key: str | None


class WaitKeywords(TypedDict, total=False):
    """See ``wait``."""

    on_event: Callable[[EventOut], None] | None
    timeout_seconds: float | None


class JobFilters(TypedDict, total=False):
    """See ``jobs``."""

    kind: UsersKind | None
    state: ShownState | None
    model: Resource | str | None
    labels: Mapping[str, str] | None
    name: str | None
    search: str | None
    preset: str | None
    verdict: Verdict | None
    created_after: datetime | None
    created_before: datetime | None
    limit: int | None

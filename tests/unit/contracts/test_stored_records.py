"""Records that the database keeps, as a process of the version before reads those that a newer one has written."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import service
from service.batches.schemas import BatchGrid
from service.contracts.base import read_stored
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import LabelSummary, PreprocessingSpec
from service.contracts.errors import Problem
from service.contracts.evaluation_report import ReportOutline
from service.contracts.quota import Quota
from service.contracts.regression import ClauseResult, RegressionGate
from service.estimates.forecast import Estimate
from service.jobs.schemas import JobCreate, Progress, Waiting
from tests.api.test_evaluations import make_evaluation
from tests.api.test_inspections import made
from tests.support.each import each
from tests.support.front import dataset_summary, model_summary
from tests.support.reports import full_report

LATER = "of_a_later_version"
FIELD = {"pointer": "", "code": "c", "message": "m"}
RANGE = {"expected": 2, "low": 1, "high": 3}
RANGES = dict.fromkeys(("seconds", "peak_memory_bytes", "size_bytes"), RANGE)
STORED: tuple[BaseModel, ...] = (
    full_report(),
    make_evaluation(),
    ReportOutline.of(full_report()),
    model_summary(),
    dataset_summary(labels=LabelSummary(array="y", count=4, minimum=0, maximum=3)),
    made(),
    Estimate.model_validate({**RANGES, "basis": "graph", "runs": 0}),
    Problem.model_validate({"type": "t", "title": "T", "status": 400, "detail": "d", "code": "c", "errors": [FIELD]}),
    Waiting(code="no-worker", message="m", hint="h"),
    Progress(done=1, total=2, unit="batches", message="m"),
    PreprocessingSpec.model_validate({"inputs": {"x": {"scale": 0.5}}, "pictures": {}}),
    Quota(jobs_running=1),
    RegressionGate.model_validate({"clauses": [{"kind": "max_drop", "metric": "top1", "max_drop": 1.0}]}),
    ClauseResult(kind="size", baseline_job_id=None, limit=1.0, holds=True, reason=None),
    BatchGrid(models=["m"], presets=["int8"], configs=0),
)  # fmt: skip


def test_every_record_that_is_read_from_the_database_is_tried_here() -> None:
    sources = [path.read_text() for path in Path(service.__file__).parent.rglob("*.py")]
    read = {name for source in sources for name in re.findall(r"\bread_stored\((\w+),", source)}
    assert read == {type(record).__name__ for record in STORED}


@each("record", STORED)
def test_unknown_fields_at_any_level_are_left_out_and_the_rest_is_kept(record: BaseModel) -> None:
    kind = type(record)
    document = record.model_dump(mode="json", by_alias=True)
    known = kind.model_validate(document)
    levels = 0
    for level in _levels(document):
        level[LATER] = {"anything": [1]}
        if _is_a_record(kind, document):
            levels += 1
            assert read_stored(kind, document) == known
        del level[LATER]
    assert levels >= 1


def test_what_is_wrong_with_known_fields_is_still_refused() -> None:
    with pytest.raises(ValidationError):
        read_stored(Quota, {"jobs_running": "many"})


@each("kind", (JobCreate, QuantizationConfig, RegressionGate, Quota, PreprocessingSpec))
def test_requests_are_refused_with_unknown_fields(kind: type[BaseModel]) -> None:
    with pytest.raises(ValidationError, match=LATER):
        kind.model_validate({LATER: 1})


def _levels(found: Any) -> Iterator[dict[str, Any]]:
    """All objects of a document, from the outermost on."""
    if isinstance(found, dict):
        yield found
    for inner in list(found.values()) if isinstance(found, dict) else found if isinstance(found, list) else ():
        yield from _levels(inner)


def _is_a_record(kind: type[BaseModel], document: dict[str, Any]) -> bool:
    """Whether the object with the later field is a record, rather than a mapping of names that may be any."""
    try:
        found = kind.model_validate(document)
    except ValidationError as error:
        return any(one["type"] == "extra_forbidden" and one["loc"][-1] == LATER for one in error.errors())
    return LATER not in str(found.model_dump())

"""What the pages show is taken by the service and makes what they tell; what they name is all that there is."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from service.batches.schemas import BatchCreate
from service.contracts.config import parse_config
from service.contracts.dataset import ArraySummary, PreprocessingSpec
from service.contracts.evaluation import EvaluationSpec
from service.contracts.evaluation_checks import check_evaluation
from service.contracts.model import TensorInfo
from service.contracts.presets import PRESETS
from service.contracts.regression import Clause, LastPass, OfAlias, OfJob, RegressionGate
from service.contracts.runner import MetricLine
from service.contracts.webhooks import EVENT_TYPES, PING, patterns
from service.egress import attempts
from service.jobs.events import latest_metrics
from service.jobs.schemas import EventOut
from service.schedules.schemas import RunState, ScheduleChange, ScheduleCreate
from service.settings import Settings
from service.webhooks import outbox
from tests.docs.blocks import ROOT, fenced
from worker.quantizer.data import inspect_dataset, open_dataset

DOCS = ROOT / "docs"


def shown(page: str) -> list[Any]:
    """The documents of a page."""
    return [json.loads(block) for block in fenced(DOCS / f"{page}.md", "json")]


def words(page: str, head: str) -> list[str]:
    """What the first column of the table names that begins with these words."""
    table = (DOCS / f"{page}.md").read_text().split(head)[1].split("\n\n")[0]
    return re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)


def test_samples_of_different_shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    block, _ = fenced(DOCS / "datasets.md", "python")
    names: dict[str, list[list[int]]] = {}
    exec(block, names)
    path = tmp_path / "calibration.npz"
    summary = inspect_dataset(path, PreprocessingSpec())
    assert summary.arrays == {"input_ids": ArraySummary(dtype="int64", shape=(3, None), shortest=(2,), longest=(5,))}
    (tensor,) = [TensorInfo(name="input_ids", dtype="int64", shape=(None, None))]
    batches = open_dataset(path, PreprocessingSpec()).batches([tensor], 8)
    for sentence, label, batch in zip(names["sentences"], (1, 0, 1), batches, strict=True):
        np.testing.assert_array_equal(batch.feeds["input_ids"], [sentence])
        assert batch.labels is not None
        assert batch.labels.tolist() == [label]


def test_boxes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    _, block = fenced(DOCS / "datasets.md", "python")
    exec(block, {})
    data = open_dataset(tmp_path / "evaluation.npz", PreprocessingSpec())
    spec = EvaluationSpec.model_validate({"metrics": [{"kind": "map", "boxes": 0, "scores": 1}]})
    check_evaluation(spec, outputs=None, data=data.summary)
    (tensor,) = [TensorInfo(name="images", dtype="uint8", shape=(None, 416, 416, 3))]
    (batch,) = data.batches([tensor], 8, arrays=("boxes", "classes"))
    assert batch.arrays["classes"].tolist() == [[0, 2], [-1, -1], [1, -1]]
    assert batch.arrays["boxes"][0, 1].tolist() == [100, 30, 160, 80]


@pytest.mark.parametrize("name", ["config", "metrics", "training", "weights"])
def test_the_configs_of_the_pages_are_valid(name: str) -> None:
    """A graph's ``path`` is for the command line, which puts the file's bytes in its place."""
    blocks = fenced(DOCS / f"{name}.md", "json")
    assert blocks
    for text in blocks:
        document = json.loads(text.replace('"path": "mine.onnx"', '"base64": "AAAA"'))
        if "inputs" in document:
            PreprocessingSpec.model_validate(document)
            continue
        config = parse_config(document)
        assert name != "weights" or config.mode == "weights_only" or config.has_float16


def test_the_presets_of_weights_are_there() -> None:
    named = re.findall(r"^\| `(\w+)` \|", (DOCS / "weights.md").read_text(), re.MULTILINE)
    assert named
    for name in named:
        assert PRESETS[name].settings["mode"] in ("weights_only", "dynamic")
        learns = any(algorithm.cannot_do_without_data for algorithm in parse_config({"preset": name}).algorithms)
        assert learns == (name == "int4_weights_accurate")


def test_the_batch_and_the_schedule_are_ones() -> None:
    (batch,), schedule = shown("batches"), ScheduleCreate.model_validate(shown("schedules")[0])
    body = BatchCreate.model_validate(batch)
    assert (body.size, body.faults) == (4, [])
    assert schedule.gate.clauses
    assert schedule.promote_to == "prod"


def test_the_event_of_a_metric_is_one() -> None:
    (text,) = [block for block in fenced(DOCS / "http.md", "json") if '"metric"' in block]
    event = EventOut.model_validate_json(text)
    line = MetricLine(stage="qat", step=3, values={"train_loss": 0.41, "validation_loss": 0.44, "metric": 91.2})
    assert event.type == "metric"
    assert event.data == {"stage": line.stage, "step": line.step, **line.values}
    assert latest_metrics([event]) == {"qat": {3: line.values}}


def test_all_of_schedules_is_named_with_the_numbers_that_hold() -> None:
    text = (DOCS / "schedules.md").read_text()
    assert set(words("schedules", "| state |")) == set(get_args(RunState))
    kinds = {get_args(kind.model_fields["kind"].annotation)[0] for kind in get_args(get_args(Clause)[0])}
    assert set(words("schedules", "| clause |")) == kinds
    for baseline in (LastPass, OfJob, OfAlias):
        (word,) = get_args(baseline.model_fields["kind"].annotation)
        assert f'{{"kind": "{word}"' in text
    assert f"`misfire_grace_seconds` ({ScheduleCreate.model_fields['misfire_grace_seconds'].default})" in text
    assert Settings().schedule_run_retention_seconds == 90 * 86_400
    assert "deleted after 90 days" in text
    assert RegressionGate().on_undecided == "fail"
    told = {"name", "gate", "template", "promote_to", "cron", "timezone"}
    assert all(f"`{field}`" in text for field in ScheduleChange.model_fields.keys() - told)


def test_all_of_webhooks_is_named_with_the_bounds_that_hold() -> None:
    text, settings = (DOCS / "webhooks.md").read_text(), Settings()
    table = text.split("| event | sent once |")[1].split("\n\n")[0]
    known = {f"{noun}.{name}" for noun, names in EVENT_TYPES.items() for name in names} | {PING}
    assert set(re.findall(r"`(\w+\.\w+)`", table)) == known
    for pattern in patterns():
        if pattern.endswith("*"):
            assert f"`{pattern}`" in text, pattern
    pauses = attempts.parse_schedule(settings.webhook_retry_seconds)
    assert pauses == (5, 30, 120, 600, 1800, 3600, 3 * 3600, 6 * 3600, 12 * 3600)
    assert len(pauses) + 1 == 10
    assert "ten attempts in about a day" in text
    assert f"{outbox.MOST_WAITING} deliveries are pending" in text
    assert f"a reconciler's {settings.webhook_slots} per tenant" in text
    assert (settings.webhook_seconds, settings.webhook_endpoint_slots) == (15, 4)
    assert (settings.webhook_failing_seconds, settings.webhook_retention_seconds) == (86_400, 30 * 86_400)
    assert (outbox.MOST_BYTES, attempts.LONGEST_ASKED_SECONDS) == (20 * 1024, 6 * 3600)


def test_how_to_extend_names_tests_and_files_that_are_there() -> None:
    text = (DOCS / "extending.md").read_text()
    files = [
        path
        for top in ("tests", "service", "worker", "benchmarks", "migrations")
        for path in (ROOT / top).rglob("*.py")
    ]
    tests = "\n".join(path.read_text() for path in files if path.name.startswith("test_"))
    names = {*re.findall(r"`(test_\w+)(?:\[|`)", text)} - {"test_targets_"}
    assert not {name for name in names if f"def {name}(" not in tests}
    known = {f"/{path.relative_to(ROOT)}" for path in files}
    made_there = {"gate.py", "small_mcu.py"}  # what the page has its reader write
    paths = {found for found in re.findall(r"[\w/]+\.py\b", text) if found.rpartition("/")[2] not in made_there}
    assert not {found for found in paths if not any(path.endswith(f"/{found}") for path in known)}

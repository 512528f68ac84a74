"""A service with something of everything in it, and graphs and datasets of which everything is known."""

from __future__ import annotations

import math
from typing import Any

from sqlalchemy import update

from service.contracts.dataset import (
    WAVEFORM_COLUMNS,
    WAVEFORM_STEPS,
    ClassCounts,
    DataProfile,
    DatasetSummary,
    LabelSummary,
    MediaSummary,
    ValueProfile,
    Waveform,
    Waveforms,
)
from service.contracts.errors import NonFiniteDataError
from service.contracts.graph_view import GraphNode, GraphTensor, GraphView, cut_name
from service.contracts.report import Report
from service.contracts.runner import ProgressLine
from service.db import db_now
from service.jobs import events, transitions
from service.jobs.outcome import QuantizeOutcome
from service.principal import DEFAULT_TENANT
from service.tables import Job, WebhookDelivery
from service.webhooks import outbox
from tests.support import batches, schedules, webhooks
from tests.support.front import Front, dataset_summary
from tests.support.reports import bell, full_report, hostile_document, layer, search_document


def chain(names: list[str], modules: list[tuple[str, ...]] | None = None) -> GraphView:
    """Nodes that each read what the one before makes."""
    tensors = [GraphTensor(name=f"t{k}", dtype="float32", shape=("N", 3, None)) for k in range(len(names) + 1)]
    nodes = [
        GraphNode(name=cut_name(name), op="Conv", modules=modules[k] if modules else (), inputs=(k,), outputs=(k + 1,))
        for k, name in enumerate(names)
    ]
    return GraphView(inputs=(0,), outputs=(len(names),), tensors=tuple(tensors), nodes=tuple(nodes))


def job(front: Front, report: Report, graph: GraphView | bytes | None) -> str:
    """A job that succeeded, with this graph."""
    job_id = front.new_job()
    artifacts = [front.kept("model", "q.onnx", job_id.encode())]
    if graph is not None:
        data = graph if isinstance(graph, bytes) else graph.to_bytes()
        artifacts.append(front.kept("graph", "graph.json", data, "application/json"))
    front.finish(job_id, QuantizeOutcome(report, tuple(artifacts)))
    return job_id


def large_job(front: Front, count: int) -> tuple[str, list[str]]:
    """A job of so many nodes with long names, ten to a module; and the names."""
    names = [f"/model/layer.{k // 100}/block.{k % 100 // 10}/node.{k}" + "x" * 150 for k in range(count)]
    modules = [(f"layer.{k // 100}", f"layer.{k // 100}.block.{k % 100 // 10}") for k in range(count)]
    histogram = bell(-1, 1, clip_low=-0.9, clip_high=0.9)
    rows = [layer(one, sqnr_db=k / 20, weight_dtype="int8", weight_histogram=histogram) for k, one in enumerate(names)]
    return job(front, full_report(layers=rows), chain(names, modules)), names


HOSTILE_CLASS = "<svg onload=alert(1)> \u202egnp.evil " + "n" * 300
_CLASSES = ("cat", "dog", HOSTILE_CLASS)


def class_counts(*samples: int) -> ClassCounts:
    """Classes 0, 1 and so on."""
    facts = {"distinct": len(samples), "fewest": min(samples), "most": max(samples)}
    return ClassCounts(**facts, numbers=tuple(range(len(samples))), counts=samples)


def value_profile(*counts: int, low: float = -4.0, high: float = 4.0, values: int | None = None) -> ValueProfile:
    """Values in bins from ``low`` to ``high``."""
    ends = {"minimum": low, "maximum": high, "low": low, "high": high, "mean": 0.0}
    return ValueProfile(**ends, values=values or sum(counts), counted=sum(counts), counts=counts)


def waveform(number: int, peak: float) -> Waveform:
    """A second of a tone."""
    highs = tuple(round(WAVEFORM_STEPS * abs(math.sin(k / 9))) for k in range(WAVEFORM_COLUMNS))
    lows = tuple(-high for high in highs)
    return Waveform(number=number, length=16_000, minimum=0.0 - peak, maximum=peak, lows=lows, highs=highs)


def full_profile() -> DataProfile:
    """Classes, values and waveforms."""
    sounds = tuple(waveform(number, 2000.0 * number) for number in range(5))
    return DataProfile(
        classes=class_counts(20, 8, 4),
        values={"x": value_profile(1, 20, 3000, 900, 0, 4, values=6144)},
        waveforms=Waveforms(array="x", sample_rate_hz=16_000, full_scale=32768.0, samples=sounds),
    )


def profiled_summary() -> DatasetSummary:
    """Data that fits ``model_summary``."""
    labels = LabelSummary(array="labels", count=32, minimum=0, maximum=2, dtype="int64", shape=(32,))
    media = MediaSummary(archive="zip", codecs={"WAV": 32}, classes=_CLASSES, smallest=(100,), largest=(16_000,))
    return dataset_summary(labels=labels).model_copy(update={"media": media, "profile": full_profile()})


HOSTILE_NAME = "<script>alert(1)</script> \u202egnp.evil " + "n" * 5000
HOSTILE_LABELS = {"<img src=x onerror=alert(1)>": "\u202e" + "w" * 5000}
# Long enough for any run of the tests: nobody renews it.
_LEASE_SECONDS = 86_400.0
_STEPS = 40
# What became of deliveries.
_SAID = "<script>alert(1)</script>\nin two lines"
_ENDED: dict[str, Any] = {"finished_at": db_now(), "last_attempt_at": db_now(), "next_attempt_at": None}
_ATTEMPTS: tuple[dict[str, Any], ...] = (
    {"attempts": 1, "last_error": "timeout"}, {**_ENDED, "state": "delivered", "attempts": 1, "last_status": 204},
    {**_ENDED, "state": "failed", "attempts": 12, "last_status": 500, "response_excerpt": _SAID},
)  # fmt: skip


def fill(front: Front) -> dict[str, str]:
    """Make jobs in every state, and one of all else; ids by what they are."""
    model, dataset = front.ready_model(), front.ready_dataset(profiled_summary())
    of_both = {"model_id": model, "calibration_dataset_id": dataset}
    changed = {"preset": "int8", "seed": 7}
    ids = {
        "succeeded": front.new_job(name="nightly", labels={"team": "vision"}, config=changed, **of_both),
        "hostile": front.new_job(name="hostile", **of_both),
        "failed": front.new_job(name="of no use", **of_both),
        "running": front.new_job(name="at work", **of_both),
        "queued": front.new_job(name="waits", **of_both),
        "model": model,
        "dataset": dataset,
    }
    succeed(front, ids["succeeded"], full_report())
    succeed(front, ids["hostile"], Report.model_validate(hostile_document()))
    front.fail(ids["failed"], NonFiniteDataError("Array 'x' holds NaN.", hint="Take the sample out."))
    run(front, ids["running"])
    ids |= {"autopilot": searched(front, **of_both), "searching": searching(front, **of_both)}
    ids |= {"batch": batched(front, **of_both)}
    ids |= {"webhook": told_of(front), "schedule": scheduled(front, **of_both)}
    with front.app.database.write() as session:
        named = {"name": HOSTILE_NAME, "labels": HOSTILE_LABELS}
        session.execute(update(Job).where(Job.id == ids["hostile"]).values(named))
    return ids


def searched(front: Front, **nouns: str) -> str:
    """A job that has tried recipes."""
    job_id = front.new_job(name="searched", config={"algorithms": [{"method": "autopilot"}]}, **nouns)
    front.finish(job_id, QuantizeOutcome(Report.model_validate(search_document()), ()))
    return job_id


def searching(front: Front, **nouns: str) -> str:
    """A job that still tries recipes: three were scored, two of them measured in full."""
    goal = {"kind": "drop", "metric": "top1", "max_drop": 0.5}
    config = {"algorithms": [{"method": "autopilot", "goal": goal}]}
    job_id = front.new_job(name="searching", config=config, **nouns)
    front.claim(job_id)
    recipes = "as configured: <b>calibration alone</b>", "as configured: adaround"
    measured = {"drop": 0.25, "size_bytes": 1000, "latency_ratio": 0.5}
    told: list[events.Entry] = [
        ("log", {"level": "info", "message": f"autopilot, recipe 1: {recipes[0]}, SQNR 20.5 dB"}),
        ("metric", {"stage": "autopilot", "step": 1, "sqnr_db": 20.5}),
        ("log", {"level": "info", "message": f"autopilot, recipe 2: {recipes[1]}, SQNR 30.5 dB"}),
        ("metric", {"stage": "autopilot", "step": 2, "sqnr_db": 30.5}),
        ("metric", {"stage": "autopilot", "step": 3, "sqnr_db": None}),
        ("metric", {"stage": "autopilot", "step": 1, "sqnr_db": 20.5, **measured}),
        ("metric", {"stage": "autopilot", "step": 2, "sqnr_db": 30.5, **measured, "drop": 0.125, "size_bytes": 1500}),
    ]
    with front.app.database.write() as session:
        events.append_all(session, job_id, 1, told)
    return job_id


def batched(front: Front, *, model_id: str, calibration_dataset_id: str) -> str:
    """A batch of which two members have succeeded, one has failed and one waits."""
    presets = ["int8", "xint8", "a16w8", "bf16"]
    asked = {"name": "grid", "models": [model_id], "presets": presets, "calibration_dataset_id": calibration_dataset_id}
    batch = batches.submitted(front, asked)
    batches.succeed(front, batches.job_of(batch, 0), drop=0.5, size_bytes=1000)
    batches.succeed(front, batches.job_of(batch, 1), drop=0.1, size_bytes=2000)
    batches.fail(front, batches.job_of(batch, 2))
    return str(batch["id"])


def told_of(front: Front) -> str:
    """A webhook that fails, with deliveries in every state."""
    database = front.app.database
    url = "https://hooks.example/in?" + "token=" + "t" * 300
    webhook_id, _ = webhooks.add_endpoint(database, url, tenant=DEFAULT_TENANT)
    with database.write() as session:
        for _ in _ATTEMPTS:
            outbox.emit(session, DEFAULT_TENANT, "alias.moved", {"id": "mdl_nothing", "alias": HOSTILE_NAME[:200]})
    for row, values in zip(webhooks.deliveries(database, endpoint_id=webhook_id), _ATTEMPTS, strict=True):
        with database.write() as session:
            session.execute(update(WebhookDelivery).where(WebhookDelivery.id == row.id).values(values))
    webhooks.set_endpoint(database, webhook_id, failing_since=1.0, dropped_events=3, description="of <b>nobody</b>")
    return webhook_id


def scheduled(front: Front, **nouns: str) -> str:
    """A schedule of which one run has passed, one has failed and one waits for its job."""
    schedule_id = str(schedules.add_schedule(front, nouns, name="every hour")["id"])
    for verdict in ("pass", "fail"):
        schedules.succeed(front, schedules.run_by_request(front, schedule_id)["job_id"], verdict=verdict)
        schedules.settle(front.app)
    schedules.run_by_request(front, schedule_id)
    return schedule_id


def succeed(front: Front, job_id: str, report: Report) -> None:
    """Have a queued job end with this report and a file."""
    front.claim(job_id)
    end(front, job_id, report)


def end(front: Front, job_id: str, report: Report) -> None:
    """Have a job that runs in its first attempt end with this report and a file."""
    artifact = front.kept("model", "model.int8.onnx", b"quantized bytes")
    with front.app.database.write() as session:
        assert transitions.succeed(session, job_id, 1, result=QuantizeOutcome(report, (artifact,)))


def tell(front: Front, job_id: str, said: str, share: float) -> None:
    """Have a job that runs in its first attempt tell how far it is, and something to read."""
    told = {"done": int(100 * share), "total": 100, "unit": "steps", "share": share, "seconds_left": 90.0}
    line = ProgressLine(stage="finetune", **told)
    with front.app.database.write() as session:
        assert transitions.record_progress(session, job_id, 1, line)
        events.append(session, job_id, 1, "log", {"level": "warning", "message": said})


def run(front: Front, job_id: str) -> None:
    """Have a job be half done, with a log and curves."""
    job = front.claim(job_id, lease_seconds=_LEASE_SECONDS)
    tell(front, job_id, "Layer <b>conv</b> is tuned. " + "It has a long name. " * 20, 0.5)
    with front.app.database.write() as session:
        for step in range(_STEPS):
            figures = {"loss": math.exp(-step / 10), "rate": 0.01 * (1 - step / _STEPS)}
            events.append(session, job_id, job.attempt, "metric", {"stage": "finetune", "step": step, **figures})

"""A service with something of everything in it, for who looks at its pages."""

from __future__ import annotations

import math

from sqlalchemy import update

from service.contracts.errors import NonFiniteDataError
from service.contracts.report import Report
from service.contracts.runner import ProgressLine
from service.jobs import events, transitions
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.tables import Job
from tests.support.front import Front
from tests.support.profiles import profiled_summary
from tests.support.reports import full_report, hostile_document

HOSTILE_NAME = "<script>alert(1)</script> \u202egnp.evil " + "n" * 5000
HOSTILE_LABELS = {"<img src=x onerror=alert(1)>": "\u202e" + "w" * 5000}
# Long enough for any run of the tests: nobody renews it.
_LEASE_SECONDS = 86_400.0
_STEPS = 40


def fill(front: Front) -> dict[str, str]:
    """Make jobs in every state; ids by what they are."""
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
    with front.desk.database.write() as session:
        named = {"name": HOSTILE_NAME, "labels": HOSTILE_LABELS}
        session.execute(update(Job).where(Job.id == ids["hostile"]).values(named))
    return ids


def succeed(front: Front, job_id: str, report: Report) -> None:
    """Have a queued job end with this report and a file."""
    front.claim(job_id)
    end(front, job_id, report)


def end(front: Front, job_id: str, report: Report) -> None:
    """Have a job that runs in its first attempt end with this report and a file."""
    data = b"quantized bytes"
    artifact = NewArtifact("model", "model.int8.onnx", "application/octet-stream", front.store(data), len(data))
    with front.desk.database.write() as session:
        assert transitions.succeed(session, job_id, 1, result=QuantizeOutcome(report, (artifact,)))


def tell(front: Front, job_id: str, said: str, share: float) -> None:
    """Have a job that runs in its first attempt tell how far it is, and something to read."""
    line = ProgressLine(
        stage="finetune", done=int(100 * share), total=100, unit="steps", share=share, seconds_left=90.0
    )
    with front.desk.database.write() as session:
        assert transitions.record_progress(session, job_id, 1, line)
        events.append(session, job_id, 1, "log", {"level": "warning", "message": said})


def run(front: Front, job_id: str) -> None:
    """Have a job be half done, with a log and curves."""
    job = front.claim(job_id, lease_seconds=_LEASE_SECONDS)
    tell(front, job_id, "Layer <b>conv</b> is tuned. " + "It has a long name. " * 20, 0.5)
    with front.desk.database.write() as session:
        for step in range(_STEPS):
            figures = {"loss": math.exp(-step / 10), "rate": 0.01 * (1 - step / _STEPS)}
            events.append(session, job_id, job.attempt, "metric", {"stage": "finetune", "step": step, **figures})

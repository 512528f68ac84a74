"""Quantize on a service: upload, submit, follow, download. Gives what a run in this process gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from service.client import Client
from service.contracts.config import QuantizationConfig
from service.contracts.devices import DeviceChoice
from service.contracts.report import Report
from service.contracts.runner import DatasetSource
from service.jobs.schemas import EventOut
from worker.commands.console import ProgressView
from worker.commands.files import NOWHERE, Done, ExtraPlace, download_files
from worker.commands.server import connected


def quantize(
    model: Path,
    *,
    config: QuantizationConfig,
    calibration: DatasetSource | None,
    evaluation: DatasetSource | None,
    output: Path,
    server: str,
    key: str | None,
    view: ProgressView,
    extra: ExtraPlace = NOWHERE,
    state: Path | None = None,
    ranges_from: str | None = None,
    priority: int = 0,
    device: DeviceChoice = "auto",
) -> Done:
    """Quantize ``model`` on the service at ``server`` into ``output``, which appears whole or not at all.

    With ``state``, the model's graph with these weights; with ``ranges_from``, by the ranges of that job.

    Raises:
        ApiError: whatever the service refuses, or why the job failed.
        InvalidServerError: the address is not spelled as one.
        ServerUnreachableError: the service does not answer.
        JobNotSucceededError: somebody canceled the job.
        ExternalDataError: the model's external data is not there.
        FileAccessError: a further file has the name of another one of the command.
    """
    with connected(server, key) as client:
        uploaded = client.push_model(model, progress=uploading(view, model))
        datasets = [
            client.push_dataset(Path(data.path), data.preprocessing, progress=uploading(view, Path(data.path)))
            for data in (calibration, evaluation)
            if data is not None
        ]
        view.progress("validate", message="on the service")
        model_id = client.wait_ready(uploaded).id
        if state is not None:
            version = client.create_model_version(model_id, state, progress=uploading(view, state))
            model_id = client.wait_ready(version).id
        dataset_ids = [client.wait_ready(dataset).id for dataset in datasets]
        job = client.submit(
            model=model_id,
            calibration=dataset_ids[0] if calibration is not None else None,
            evaluation=dataset_ids[-1] if evaluation is not None else None,
            config=config,
            name=model.name[:200],
            ranges_from=ranges_from,
            priority=priority,
            device=device,
        )
        report = follow(client, job.id, view=view)
        client.download(job, output)
        return download_files(client, job.id, report, extra)


def follow(client: Client, job_id: str, *, view: ProgressView, timeout_seconds: float | None = None) -> Report:
    """Show a job's events until it has ended; gives its report.

    Raises:
        ApiError: why the job failed, or whatever the service refuses.
        JobNotSucceededError: somebody canceled the job.
        WaitTimeoutError: it takes longer than that; the job goes on.
        KeyboardInterrupt: the user went away; the job goes on, and was told how to come back to it.
    """
    view.log(f"job {job_id}")
    try:
        client.wait_succeeded(job_id, on_event=lambda event: show_event(event, view), timeout_seconds=timeout_seconds)
        return client.report(job_id)
    except KeyboardInterrupt:
        view.log(f"the job {job_id} goes on in the service", "warning")
        view.log(f"follow it: quantmill jobs follow {job_id} --server {client.place.url}")
        view.log(f"cancel it: quantmill jobs cancel {job_id} --server {client.place.url}")
        raise


def uploading(view: ProgressView, path: Path) -> Callable[[int, int], None]:
    """What tells ``view`` how far the upload of ``path`` has come."""
    stage = f"upload {path.name}"
    return lambda sent, total: view.progress(stage, sent, total, "bytes")


def show_event(event: EventOut, view: ProgressView) -> None:
    """Show one event of a job as the same view shows a local run."""
    data = event.data
    if event.type == "progress":
        if data.get("share") is not None:
            view.overall(data["share"], data["seconds_left"])
        view.progress(data["stage"], data["done"], data["total"], data["unit"], data["message"])
    elif event.type == "log":
        view.log(data["message"], data["level"])
    elif event.type == "metric":
        figures = {name: value for name, value in data.items() if name not in ("stage", "step")}
        view.metric(data["stage"], data["step"], figures)
    elif data.get("name") in {"job.requeued", "job.lease_expired"}:
        view.log(f"attempt {event.attempt} ended: {data['reason']}; the job is tried again", "warning")

"""Quantize on a service: upload, submit, follow, download. Gives what a run in this process gives."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from service.client import Client
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from service.contracts.devices import DeviceChoice
from service.contracts.evaluation_report import EvaluationReport
from service.contracts.report import Report
from service.contracts.runner import DatasetSource
from service.jobs.schemas import EventOut
from worker.commands.console import ProgressView
from worker.commands.files import NOWHERE, Done, ExtraPlace, download_files
from worker.commands.local import load_recipe, packed
from worker.commands.server import connected
from worker.commands.uploads import dataset_of, model_of, uploading

Tell = Callable[[EventOut], None]


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
        uploaded = model_of(client, model, view)
        datasets = [
            dataset_of(client, Path(data.path), data.preprocessing, view)
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


def evaluate(
    model: Path,
    *,
    evaluation: Path,
    preprocessing: PreprocessingSpec,
    reference: Path | None,
    config: Path | None,
    server: str,
    key: str | None,
    view: ProgressView,
) -> dict[str, Any]:
    """Measure ``model`` on the service at ``server``; gives what ``local.evaluate`` gives.

    Raises:
        ApiError: whatever the service refuses, or why the job failed.
        JobNotSucceededError: somebody canceled the job.
    """
    recipe = load_recipe(None, config)
    with packed(evaluation, "evaluation") as data, connected(server, key) as client:
        own = model_of(client, model, view)
        other = None if reference is None else model_of(client, reference, view)
        dataset = dataset_of(client, data, preprocessing, view)
        view.progress("validate", message="on the service")
        with recipe.pointing_into_file():
            job = client.submit_evaluation(
                model=own,
                reference=other,
                evaluation=dataset,
                spec=recipe.config.evaluation,
                name=model.name[:200],
            )
        return follow_evaluation(client, job.id, view=view).to_json_dict()


def follow(
    client: Client,
    job_id: str,
    *,
    view: ProgressView,
    timeout_seconds: float | None = None,
    on_event: Tell | None = None,
) -> Report:
    """Show a job's events until it has ended, and tell them to ``on_event``; gives its report.

    Raises:
        ApiError: why the job failed, or whatever the service refuses.
        JobNotSucceededError: somebody canceled the job.
        WaitTimeoutError: it takes longer than that; the job goes on.
        KeyboardInterrupt: the user went away; the job goes on, and was told how to come back to it.
    """
    _follow(client, job_id, view, timeout_seconds, on_event)
    return client.report(job_id)


def follow_evaluation(
    client: Client,
    job_id: str,
    *,
    view: ProgressView,
    timeout_seconds: float | None = None,
    on_event: Tell | None = None,
) -> EvaluationReport:
    """As ``follow``, of an evaluation."""
    _follow(client, job_id, view, timeout_seconds, on_event)
    return client.evaluation_report(job_id)


def _follow(
    client: Client, job_id: str, view: ProgressView, timeout_seconds: float | None, on_event: Tell | None
) -> None:
    def tell(event: EventOut) -> None:
        show_event(event, view)
        if on_event is not None:
            on_event(event)

    view.log(f"job {job_id}")
    try:
        client.wait_succeeded(job_id, on_event=tell, timeout_seconds=timeout_seconds)
    except KeyboardInterrupt:
        view.log(f"the job {job_id} goes on in the service", "warning")
        view.log(f"follow it: quantmill jobs follow {job_id} --server {client.place.url}")
        view.log(f"cancel it: quantmill jobs cancel {job_id} --server {client.place.url}")
        raise


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

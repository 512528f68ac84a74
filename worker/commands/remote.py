"""Quantize on a service: upload, submit, follow, download. Gives what a run in this process gives.

Files are taken if they are there, else uploaded under names that nobody else uses: a name with a version is what
schedules and aliases go by, and what one command uploads must not become its latest.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from service.client import Client
from service.client.errors import RejectedError
from service.contracts.dataset import PreprocessingSpec
from service.contracts.devices import DeviceChoice
from service.datasets.schemas import DatasetOut
from service.jobs.schemas import EventOut
from service.models.schemas import ModelOut
from service.storage import file_sha256
from worker.commands.command import Service, job_id
from worker.commands.console import ProgressView
from worker.commands.files import FilesDone, download_files
from worker.commands.recipes import Measurement, Quantization, load_recipe, packed

_Uploaded = TypeVar("_Uploaded", ModelOut, DatasetOut)
Tell = Callable[[EventOut], None]
_DIGEST_CHARS, _NAME_CHARS = 12, 180
_USABLE = ("ready", "validating")
# Of the same bytes there may be several, with other external data or another preprocessing.
_LOOKED_AT = 20


def quantize(
    task: Quantization, service: Service, *, view: ProgressView, priority: int = 0, device: DeviceChoice = "auto"
) -> FilesDone:
    """Quantize a model on a service into its output, which appears whole or not at all.

    Raises:
        ApiError: whatever the service refuses, or why the job failed.
        InvalidServerError: the address is not spelled as one.
        ServerUnreachableError: the service does not answer.
        JobNotSucceededError: somebody canceled the job.
        ExternalDataError: the model's external data is not there.
        FileAccessError: a further file has the name of another one of the command.
    """
    with service.connected() as client:
        uploaded = model_of(client, task.model, view)
        datasets = [
            (word, dataset_of(client, Path(data.path), data.preprocessing, view))
            for word, data in (("calibration", task.calibration), ("evaluation", task.evaluation))
            if data is not None
        ]
        view.progress("validate", message="on the service")
        model_id = _ready(client, uploaded, "model")
        if task.state is not None:
            version = client.create_model_version(model_id, task.state, progress=uploading(view, task.state))
            model_id = client.wait_ready(version).id
        dataset_ids = [_ready(client, dataset, f"{word} dataset") for word, dataset in datasets]
        job = client.submit(
            model=model_id,
            calibration=dataset_ids[0] if task.calibration is not None else None,
            evaluation=dataset_ids[-1] if task.evaluation is not None else None,
            config=task.config,
            name=task.model.name[:200],
            ranges_from=None if task.ranges_from is None else job_id(client, task.ranges_from),
            priority=priority,
            device=device,
        )
        follow(client, job.id, view=view)
        report = client.report(job.id)
        client.download(job, task.output)
        return download_files(client, job.id, report, task.extra)


def evaluate(task: Measurement, service: Service, *, view: ProgressView) -> dict[str, Any]:
    """Measure a model on a service; gives what ``local.evaluate`` gives.

    Raises:
        ApiError: whatever the service refuses, or why the job failed.
        JobNotSucceededError: somebody canceled the job.
    """
    recipe = load_recipe(None, task.config)
    with packed(task.evaluation, "evaluation") as data, service.connected() as client:
        own = model_of(client, task.model, view)
        other = None if task.reference is None else model_of(client, task.reference, view)
        dataset = dataset_of(client, data, task.preprocessing, view)
        view.progress("validate", message="on the service")
        with recipe.pointing_into_file():
            job = client.submit_evaluation(
                model=_ready(client, own, "model"),
                reference=None if other is None else _ready(client, other, "reference model"),
                evaluation=_ready(client, dataset, "evaluation dataset"),
                spec=recipe.config.evaluation,
                name=task.model.name[:200],
            )
        follow(client, job.id, view=view)
        return client.evaluation_report(job.id).to_json_dict()


def follow(
    client: Client,
    job_id: str,
    *,
    view: ProgressView,
    timeout_seconds: float | None = None,
    on_event: Tell | None = None,
) -> None:
    """Show a job's events until it has succeeded, and tell them to ``on_event``.

    Raises:
        ApiError: why the job failed, or whatever the service refuses.
        JobNotSucceededError: somebody canceled the job.
        WaitTimeoutError: it takes longer than that; the job goes on.
        KeyboardInterrupt: the user went away; the job goes on, and was told how to come back to it.
    """

    def tell(event: EventOut) -> None:
        show_event(event, view)
        if on_event is not None:
            on_event(event)

    view.log(f"job {job_id}")
    try:
        client.wait_succeeded(job_id, on_event=tell, timeout_seconds=timeout_seconds)
    except KeyboardInterrupt:
        view.log(f"the job {job_id} continues in the service", "warning")
        view.log(f"follow it with `quantmill jobs follow {job_id} --server {client.place.url}`")
        view.log(f"cancel it with `quantmill jobs cancel {job_id} --server {client.place.url}`")
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
        view.log(f"attempt {event.attempt} ended: {data['reason']}; trying again", "warning")


def model_of(client: Client, path: Path, view: ProgressView) -> ModelOut:
    """The model of a file: one of the same bytes, without external data, that was not rejected, or a new one."""
    digest = file_sha256(path)
    for found in client.models(sha256=digest, limit=_LOOKED_AT):
        if found.status in _USABLE and found.format == "onnx" and len(found.files) == 1:
            view.log(f"{path.name} is already on the service: {found.name}@{found.version}")
            return found
    return client.push_model(path, name=_name(path, digest), progress=uploading(view, path))


def dataset_of(client: Client, path: Path, preprocessing: PreprocessingSpec, view: ProgressView) -> DatasetOut:
    """The dataset of a file: one of the same bytes and preprocessing that was not rejected, or a new one."""
    digest = file_sha256(path)
    for found in client.datasets(sha256=digest, limit=_LOOKED_AT):
        if found.status in _USABLE and found.preprocessing == preprocessing:
            view.log(f"{path.name} is already on the service: {found.name}@{found.version}")
            return found
    return client.push_dataset(path, preprocessing, name=_name(path, digest), progress=uploading(view, path))


def _ready(client: Client, resource: _Uploaded, role: str) -> str:
    """The id of what was uploaded, once it is ready; an error says what it is for, so that its file can be named."""
    try:
        return client.wait_ready(resource).id
    except RejectedError as error:
        error.where["role"] = role
        raise


def uploading(view: ProgressView, path: Path) -> Callable[[int, int], None]:
    """What tells ``view`` how far the upload of ``path`` has come."""
    stage = f"upload {path.name}"
    return lambda sent, total: view.progress(stage, sent, total, "bytes")


def _name(path: Path, digest: str) -> str:
    return f"{path.stem[:_NAME_CHARS].replace('@', '-')} {digest[:_DIGEST_CHARS]}"

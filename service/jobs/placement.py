"""Where a job goes: its device, its queue, and whether it counts as short."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from service.contracts.dataset import DatasetSummary
from service.contracts.devices import Device, device_fields, gpu_field
from service.contracts.model import ModelSummary
from service.jobs.errors import NoGpuWorkerError
from service.jobs.queues import GPU_QUEUE, SizeClass, device_of, is_short, queue_of
from service.jobs.schemas import JobCreate, JobValidate
from service.settings import Settings
from service.workers import repository as workers

_CONFIG, _DEVICE = "/config", "/device"
_NOTHING_FOR_A_GPU = "device gpu: no algorithm of the config computes on a GPU, so that one would stand idle."


@dataclass(frozen=True)
class Materials:
    """What a job is to work on, as far as it was given.

    Attributes:
        model: as validation found it.
        calibration, evaluation: the data.
    """

    model: ModelSummary | None
    calibration: DatasetSummary | None
    evaluation: DatasetSummary | None

    @property
    def data(self) -> tuple[DatasetSummary, ...]:
        """All of the data that was given."""
        return tuple(data for data in (self.calibration, self.evaluation) if data is not None)

    @property
    def size_bytes(self) -> int:
        """Of all files together."""
        model = 0 if self.model is None else self.model.size_bytes
        return model + sum(data.size_bytes for data in self.data)

    @property
    def samples(self) -> int:
        """Of all data together."""
        return sum(data.samples for data in self.data)


@dataclass(frozen=True)
class Placement:
    """Where a job goes; ``warnings`` say what is odd about it."""

    device: Device
    queue: str
    size_class: SizeClass
    warnings: tuple[str, ...] = ()


def placed(session: Session, settings: Settings, body: JobCreate | JobValidate, materials: Materials) -> Placement:
    """Where the job that is asked for goes.

    Raises:
        InvalidConfigError: a CPU is wanted, and the config asks for a GPU.
        NoGpuWorkerError: it needs a GPU, and no worker with one is alive.
    """
    device = device_of(body.config, body.device, pointer=_CONFIG)
    queue = GPU_QUEUE if device == "gpu" else queue_of("quantize")
    if device == "gpu" and not workers.live_queues(session, {queue}):
        raise _no_worker(body)
    short = is_short(
        body.config,
        size_bytes=materials.size_bytes,
        samples=materials.samples,
        most_bytes=settings.short_job_bytes,
        most_samples=settings.short_job_samples,
    )
    idle = body.device == "gpu" and next(device_fields(body.config), None) is None
    return Placement(device, queue, "short" if short else "long", (_NOTHING_FOR_A_GPU,) if idle else ())


def _no_worker(body: JobCreate | JobValidate) -> NoGpuWorkerError:
    field = gpu_field(body.config)
    if body.device == "gpu" or field is None:
        asked, pointer, instead = "device gpu", _DEVICE, "Leave device out"
    else:
        asked, pointer, instead = field.value, _CONFIG + field.pointer, "Set it to cpu or auto"
    return NoGpuWorkerError(
        f"{asked} is asked for, and no worker is alive that takes jobs of the queue {GPU_QUEUE}.",
        pointer=pointer,
        hint=f"{instead}, or start a worker on a machine with a GPU: quantmill worker --queues {GPU_QUEUE}",
    )

"""Prepares the inputs of an attempt in its scratch folder, and keeps checkpoints between attempts.

    scratch/JOB.ATTEMPT/task.json
                       /model/...      under the names of the model's manifest, so that external data is found
                       /reference/...  those of the model that an evaluation compares with
                       /graphs/ID/...  models that metrics and losses are given as
                       /data/...
                       /output/        what the runner writes

Nothing here is a hard link: that would give a runner that was taken over a way into the store. Model files are copied,
since the runtime takes no external data through links. Datasets may be large and are only ever read by our own code:
where Landlock holds the runner, a symbolic link names the file of the store, and a rule lets it read this one and no
other; where it does not, they are copied.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from sqlalchemy.orm import Session

from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from service.contracts.errors import EngineError, ExternalDataError, Pt2NotAllowedError
from service.contracts.evaluation import EvaluationSpec
from service.contracts.runner import (
    WEIGHTS_KIND,
    DatasetSource,
    EvaluateTask,
    InspectDatasetTask,
    InspectModelTask,
    InspectTargetTask,
    QuantizeTask,
    RunnerTask,
)
from service.datasets import repository as datasets
from service.db import Database
from service.hand_overs import repository as hand_overs
from service.ids import is_id
from service.jobs.queues import GPU_QUEUE
from service.models import repository as models
from service.settings import Settings
from service.storage import Store, StoredFileMissingError
from service.tables import Job, Model
from worker import repository
from worker.confinement.places import Places
from worker.quantizer.run.cache import scope_folder
from worker.upkeep.collector import STRANGE_SECONDS, age_seconds_of

log = logging.getLogger(__name__)
TASK_FILE = "task.json"
OUTPUT_FOLDER = "output"
MODEL_FOLDERS = ("model", "reference", "graphs")
_PRIVATE_FOLDER = 0o700


@dataclass(frozen=True)
class Keeping:
    """Where an attempt finds the work of others and leaves its own, and how much."""

    extra_bytes: int | None = None  # what files beside the model may take
    checkpoint_dir: Path | None = None  # exists; None: nothing is kept for the next attempt
    checkpoint_bytes: int | None = None  # what it may take
    cache_dir: Path | None = None  # made by its first user; None: nothing is kept for other jobs
    cache_bytes: int | None = None  # what it may take


class Materials:
    """Lays out the scratch folder of one attempt: ``read`` the rows, then ``lay_out`` the files, which takes long.

    Args:
        scratch: the folder; exists and is empty.
        store: where uploaded bytes are.
        threads: how many threads the runner may use.
        keeping: what is kept beyond this attempt.
        allow_pt2: archives of torch.export may be loaded.
        borrow: the runner may read only what ``places`` names, so that datasets need not be copied.
        check: called every now and then while files are copied; what it raises ends that.
    """

    def __init__(
        self,
        scratch: Path,
        store: Store,
        *,
        threads: int,
        keeping: Keeping | None = None,
        allow_pt2: bool = False,
        borrow: bool = False,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._check = check
        self._work: list[Callable[[], None]] = []
        self._allow_pt2 = allow_pt2
        self._borrow = borrow
        self._held = ExitStack()
        self._borrowed: list[Path] = []
        self._lent: list[Path] = []
        self._scratch = scratch
        self._store = store
        self._threads = threads
        self._keeping = Keeping() if keeping is None else keeping

    def close(self) -> None:
        """The runner has ended: what the store has lent goes back."""
        self._held.close()

    @property
    def places(self) -> Places:
        """What the runner has to reach beside the scratch folder, once everything was laid out."""
        return Places(tuple(self._borrowed), tuple(self._lent))

    def read(self, session: Session, job: Job) -> RunnerTask:
        """What the runner is to do; nothing is touched before ``lay_out``.

        Raises:
            EngineError: a row that must be there is not.
            Pt2NotAllowedError: an archive of torch.export, where they are switched off.
        """
        self._work.clear()
        self._borrowed.clear()
        self._lent.clear()
        return self._task(session, job)

    def lay_out(self, task: RunnerTask) -> Path:
        """Lay out everything for the task that was read; returns the task file.

        Raises:
            EngineError: a stored file that must be there is not.
            StorageAwayError: the whole store is not there.
            StoredFileCorruptError: a stored file is not what was uploaded; names it.
            OSError: the disk is full or cannot be written.
        """
        for piece in self._work:
            self._check()
            piece()
        path = self._scratch / TASK_FILE
        path.write_text(task.model_dump_json())
        return path

    def _task(self, session: Session, job: Job) -> RunnerTask:
        if job.kind == "inspect_model":
            return self._inspect_model(session, job)
        if job.kind == "inspect_target":
            return InspectTargetTask(
                model_path=str(self._model(session, job, job.model_id)),
                config=QuantizationConfig.model_validate(job.config),
                threads=self._threads,
            )
        if job.kind == "inspect_dataset":
            source = self._dataset(session, job, job.dataset_id, "dataset")
            return InspectDatasetTask(
                path=source.path,
                format=Path(source.path).name.partition(".")[2],
                preprocessing=source.preprocessing,
                output_dir=str(self._output()),
            )
        if job.kind == "evaluate":
            return self._evaluate(session, job)
        calibration = evaluation = None
        if job.calibration_dataset_id is not None:
            calibration = self._dataset(session, job, job.calibration_dataset_id, "calibration")
        if job.evaluation_dataset_id is not None:
            evaluation = self._dataset(session, job, job.evaluation_dataset_id, "evaluation")
        keeping = self._keeping
        if keeping.checkpoint_dir is not None:
            self._lent.append(keeping.checkpoint_dir)
        if keeping.cache_dir is not None:
            self._work.append(partial(self._open_cache, scope_folder(keeping.cache_dir, job.tenant_id)))
        config = QuantizationConfig.model_validate(job.config)
        return QuantizeTask(
            model_path=str(self._model(session, job, job.model_id)),
            config=config,
            calibration=calibration,
            evaluation=evaluation,
            output_dir=str(self._output()),
            threads=self._threads,
            device="gpu" if job.queue == GPU_QUEUE else "cpu",
            metric_graphs=self._graphs(session, job, config.graph_models),
            extra_bytes=keeping.extra_bytes,
            checkpoint_dir=None if keeping.checkpoint_dir is None else str(keeping.checkpoint_dir),
            checkpoint_bytes=keeping.checkpoint_bytes,
            cache_dir=None if keeping.cache_dir is None else str(keeping.cache_dir),
            cache_bytes=keeping.cache_bytes,
            # a tenant finds what its own jobs computed, and nothing that would tell what others have
            cache_scope=job.tenant_id,
            weights=hand_overs.waits_for(session, job.id, WEIGHTS_KIND),
            graph=True,
        )

    def _evaluate(self, session: Session, job: Job) -> EvaluateTask:
        spec = EvaluationSpec.model_validate((job.config or {})["evaluation"])
        reference = None
        if job.reference_model_id is not None:
            reference = str(self._model(session, job, job.reference_model_id, "reference"))
        return EvaluateTask(
            model_path=str(self._model(session, job, job.model_id)),
            reference_path=reference,
            evaluation=self._dataset(session, job, job.evaluation_dataset_id, "evaluation"),
            spec=spec,
            output_dir=str(self._output()),
            threads=self._threads,
            metric_graphs=self._graphs(session, job, spec.graph_models),
            extra_bytes=self._keeping.extra_bytes,
        )

    def _graphs(self, session: Session, job: Job, names: Iterable[str]) -> dict[str, str]:
        return {name: str(self._model(session, job, name, f"graphs/{plain_name(name)}")) for name in names}

    def _inspect_model(self, session: Session, job: Job) -> InspectModelTask:
        model = self._row(session, job, job.model_id)
        if model.format == "onnx":
            return InspectModelTask(model_path=str(self._model(session, job, model.id)), threads=self._threads)
        if model.format == "pt2" and not self._allow_pt2:
            raise Pt2NotAllowedError
        (source,) = model.files
        uploaded = self._scratch / "data" / plain_name(source.path)
        self._work.append(partial(self._copy, job.id, source.sha256, uploaded))
        if model.format == "pt2":
            return InspectModelTask(
                model_path=str(uploaded), format="pt2", output_dir=str(self._output()), threads=self._threads
            )
        return InspectModelTask(
            model_path=str(self._model(session, job, model.skeleton_model_id)),
            format="safetensors",
            state_path=str(uploaded),
            output_dir=str(self._output()),
            threads=self._threads,
        )

    def _output(self) -> Path:
        output = self._scratch / OUTPUT_FOLDER
        self._work.append(output.mkdir)
        return output

    def _model(self, session: Session, job: Job, model_id: str | None, place: str = "model") -> Path:
        model = self._row(session, job, model_id)
        folder = self._scratch / place
        for file in model.graph_files:
            self._work.append(partial(self._copy, job.id, file.sha256, folder / plain_name(file.path)))
        return folder / model.main_file.path

    def _row(self, session: Session, job: Job, model_id: str | None) -> Model:
        model = None if model_id is None else models.find(session, model_id)
        if model is None or model.tenant_id != job.tenant_id:
            raise _missing(job.id, f"model {model_id}")
        return model

    def _dataset(self, session: Session, job: Job, dataset_id: str | None, word: str) -> DatasetSource:
        dataset = None if dataset_id is None else datasets.find(session, dataset_id)
        if dataset is None:
            raise _missing(job.id, f"dataset {dataset_id}")
        path = self._scratch / "data" / f"{word}.{dataset.format}"
        lay = self._refer if self._borrow else self._copy
        self._work.append(partial(lay, job.id, dataset.sha256, path))
        return DatasetSource(path=str(path), preprocessing=PreprocessingSpec.model_validate(dataset.preprocessing))

    def _copy(self, job_id: str, sha256: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _named(job_id, sha256):
            self._store.copy_to(sha256, path, self._check)

    def _refer(self, job_id: str, sha256: str, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _named(job_id, sha256):
            stored = self._held.enter_context(self._store.lend(sha256, self._check))
        path.symlink_to(stored)
        self._borrowed.append(stored)

    def _open_cache(self, folder: Path) -> None:
        """Of this tenant alone: what a runner that was taken over put there would reach no other."""
        try:
            folder.mkdir(mode=_PRIVATE_FOLDER, parents=True, exist_ok=True)
        except OSError as error:  # the runner will find it so, say it to the job, and do without
            log.warning("cache.unavailable folder=%s: %s", folder, error)
        else:
            self._lent.append(folder)


def model_bytes(scratch: Path) -> int:
    """Size of all models that lie in a scratch folder."""
    folders = [scratch / place for place in MODEL_FOLDERS]
    return sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())


def plain_name(name: str) -> str:
    """``name``, which must be a plain file name.

    Raises:
        ExternalDataError: it would leave the folder.
    """
    if name in {"", ".", ".."} or "/" in name or "\\" in name or "\0" in name:
        raise ExternalDataError(
            f"{name!r} is not a plain file name.", hint="Use names without folders for external data."
        )
    return name


@contextmanager
def _named(job_id: str, sha256: str) -> Iterator[None]:
    """A stored file that is not there is one that the job needs."""
    try:
        yield
    except StoredFileMissingError:
        raise _missing(job_id, f"stored file {sha256}") from None


def _missing(job_id: str, what: str) -> EngineError:
    return EngineError(
        f"The {what} of job {job_id} does not exist any more.",
        hint="Upload it again and submit a new job. Inform the operator.",
    )


# Folders that keep the checkpoints of a job from one attempt to the next.
#
#     CHECKPOINT_DIR/JOB.checkpoints/...     what the runner keeps there; see ``worker.quantizer.run.checkpoint``
#
# They lie beside the scratch folders of this host, or in a folder that all workers share: then the next attempt goes on
# wherever it is. A folder lives as long as its job may have another attempt.

SUFFIX = ".checkpoints"
_MODE = 0o700


def checkpoint_folder(checkpoint_dir: Path, job_id: str) -> Path:
    """Where the checkpoints of a job lie, whether or not there are any."""
    return checkpoint_dir / f"{job_id}{SUFFIX}"


def open_checkpoints(checkpoint_dir: Path, job_id: str, *, limit_bytes: int) -> Path | None:
    """The folder for the next attempt of a job that is running, with what the attempts before left there.

    What they left beyond ``limit_bytes`` goes, the oldest first. None, and a line in the log, if the folder cannot be
    used, as when shared storage is away: a job without checkpoints is slower at worst.
    """
    folder = checkpoint_folder(checkpoint_dir, job_id)
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            folder.unlink()
        folder.mkdir(mode=_MODE, exist_ok=True)
        dropped = _shrink(folder, limit_bytes)
    except OSError as error:
        log.warning("checkpoints.unavailable job_id=%s: %s", job_id, error)
        return None
    if dropped:
        log.warning("checkpoints.dropped job_id=%s files=%d limit=%d", job_id, dropped, limit_bytes)
    return folder


def settled_checkpoints(settings: Settings, database: Database) -> list[Path]:
    """The folders of jobs that have no attempt to come, in the shared place and on this host.

    A folder is only ever made for a running job, and a job that has ended never runs again: there is no race to lose,
    and any host may remove them, at any time. One of a job that the database does not know may belong to another
    installation that uses the same disk: it is left alone for long.

    Raises:
        OperationalError: the database is away.
    """
    folders = [path for place in {settings.checkpoint_dir, settings.scratch_dir} for path in _folders(place)]
    if not folders:
        return []
    with database.read() as session:
        jobs = {_job_of(path) for path in folders}
        live, known = repository.live_jobs(session, jobs), repository.known_jobs(session, jobs)
    return [
        path
        for path in folders
        if _job_of(path) not in live and (_job_of(path) in known or age_seconds_of(path) > STRANGE_SECONDS)
    ]


def collect_checkpoints(settings: Settings, database: Database) -> int:
    """Remove the folders of ``settled_checkpoints``; returns how many. What cannot be removed now is left for later.

    Raises:
        OperationalError: the database is away.
    """
    settled = settled_checkpoints(settings, database)
    for path in settled:
        shutil.rmtree(path, ignore_errors=True)
    return sum(not path.exists() for path in settled)


def _folders(place: Path) -> list[Path]:
    try:
        return [path for path in place.glob(f"*{SUFFIX}") if is_id(_job_of(path), "job")]
    except OSError as error:
        log.warning("checkpoints.unavailable: %s", error)
        return []


def _job_of(path: Path) -> str:
    return path.name.removesuffix(SUFFIX)


def _shrink(folder: Path, limit_bytes: int) -> int:
    """Remove the oldest files below ``folder`` until the rest fits; returns how many. Links are not followed."""
    files = sorted(_files(folder), key=lambda entry: entry[1].st_mtime_ns)
    size_bytes, dropped = sum(state.st_size for _, state in files), 0
    for path, state in files:
        if size_bytes <= limit_bytes:
            break
        path.unlink(missing_ok=True)
        size_bytes, dropped = size_bytes - state.st_size, dropped + 1
    return dropped


def _files(folder: Path) -> Iterator[tuple[Path, os.stat_result]]:
    for parent, _, names in os.walk(folder):
        for name in names:
            path = Path(parent) / name
            try:
                yield path, path.lstat()
            except FileNotFoundError:
                continue  # removed meanwhile

"""Several hosts that share a database, a broker, a store and the folder of checkpoints.

A host is a data directory: its scratch, its cache and its temporary files are its own.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from service.artifacts import repository
from service.contracts.report import AlgorithmFigures, Report
from service.tables import Job
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import QUICK, environment, processes_of
from tests.worker.workbench import Workbench, wait_for
from worker.children import command_line


class Installation:
    """What all hosts share, and the hosts.

    Args:
        folder: takes everything.
        model: bytes of an ONNX file.
        data: bytes of an .npz file.
        config: of every job.
        preprocessing: of the data.
        variables: environment of every process.
    """

    def __init__(
        self,
        folder: Path,
        model: bytes,
        data: bytes,
        config: dict[str, Any],
        *,
        preprocessing: dict[str, Any] | None = None,
        **variables: str,
    ) -> None:
        self.folder, self._variables = folder, variables
        self._files, self._config, self._preprocessing = (model, data), config, preprocessing
        self.checkpoints = folder / "shared" / "checkpoints"
        self.checkpoints.mkdir(parents=True)
        self.bench = Workbench(
            folder,
            database_url=f"sqlite:///{folder / 'shared' / 'service.db'}",
            storage_dir=folder / "shared" / "store",
            checkpoint_dir=self.checkpoints,
        )

    @contextmanager
    def process(self, host: str, *arguments: str, **variables: str) -> Iterator[subprocess.Popen[bytes]]:
        """One of the service's processes on a host, as the leader of a group of its own."""
        settings = self.bench.settings
        shared = {
            "QUANTMILL_DATA_DIR": str(self.folder / host),
            "QUANTMILL_DATABASE_URL": settings.database_url,
            "QUANTMILL_BROKER_URL": settings.broker_url,
            "QUANTMILL_STORAGE_DIR": str(settings.storage_dir),
            "QUANTMILL_CHECKPOINT_DIR": str(settings.checkpoint_dir),
            "QUANTMILL_LEASE_SECONDS": "3",
        }
        with (self.folder / f"{host}.log").open("ab") as log:
            process = subprocess.Popen(
                command_line(*arguments),
                env=environment(**{**QUICK, **shared, **self._variables, **variables}),
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait(PATIENCE_SECONDS)

    def submit(self) -> str:
        model_id = self.bench.add_model({"net.onnx": self._files[0]})
        data = self.bench.add_dataset(self._files[1], self._preprocessing)
        job_id = self.bench.submit(kind="quantize", model_id=model_id, calibration_dataset_id=data, config=self._config)
        return job_id

    def ended(self, job_id: str, *, seconds: float = PATIENCE_SECONDS) -> Job:
        def look() -> Job | None:
            job = self.bench.job(job_id)
            return job if job.state not in ("queued", "running") else None

        try:
            job = wait_for(look, seconds=seconds, message="the job never ended")
            assert job.state == "succeeded", job.error
        except AssertionError as error:
            error.add_note("\n".join(path.read_text(errors="replace")[-3000:] for path in self.folder.glob("*.log")))
            raise
        return job

    def artifacts(self, job_id: str) -> dict[str, str]:
        with self.bench.database.read() as session:
            return {item.kind: item.sha256 for item in repository.list_of_job(session, "default", job_id)}

    def algorithm(self, job_id: str) -> AlgorithmFigures:
        """What the report says of the one algorithm."""
        report = Report.model_validate_json(self.bench.store.path(self.artifacts(job_id)["report"]).read_bytes())
        (figures,) = report.algorithms
        return figures

    def layers(self, job_id: str) -> tuple[int, int]:
        """How many there are, and how many of them the last attempt did not compute, as its report says."""
        figures = self.algorithm(job_id)
        found = re.search(r"(\d+) taken over", figures.summary)
        return len(figures.reconstruction), 0 if found is None else int(found[1])

    def kept(self, job_id: str) -> list[Path]:
        return [path for path in (self.checkpoints / f"{job_id}.checkpoints").rglob("*") if path.is_file()]

    def kill(self, host: str, worker: subprocess.Popen[bytes]) -> None:
        """End a worker's whole process group by SIGKILL, and wait until nothing of it is left on the host."""
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait(PATIENCE_SECONDS)
        wait_for(lambda: not processes_of(self.folder / host), message="the runner outlived its worker")

"""A run of a schedule, watched until it was judged."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from worker.commands.console import ProgressView
from worker.commands.remote import show_event

if TYPE_CHECKING:
    from service.client import Client
    from service.schedules.schemas import RunOut

_PAUSE_SECONDS = 1.0


def wait_run(client: Client, run: RunOut, *, timeout_seconds: float | None, quiet: bool) -> RunOut:
    """Show the progress of the run's job on standard error; gives the run once it was judged, or came to nothing.

    Raises:
        WaitTimeoutError: it takes longer than that; the run goes on.
    """
    ends = None if timeout_seconds is None else time.monotonic() + timeout_seconds

    def left() -> float | None:
        return None if ends is None else max(0.0, ends - time.monotonic())

    with ProgressView(quiet=quiet) as view:
        while run.job_id is None and run.finished_at is None and left() != 0.0:
            view.progress("waiting", message="for the end of the last job")
            time.sleep(_PAUSE_SECONDS)
            run = client.schedule_run(run.schedule_id, run.id)
        if run.job_id is not None:
            view.log(f"job {run.job_id}; follow it: quantmill jobs follow {run.job_id}")
            client.wait(run.job_id, on_event=lambda event: show_event(event, view), timeout_seconds=left())
            view.progress("judging")
        return client.wait_run(run, timeout_seconds=left())

"""Jobs of a service on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table
from rich.text import Text

from service.jobs.schemas import TERMINAL, JobListed, JobOut
from worker.commands.console import make_console, whole_words

_STYLES = {"succeeded": "green", "failed": "red", "canceled": "yellow", "canceling": "yellow", "running": "bold"}


def print_jobs(jobs: Iterable[JobListed], console: Console | None = None) -> None:
    """One line per job."""
    table = Table("job", "state", "stage", "verdict", "name", "created")
    table.columns[0].no_wrap = True  # an id is there to be copied
    for job in jobs:
        table.add_row(
            job.id,
            _state(job),
            Text(f"{_stage(job)} {_percent(job)}".strip()),
            job.verdict or "",
            Text(job.name or ""),
            _moment(job.created_at),
        )
    (console or make_console()).print(table)


def print_job(job: JobOut, console: Console | None = None) -> None:
    """Where a job stands, when it did what, and why it failed if it did."""
    console = console or make_console()
    lines: list[tuple[str, str | Text]] = [
        ("job", job.id),
        ("name", job.name or "-"),
        ("state", _state(job)),
        ("stage", _stage(job) or "-"),
        ("done", _whole(job) or "-"),
        *([] if job.waiting is None else [("waiting", f"{job.waiting.message} {job.waiting.hint}")]),
        ("queue", f"{job.queue}, priority {job.priority}, {job.size_class}"),
        ("attempt", f"{job.attempt} of {job.max_attempts}"),
        ("created", _moment(job.created_at)),
        ("started", _moment(job.started_at)),
        ("finished", _moment(job.finished_at)),
        ("verdict", job.verdict or "-"),
    ]
    lines += [(item.kind, f"{item.id}  {item.filename}, {item.size_bytes} bytes") for item in job.artifacts]
    if job.error is not None:
        lines += [("error", f"[{job.error.code}] {job.error.detail}"), ("hint", job.error.hint or "-")]
    width = max(10, *(len(name) + 2 for name, _ in lines))
    for name, value in lines:
        console.print(Text.assemble(f"{name:<{width}}", value), soft_wrap=True)


def _percent(job: JobListed) -> str:
    share = None if job.progress is None else job.progress.share
    return "" if share is None or job.state in TERMINAL else f"({100 * share:.0f} %)"


def _state(job: JobListed) -> Text:
    return Text(job.state, style=_STYLES.get(job.state, ""))


def _stage(job: JobListed) -> str:
    if job.stage is None or job.state in TERMINAL:
        return ""
    progress = job.progress
    amount = f" {progress.done}/{progress.total}" if progress is not None and progress.total else ""
    return job.stage + amount


def _whole(job: JobListed) -> str:
    """How far the job has come as a whole, and when it will be done."""
    progress = job.progress
    if progress is None or progress.share is None:
        return ""
    return whole_words(progress.share, progress.seconds_left)


def _moment(moment: datetime | None) -> str:
    return "-" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")

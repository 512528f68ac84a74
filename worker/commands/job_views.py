"""Jobs of a service on a terminal."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from service.estimates.schemas import Estimate
from service.jobs.schemas import TERMINAL, JobListed, JobOut, JobValidated, ScheduledBy
from worker.commands.console import NARROW, duration_words, make_console, whole_words
from worker.commands.figures import bytes_words, figure, labelled, number

_STYLES = {"succeeded": "green", "failed": "red", "canceled": "yellow", "canceling": "yellow", "running": "bold"}
_COLUMNS = ("job", "state", "name", "model", "preset", "result", "took", "created")
_NAME_CHARS = 24
_RETURNED = {
    "planned": "the quantized model as planned: too slow, but nothing better was found",
    "reduced": "a model with fewer Q/DQ pairs: the quantized one was too slow",
    "float": "the float model: the quantized one was too slow",
}
_WHOLE = ("job", "state", "took", "created")  # an id is there to be copied


def print_jobs(jobs: Iterable[JobListed], console: Console | None = None) -> None:
    """One line per job: of which model by which preset, where it stands or what came of it, and how long it took."""
    table = Table(*(Column(name, overflow="fold", no_wrap=name in _WHOLE) for name in _COLUMNS), **NARROW)
    name = table.columns[_COLUMNS.index("name")]
    name.overflow, name.no_wrap, name.max_width = "ellipsis", True, _NAME_CHARS
    for job in jobs:
        table.add_row(
            job.id,
            _state(job),
            Text(job.name or ""),
            Text(_model(job)),
            Text(job.preset or ""),
            Text(_result(job)),
            "" if job.seconds is None else duration_words(job.seconds),
            job.created_at.astimezone(UTC).strftime("%m-%d %H:%MZ"),
        )
    (console or make_console()).print(table)


def print_validated(found: JobValidated, console: Console | None = None) -> None:
    """What a job would be, and take."""
    console = console or make_console()
    told = "-" if found.estimate is None else estimate_words(found.estimate, found.estimated_finish_at)
    lines = [("queue", f"{found.queue}, {found.size_class}"), ("estimate", told)]
    lines += [("warning", warning) for warning in found.warnings]
    for name, value in lines:
        console.print(Text.assemble(f"{name:<10}", value), soft_wrap=True)


def print_job(job: JobOut, console: Console | None = None) -> None:
    """Where a job stands, when it did what, and why it failed if it did."""
    console = console or make_console()
    lines: list[tuple[str, str | Text | None]] = [
        ("job", job.id),
        ("kind", job.kind),
        ("name", job.name or "-"),
        ("labels", ", ".join(f"{key}={value}" for key, value in sorted(job.labels.items()))),
        ("state", _state(job)),
        ("stage", _stage(job) or "-"),
        ("done", _whole(job) or "-"),
        ("waiting", None if job.waiting is None else f"{job.waiting.message} {job.waiting.hint}"),
        ("model", _named_model(job)),
        ("reference", job.reference_model_id),
        ("calibration", job.calibration_dataset_id),
        ("evaluation", job.evaluation_dataset_id),
        ("preset", job.preset),
        ("algorithms", ", ".join(job.algorithms or ())),
        ("queue", f"{job.queue}, priority {job.priority}, {job.size_class}"),
        ("estimate", None if job.estimate is None else estimate_words(job.estimate, job.estimated_finish_at)),
        ("took", None if job.seconds is None else _took(job.seconds)),
        ("attempt", f"{job.attempt} of {job.max_attempts}"),
        ("created", _moment(job.created_at)),
        ("started", _moment(job.started_at)),
        ("finished", _moment(job.finished_at)),
        ("verdict", job.verdict or "-"),
        ("returned", None if job.fallback is None else _RETURNED[job.fallback]),
        *_figures(job),
        ("retry of", job.retry_of),
        ("cloned from", job.cloned_from),
        ("reused from", job.reused_from),
        ("schedule", None if job.scheduled is None else _scheduled(job.scheduled)),
    ]
    lines += [
        ("artifact", f"{item.id}  {item.kind}: {item.filename}, {item.size_bytes} bytes") for item in job.artifacts
    ]
    if job.error is not None:
        lines += [("error", f"[{job.error.code}] {job.error.detail}"), ("hint", job.error.hint or "-")]
    told = [(name, value) for name, value in lines if value]
    width = max(len(name) + 2 for name, _ in told)
    for name, value in told:
        console.print(Text.assemble(f"{name:<{width}}", value), soft_wrap=True)


def estimate_words(estimate: Estimate, finish_at: datetime | None) -> str:
    """What a job will take, and when it will have ended."""
    seconds = estimate.seconds
    end = "" if finish_at is None else f", done about {_moment(finish_at)}"
    size = estimate.size_bytes
    model = "" if size is None else f", a model of {bytes_words(size.expected)}"
    return (
        f"about {duration_words(seconds.expected)} ({duration_words(seconds.low)} to {duration_words(seconds.high)}), "
        f"{bytes_words(estimate.peak_memory_bytes.expected)} of memory{model}{end}"
    )


def _scheduled(run: ScheduledBy) -> str:
    """How the schedule that has submitted the job has judged it."""
    moved = None if run.promoted_to is None else f"{run.promoted_to} moved"
    told = "; ".join(word for word in (run.reason, run.detail, moved) if word)
    return f"{run.schedule_id}, {run.state}{': ' if told else ''}{told}"


def _named_model(job: JobListed) -> str | None:
    named = _model(job)
    return job.model_id if named in ("", job.model_id) else f"{named}  {job.model_id}"


def _model(job: JobListed) -> str:
    return (job.model_id or "") if job.model_name is None else f"{job.model_name}@{job.model_version}"


def _result(job: JobListed) -> str:
    """Where a job stands; once it has ended, what came of it."""
    if job.error is not None:
        return job.error.code
    if job.state not in TERMINAL:
        share = _percent(job)
        return f"{job.stage} {share}" if job.stage is not None and share else _stage(job)
    verdict = "" if job.verdict in (None, "none") else f"{job.verdict} "
    metrics = () if job.figures is None else job.figures.metrics
    if metrics:
        return f"{verdict}{metrics[0].name} {figure(metrics[0].quantized, metrics[0].unit)}"
    sqnr = None if job.figures is None else job.figures.sqnr_db
    return verdict if sqnr is None else f"{verdict}SQNR {number(sqnr, 'dB')}"


def _figures(job: JobListed) -> list[tuple[str, str | Text | None]]:
    """A line for each figure that lists have of its report."""
    found = job.figures
    if found is None:
        return []
    told: list[tuple[str, str | Text | None]] = []
    for metric in found.metrics:
        before, after = figure(metric.float_, metric.unit), figure(metric.quantized, metric.unit)
        drop = "" if metric.drop is None else f", drop {figure(metric.drop, metric.unit)}"
        told.append(
            (labelled(metric.name, metric.unit), after if metric.float_ is None else f"{before} -> {after}{drop}")
        )
    size = bytes_words(found.quantized_size_bytes)
    float_size = None if found.float_size_bytes is None else bytes_words(found.float_size_bytes)
    return [
        *told,
        ("SQNR", None if found.sqnr_db is None else number(found.sqnr_db, "dB")),
        ("top-1 same", None if found.top1_agreement is None else f"{found.top1_agreement:.2f} %"),
        ("size", size if float_size is None else f"{float_size} -> {size}"),
        ("latency", None if found.latency_ratio is None else f"{found.latency_ratio:.2f} times"),
    ]


def _took(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 10 else duration_words(seconds)


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

"""Records of a service on a terminal: jobs, batches, models and datasets, queues."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from service.contracts.changes import NOT_REPRESENTATIVE, ratio_words
from service.contracts.surfaces import for_command_line, rewritten
from service.reports.figures import size
from service.reports.verdict import outcome
from worker.commands.figures import duration_words, figure, labelled, number, short, whole_words
from worker.commands.printing import Cell, print_facts, print_table

if TYPE_CHECKING:
    from rich.console import Console

    from service.batches.schemas import BatchCounts, BatchListed, BatchMemberOut, BatchOut
    from service.contracts.evaluation_report import ReportOutline
    from service.datasets.schemas import DatasetOut
    from service.estimates.forecast import Estimate
    from service.jobs.schemas import JobListed, JobOut, JobValidated, ScheduledBy
    from service.models.schemas import ModelOut
    from service.names.aliases.schemas import AliasOut
    from service.queues.schemas import QueueOut

_STYLES = {
    "succeeded": "green",
    "failed": "red",
    "canceled": "yellow",
    "canceling": "yellow",
    "running": "bold",
    "ready": "green",
    "rejected": "red",
    "validating": "bold",
}
_JOB_COLUMNS = ("job", "state", "name", "model", "preset", "result", "took", "created")
_NAME_CHARS = 24
_RETURNED = {
    "planned": "the quantized model as planned: too slow, but no alternative was better",
    "reduced": "a model with fewer Q/DQ pairs: the quantized one was too slow",
    "float": "the float model: the quantized one was too slow",
}
_BATCH_COLUMNS = ("", "state", "model", "preset", "config", "result", "size", "took", "job")
_BATCH_STATES = ("queued", "running", "canceling", "succeeded", "failed", "canceled", "gone")


def print_jobs(jobs: Iterable[JobListed]) -> None:
    """One line per job: of which model by which preset, where it stands or what came of it, and how long it took."""
    rows = (
        (
            job.id,
            _styled(job.state),
            job.name or "",
            _model(job),
            job.preset or "",
            _result(job),
            "" if job.seconds is None else duration_words(job.seconds),
            job.created_at.astimezone(UTC).strftime("%m-%d %H:%MZ"),
        )
        for job in jobs
    )
    whole = ("job", "state", "took", "created")
    print_table(_JOB_COLUMNS, rows, whole=whole, narrow=True, cut={"name": _NAME_CHARS})


def print_validated(found: JobValidated) -> None:
    """What a job would be, and take."""
    told = "-" if found.estimate is None else _estimate(found.estimate, found.estimated_finish_at)
    warnings = (("warning", warning) for warning in found.warnings)
    print_facts([("queue", f"{found.queue}, {found.size_class}"), ("estimate", told), *warnings])


def print_job(job: JobOut) -> None:
    """Where a job stands, when it did what, and why it failed if it did."""
    seconds = job.seconds
    took = None if seconds is None else f"{seconds:.1f} s" if seconds < 10 else duration_words(seconds)
    facts: list[tuple[str, Cell | None]] = [
        ("job", job.id),
        ("kind", job.kind),
        ("name", job.name or "-"),
        ("labels", _pairs(job.labels)),
        ("state", _styled(job.state)),
        ("stage", _stage(job) or "-"),
        ("progress", _whole(job) or "-"),
        ("waiting", None if job.waiting is None else for_command_line(f"{job.waiting.message} {job.waiting.hint}")),
        ("model", _named_model(job)),
        ("baseline", job.reference_model_id),
        ("calibration", job.calibration_dataset_id),
        ("evaluation", job.evaluation_dataset_id),
        ("preset", job.preset),
        ("algorithms", ", ".join(job.algorithms or ())),
        ("queue", f"{job.queue}, priority {job.priority}, {job.size_class}"),
        ("estimate", None if job.estimate is None else _estimate(job.estimate, job.estimated_finish_at)),
        ("took", took),
        ("attempt", f"{job.attempt} of {job.max_attempts}"),
        ("created", _moment(job.created_at)),
        ("started", _moment(job.started_at)),
        ("finished", _moment(job.finished_at)),
        ("result", _judged(job.verdict, job.figures) or "-"),
        ("returned", None if job.fallback is None else _RETURNED[job.fallback]),
        *_figures(job),
        ("retry of", job.retry_of),
        ("cloned from", job.cloned_from),
        ("reused from", job.reused_from),
        ("schedule", None if job.scheduled is None else _scheduled(job.scheduled)),
    ]
    facts += [
        ("artifact", f"{item.id}  {item.kind}: {item.filename}, {item.size_bytes} bytes") for item in job.artifacts
    ]
    if job.error is not None:
        error = rewritten(job.error, for_command_line)
        facts += [("error", (f"[{error.code}] {error.detail}", "red")), ("hint", error.hint or "-")]
    print_facts(facts)


def _estimate(estimate: Estimate, finish_at: datetime | None) -> str:
    """What a job will take, and when it will have ended."""
    seconds = estimate.seconds
    end = "" if finish_at is None else f", finished about {_moment(finish_at)}"
    made = estimate.size_bytes
    model = "" if made is None else f", model size {size(made.expected)}"
    return (
        f"about {duration_words(seconds.expected)} ({duration_words(seconds.low)} to {duration_words(seconds.high)}), "
        f"{size(estimate.peak_memory_bytes.expected)} of memory{model}{end}"
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
    from service.jobs.schemas import TERMINAL

    if job.error is not None:
        return job.error.code
    if job.state not in TERMINAL:
        share = None if job.progress is None else job.progress.share
        return f"{job.stage} ({100 * share:.0f} %)" if job.stage is not None and share is not None else _stage(job)
    return _outcome(job.verdict, job.figures)


def _outcome(verdict: str | None, figures: ReportOutline | None, *, drop: bool = False) -> str:
    """What a job has come to, and the first figure, if wanted with the drop."""
    told = _judged(verdict, figures)
    if figures is None:
        return told
    if not figures.metrics:
        return told if figures.sqnr_db is None else f"{told}: SQNR {number(figures.sqnr_db, 'dB')}"
    first = figures.metrics[0]
    change = f", {first.change.words}" if drop and first.drop is not None else ""
    return f"{told}: {first.name} {figure(first.quantized, first.unit)}{change}"


def _judged(verdict: str | None, figures: ReportOutline | None) -> str:
    if verdict is None:
        return ""
    if figures is None:
        return outcome(verdict).word
    return outcome(verdict, collapsed=figures.collapsed, critical=figures.critical_findings > 0).word


def _figures(job: JobListed) -> list[tuple[str, Cell | None]]:
    """A line for each figure that lists have of its report."""
    found = job.figures
    if found is None:
        return []
    told: list[tuple[str, Cell | None]] = []
    for metric in found.metrics:
        before, after = figure(metric.float_, metric.unit), figure(metric.quantized, metric.unit)
        change = "" if metric.drop is None else f", {metric.change.words}"
        told.append(
            (labelled(metric.name, metric.unit), after if metric.float_ is None else f"{before} -> {after}{change}")
        )
    after = size(found.quantized_size_bytes)
    float_size = None if found.float_size_bytes is None else size(found.float_size_bytes)
    return [
        *told,
        ("SQNR", None if found.sqnr_db is None else number(found.sqnr_db, "dB")),
        ("agreement", None if found.top1_agreement is None else f"{found.top1_agreement:.2f} %"),
        ("size", after if float_size is None else f"{float_size} -> {after}"),
        ("latency", _latency(found)),
    ]


def _latency(found: ReportOutline) -> str | None:
    if found.latency_ratio is None:
        return None
    return NOT_REPRESENTATIVE if found.latency_not_representative else ratio_words(found.latency_ratio)


def _stage(job: JobListed) -> str:
    from service.jobs.schemas import TERMINAL

    if job.stage is None or job.state in TERMINAL:
        return ""
    progress = job.progress
    amount = f" {progress.done}/{progress.total}" if progress is not None and progress.total else ""
    return job.stage + amount


def _whole(job: JobListed) -> str:
    """How far the job has come as a whole, and when it will be done."""
    progress = job.progress
    return "" if progress is None or progress.share is None else whole_words(progress.share, progress.seconds_left)


def print_batches(batches: Iterable[BatchListed]) -> None:
    """One line per batch."""
    rows = (
        (batch.id, _styled(batch.state), _counts(batch.counts), batch.name or "", _moment(batch.created_at))
        for batch in batches
    )
    print_table(("batch", "state", "members", "name", "created"), rows, whole=("batch",))


def print_batch(batch: BatchOut) -> None:
    """Every member with what became of it, the best of each model, and why members failed."""
    from rich.text import Text

    from worker.commands.console import make_console

    console = make_console()
    name = f" {batch.name}" if batch.name else ""
    head = Text.assemble(f"{batch.id}{name} is ", _styled(batch.state), f": {_counts(batch.counts)}")
    console.print(head, soft_wrap=True)
    print_table(_BATCH_COLUMNS, map(_member, batch.members), whole=("state", "took", "job"), narrow=True)
    for best in batch.best:
        told = "" if best.metric is None else f", {best.metric} {short(best.value)} (drop {short(best.drop)})"
        console.print(Text(f"best of {best.model}: member {best.member}{told}"), soft_wrap=True)
    for member in batch.members:
        if member.error is not None:
            told = f"member {member.member} failed: [{member.error.code}] {member.error.detail}"
            console.print(Text(told, style="red"), soft_wrap=True)


def _member(member: BatchMemberOut) -> list[Cell]:
    model = member.model if member.model_name is None else f"{member.model_name}@{member.model_version}"
    error = member.error
    return [
        str(member.member),
        _styled(member.state),
        model,
        member.preset or "",
        "" if member.config is None else str(member.config),
        _outcome(member.verdict, member.figures, drop=True) if error is None else error.code,
        "" if member.size_bytes is None else size(member.size_bytes),
        "" if member.seconds is None else duration_words(member.seconds),
        member.job_id,
    ]


def _counts(counts: BatchCounts) -> str:
    told = [f"{getattr(counts, state)} {state}" for state in _BATCH_STATES if getattr(counts, state)]
    return f"{counts.total} ({', '.join(told)})"


def print_resources(word: str, resources: Iterable[ModelOut | DatasetOut]) -> None:
    """One line for each model or dataset."""
    rows = (
        (one.id, one.name, str(one.version), _styled(one.status), _pairs(one.tags), _moment(one.created_at))
        for one in resources
    )
    print_table((word, "name", "version", "status", "tags", "created"), rows, whole=(word,))


def print_resource(word: str, resource: ModelOut | DatasetOut, aliases: Sequence[str]) -> None:
    """What is known of a model or dataset."""
    from service.datasets.schemas import DatasetOut

    files = (
        [f"{resource.sha256}  {resource.size_bytes} bytes"]
        if isinstance(resource, DatasetOut)
        else [f"{file.sha256}  {file.path}, {file.size_bytes} bytes" for file in resource.files]
    )
    print_facts(
        [
            (word, resource.id),
            ("name", resource.name),
            ("version", str(resource.version)),
            ("aliases", ", ".join(aliases) or "-"),
            ("status", _styled(resource.status)),
            ("format", resource.format),
            ("tags", _pairs(resource.tags) or "-"),
            ("description", resource.description or "-"),
            ("created", _moment(resource.created_at)),
            *(("file", file) for file in files),
            *(("problem", f"[{problem.code}] {for_command_line(problem.detail)}") for problem in resource.problems),
        ]
    )


def print_aliases(aliases: Iterable[AliasOut]) -> None:
    """One line each."""
    rows = (
        (alias.alias, alias.name, str(alias.version), alias.id, alias.updated_by, _moment(alias.updated_at))
        for alias in aliases
    )
    print_table(("alias", "name", "version", "id", "moved by", "at"), rows, whole=("id",))


def print_queues(queues: Iterable[QueueOut], console: Console | None = None) -> None:
    """One line per queue."""
    rows = []
    for queue in queues:
        age, slots = queue.oldest_due_age_seconds, queue.slots
        rows.append(
            (
                queue.name,
                str(queue.queued.due),
                str(queue.queued.delayed),
                str(queue.running),
                "-" if age is None else f"{age:.0f} s",
                f"{queue.workers} ({queue.deaf_workers} unreachable)" if queue.deaf_workers else str(queue.workers),
                f"{slots.busy} of {slots.total} busy",
            )
        )
    print_table(("queue", "due", "delayed", "running", "oldest", "workers", "slots"), rows, console=console)


def _pairs(labels: dict[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _styled(state: str) -> tuple[str, str]:
    return state, _STYLES.get(state, "")


def _moment(moment: datetime | None) -> str:
    return "-" if moment is None else moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")

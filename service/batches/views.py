"""Views of batches: one summary of many jobs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from service.batches.repository import MemberCount
from service.batches.schemas import (
    BatchBest,
    BatchCounts,
    BatchGrid,
    BatchLinks,
    BatchListed,
    BatchMemberOut,
    BatchOut,
    BatchState,
    MemberState,
)
from service.contracts.base import read_stored
from service.jobs.schemas import JobListed
from service.jobs.views import JobView, job_listed
from service.repository import Version
from service.tables import Batch, BatchMember
from service.tables.base import record_of

_LIVE = ("queued", "running", "canceling")
# The gate's word is worth more than the figures.
_RANKS = {"pass": 0, "none": 0, "undecided": 1}


@dataclass(frozen=True)
class BatchView:
    """A batch with its members and their jobs."""

    batch: Batch  # the row
    members: Sequence[BatchMember]  # all of them by position, superseded ones among them
    jobs: Mapping[str, JobView]  # what is told of the jobs that are there, by id
    version: Version  # see ``repository.version``; read before all of it

    @property
    def current(self) -> list[BatchMember]:
        """The members, each with the job that stands for it now."""
        return sorted((row for row in self.members if not row.superseded), key=lambda row: row.member)

    @property
    def ended(self) -> bool:
        """No job of it is queued or running."""
        return all(row.job_id not in self.jobs or self.jobs[row.job_id].ended for row in self.current)

    @property
    def etag(self) -> str:
        """Entity tag: changes whenever the batch, or a job of it, does; versions of jobs that are gone are missing."""
        return f'"{self.version[0]}.{len({row.job_id for row in self.members} - self.jobs.keys())}"'


def location(batch: Batch) -> str:
    """Where the batch lives."""
    return f"/v1/batches/{batch.id}"


def state_of(counts: BatchCounts) -> BatchState:
    """The state of a batch whose members stand so."""
    if counts.running or counts.canceling or (counts.queued and counts.queued + counts.gone < counts.total):
        return "running"
    if counts.queued:
        return "queued"
    if counts.failed:
        return "failed"
    return "canceled" if counts.canceled else "succeeded"


def counts_of(standings: Iterable[MemberCount]) -> BatchCounts:
    """How many members stand how."""
    found: dict[str, int] = {}
    for standing in standings:
        state = "canceling" if standing.canceling else standing.state or "gone"
        found[state] = found.get(state, 0) + standing.count
    return BatchCounts(total=sum(found.values()), **found)


def batch_listed(batch: Batch, counts: BatchCounts) -> BatchListed:
    """The batch as lists tell of it."""
    path = location(batch)
    return record_of(
        batch,
        BatchListed,
        state=state_of(counts),
        counts=counts,
        grid=None if batch.grid is None else read_stored(BatchGrid, batch.grid),
        links=BatchLinks(
            self=path, events=f"{path}/events", cancel=f"{path}/cancel", retry_failed=f"{path}/retry-failed"
        ),
    )


def batch_out(view: BatchView) -> BatchOut:
    """The batch with one summary of its members."""
    attempts: dict[int, int] = {}
    for row in view.members:
        attempts[row.member] = attempts.get(row.member, 0) + 1
    jobs = {job_id: job_listed(job) for job_id, job in view.jobs.items()}
    members = [_member_out(row, jobs.get(row.job_id), attempts[row.member]) for row in view.current]
    counts = counts_of(MemberCount(None if m.state == "gone" else m.state, m.state == "canceling", 1) for m in members)
    own = [jobs[row.job_id] for row in view.current if row.job_id in jobs]
    began = [job.started_at for job in own if job.started_at is not None]
    ended = [job.finished_at for job in own if job.finished_at is not None]
    return BatchOut(
        **dict(batch_listed(view.batch, counts)),
        started_at=min(began, default=None),
        finished_at=max(ended, default=None) if view.ended else None,
        failing=[member.member for member in members if member.state == "failed"],
        best=_best(members),
        members=members,
    )


def _member_out(row: BatchMember, job: JobListed | None, attempts: int) -> BatchMemberOut:
    state: MemberState = "gone" if job is None else job.state
    figures = None if job is None else job.figures
    return BatchMemberOut(
        member=row.member,
        model=row.model,
        preset=row.preset if row.preset is not None or job is None else job.preset,
        config=row.config,
        job_id=row.job_id,
        state=state,
        reused=row.reused,
        attempts=attempts,
        model_id=None if job is None else job.model_id,
        model_name=None if job is None else job.model_name,
        model_version=None if job is None else job.model_version,
        verdict=None if job is None else job.verdict,
        error=None if job is None else job.error,
        figures=figures,
        size_bytes=None if figures is None else figures.quantized_size_bytes,
        seconds=None if job is None else job.seconds,
    )


def _best(members: Sequence[BatchMemberOut]) -> list[BatchBest]:
    """Of each model, in the order in which they come, the member that lost least; of equals the smaller, the first."""
    by_model: dict[str | None, list[BatchMemberOut]] = {}
    for member in members:
        if member.figures is not None and member.verdict != "fail":
            by_model.setdefault(member.model_id, []).append(member)
    return [_best_of(candidates) for candidates in by_model.values()]


def _best_of(candidates: Sequence[BatchMemberOut]) -> BatchBest:
    metric = next((m.figures.metrics[0].name for m in candidates if m.figures and m.figures.metrics), None)

    def figure(member: BatchMemberOut) -> tuple[float | None, float | None]:
        """Value and drop by the metric."""
        told = () if member.figures is None else member.figures.metrics
        found = next((one for one in told if one.name == metric), None)
        return (None, None) if found is None else (found.quantized, found.drop)

    def loss(member: BatchMemberOut) -> tuple[float, float, float, int]:
        drop = figure(member)[1]
        sqnr_db = None if member.figures is None else member.figures.sqnr_db
        return (
            _RANKS.get(member.verdict or "none", 0),
            float("inf") if drop is None else drop,
            float("inf") if sqnr_db is None or metric is not None else -sqnr_db,
            member.size_bytes or 0,
        )

    best = min(candidates, key=loss)
    value, drop = figure(best)
    return BatchBest(
        model=best.model,
        member=best.member,
        job_id=best.job_id,
        verdict=best.verdict,
        metric=metric,
        value=value,
        drop=drop,
        size_bytes=best.size_bytes,
    )


def is_live(member: BatchMemberOut) -> bool:
    """Its job is queued or running."""
    return member.state in _LIVE

"""Many wait for one row: one look tells them all, and what has changed is read once."""

from __future__ import annotations

import asyncio

from service.contracts.errors import EngineError
from service.contracts.runner import ProgressLine
from service.http import poll
from service.jobs import service, transitions
from service.jobs.streaming import event_stream
from service.jobs.views import JobView
from service.tables import Job
from tests.support.front import Front
from tests.support.patience import PATIENCE_SECONDS

WAITING = 40


def test_long_polls_on_one_job_share_their_looks(front: Front) -> None:
    job_id = front.new_job()
    looks: list[str] = []

    def look() -> JobView:
        looks.append(job_id)
        return service.get(front.desk, "default", job_id)

    async def wait() -> JobView:
        return await poll(
            front.desk,
            Job,
            job_id,
            look,
            version=lambda seen: (seen.job.row_version, seen.job.last_seq),
            done=lambda seen: seen.job.state == "canceled",
            wait_seconds=PATIENCE_SECONDS,
        )

    async def crowd() -> list[JobView]:
        tasks = [asyncio.create_task(wait()) for _ in range(WAITING)]
        while len(looks) < WAITING:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(front.http.post, f"/v1/jobs/{job_id}/cancel")
        return await asyncio.gather(*tasks)

    assert [view.job.state for view in asyncio.run(crowd())] == ["canceled"] * WAITING
    # one each at first, and few for all after that: one per version
    assert len(looks) <= WAITING + 3
    assert front.desk.notifier._watches == {}


def test_streams_of_one_job_share_what_is_read(front: Front, monkeypatch) -> None:
    job_id = front.new_job()
    reads: list[int] = []
    real = service.log_after

    def counted(*arguments):
        reads.append(arguments[3])
        return real(*arguments)

    monkeypatch.setattr(service, "log_after", counted)
    begun: list[bool] = []

    async def follow() -> bytes:
        text = b""
        async for part in event_stream(front.desk, "default", job_id, 0):
            if b"job.queued" in part:
                begun.append(True)
            text += part
        return text

    async def crowd() -> list[bytes]:
        tasks = [asyncio.create_task(follow()) for _ in range(WAITING)]
        while len(begun) < WAITING:
            await asyncio.sleep(0.01)
        await asyncio.to_thread(front.http.post, f"/v1/jobs/{job_id}/cancel")
        return await asyncio.gather(*tasks)

    texts = asyncio.run(crowd())
    assert len(set(texts)) == 1
    assert texts[0].count(b"event: state") == 2
    assert b"event: end" in texts[0]
    assert len(reads) < WAITING, "not each stream reads for itself"


def test_a_piece_of_progress_is_read_once(front: Front, monkeypatch) -> None:
    job_id = front.new_job()
    front.claim(job_id)
    reads: list[int] = []
    real = service.log_after

    def counted(*arguments):
        reads.append(arguments[3])
        return real(*arguments)

    monkeypatch.setattr(service, "log_after", counted)

    def tell() -> None:
        with front.desk.database.write() as session:
            assert transitions.record_progress(session, job_id, 1, ProgressLine(stage="calibrate"))

    def end() -> None:
        with front.desk.database.write() as session:
            assert transitions.fail(session, job_id, 1, problem=EngineError("boom").problem())

    async def follow() -> list[bytes]:
        parts: list[bytes] = []

        async def read() -> None:
            async for part in event_stream(front.desk, "default", job_id, 0):
                parts.append(part)  # noqa: PERF401 - it is looked at meanwhile

        async def waits_after(word: bytes) -> None:
            while not any(word in part for part in parts):
                await asyncio.sleep(0.01)
            while not front.desk.notifier._watches[Job, job_id]._waiting:
                await asyncio.sleep(0.01)

        stream = asyncio.create_task(read())
        await waits_after(b"job.claimed")
        await asyncio.to_thread(tell)
        await waits_after(b"event: progress")
        # what follows the progress is read when there is something, and not before
        assert 3 not in reads
        await asyncio.to_thread(end)
        await stream
        return parts

    parts = asyncio.run(follow())
    assert [b"event: progress" in part for part in parts].count(True) == 1
    assert b"job.failed" in parts[-2]
    assert b"event: end" in parts[-1]
    assert (reads.count(3), reads[-1]) == (1, 4)

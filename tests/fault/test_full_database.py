"""A PostgreSQL whose disk is full where results go, while leases, which need no new pages, can still be renewed."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from psycopg import sql

from tests.fault.harness.disk import SmallDisk, small_disk
from tests.fault.harness.servers import Servers
from tests.worker.workbench import Workbench, finish, run_in_thread
from worker.lease import Timing

# A result that takes some hundred pages.
LARGE = "SUMMARY['producer'] = os.urandom(400_000).hex()\n"
END = "open(os.environ['BENCH'] + '/ended', 'w'); succeed()\n"
TIMING = Timing(lease=2.0, renew=0.3, look=0.1, flush=0.05, flush_max=0.1, again=0.1, frozen=1.0)


@pytest.fixture
def narrow(servers: Servers, tmp_path: Path) -> Iterator[tuple[Workbench, SmallDisk]]:
    """A database whose models lie on a small disk of their own; all else has room."""
    url = servers.postgres.new_database()
    with small_disk(16) as disk:
        place = disk.folder / "space"
        place.mkdir()
        if servers.postgres.user is not None:
            shutil.chown(place, servers.postgres.user)
        with psycopg.connect(url, autocommit=True) as server:
            server.execute(sql.SQL("CREATE TABLESPACE narrow LOCATION {}").format(sql.Literal(str(place))))
            server.execute("ALTER TABLE models SET TABLESPACE narrow")
        bench = Workbench(tmp_path, database_url=url)
        try:
            yield bench, disk
        finally:
            bench.close()
            servers.postgres.drop_database(url)
            with psycopg.connect(servers.postgres.url("postgres"), autocommit=True) as server:
                server.execute("DROP TABLESPACE narrow")


def test_the_result_stays_in_hand_until_there_is_room(narrow):
    bench, disk = narrow
    job_id = bench.submit()
    disk.fill()
    thread = run_in_thread(bench.supervisor(LARGE + END, timing=TIMING), job_id)
    thread.join(TIMING.lease)
    assert thread.is_alive()
    assert (bench.folder / "ended").exists()
    disk.free()
    finish(thread)
    assert (bench.job(job_id).state, bench.job(job_id).attempt) == ("succeeded", 1)


def test_a_job_whose_end_has_no_room_for_long_is_put_back(narrow):
    bench, disk = narrow
    job_id = bench.submit()
    disk.fill()
    supervisor = bench.supervisor(LARGE + END, timing=TIMING)
    for attempt in (1, 2):
        supervisor.run(job_id)
        job = bench.job(job_id)
        assert (job.state, job.attempt, job.interruptions) == ("queued", attempt, attempt)
        assert job.waiting["code"] == "storage-full"
        assert "INSERT" not in job.waiting["message"]
        assert "UPDATE" not in job.waiting["message"]
    disk.free()
    supervisor.run(job_id)
    assert bench.job(job_id).state == "succeeded"

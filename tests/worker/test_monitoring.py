"""Metrics of workers and the reconciler: what they count, and their ports, as processes of their own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from service.monitoring.declarations import COUNTED
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.reconcile.rounds import claim
from tests.worker.running import QUICK, command, environment, start_up, worker
from tests.worker.workbench import UNTIL_GO, Workbench, database_away, finish, wait_for
from worker.counting import count_ending
from worker.outcome import Ending, StopReason
from worker.reconcile.leases import LeaseKeeper
from worker.reconcile.loops import attempted

ATTEMPTS, CLAIMS = "quantmill_job_attempts_total", "quantmill_claims_total"
CRASHES = "os.kill(os.getpid(), signal.SIGXCPU)\ntime.sleep(60)\n"


@contextmanager
def counted(name: str, by: float = 1.0, **labels: str) -> Iterator[None]:
    """The block has the metric of this process grow by so much."""
    before = COUNTED.get_sample_value(name, labels) or 0.0
    yield
    assert (COUNTED.get_sample_value(name, labels) or 0.0) - before == by, (name, labels)


def test_a_job_is_counted_from_its_claim_to_its_end(bench: Workbench) -> None:
    job_id = bench.submit()
    supervisor = bench.supervisor("succeed()")
    with (
        counted(CLAIMS, result="won"),
        counted(ATTEMPTS, queue="inspect", outcome="succeeded", code="none"),
        counted("quantmill_job_wait_seconds_count", queue="inspect"),
    ):
        assert supervisor.run(job_id) is not None
    with counted(CLAIMS, result="lost"):
        assert supervisor.run(job_id) is None


def test_a_failure_is_counted_by_its_code_and_a_kill_by_its_reason(bench: Workbench) -> None:
    job_id = bench.submit()
    with (
        counted("quantmill_sandbox_kills_total", reason="cpu_time"),
        counted(ATTEMPTS, queue="inspect", outcome="failed", code="too-complex"),
    ):
        assert bench.supervisor(CRASHES).run(job_id) is not None
    assert bench.failure(job_id)[0] == "failed"


def test_a_runner_may_not_choose_the_labels(bench: Workbench) -> None:
    lie = {"type": "/", "title": "t", "status": 422, "detail": "d", "code": "x" * 200, "where": {}, "errors": []}
    code = f"say(line='error', problem={lie!r})\nsys.exit(10)\n"
    with counted(ATTEMPTS, queue="inspect", outcome="failed", code="other"):
        assert bench.supervisor(code).run(bench.submit()) is not None


def test_every_reason_to_stop_a_runner_is_declared() -> None:
    for reason in StopReason:
        ending = Ending(-signal.SIGKILL, None, reason, "", 1, 3)
        with counted("quantmill_sandbox_kills_total", reason=reason.value):
            count_ending(ending)
    for number, word in ((signal.SIGSYS, "system_call"), (signal.SIGKILL, "sigkill")):
        with counted("quantmill_sandbox_kills_total", reason=word):
            count_ending(Ending(-number, None, None, "", 1, 3))
    for code in (0, 11, -signal.SIGSEGV):
        count_ending(Ending(code, None, None, "", 1, 3))


def test_a_lost_lease_and_an_expired_one_are_counted(bench: Workbench) -> None:
    job_id, thread, _ = bench.begin(UNTIL_GO)
    with counted("quantmill_leases_lost_total"), counted(ATTEMPTS, queue="inspect", outcome="fenced", code="none"):
        bench.cancel(job_id)
        with bench.database.write() as session:
            session.connection().exec_driver_sql(
                "UPDATE jobs SET attempt = attempt + 1, dispatched_at = NULL, cancel_requested_at = NULL"
            )
        finish(thread)
    other = bench.submit()
    claim(bench, other, lease_seconds=-1.0)
    with counted("quantmill_leases_expired_total"):
        LeaseKeeper(bench.database, lease_seconds=60.0, is_new=False).expire()


def test_rounds_are_counted_and_failures_apart(bench: Workbench) -> None:
    def raises() -> int:
        raise ValueError("it broke")

    def asks() -> int:
        with bench.database.read() as session:
            session.connection()
        return 1

    rounds = "quantmill_reconcile_duration_seconds_count"
    with counted(rounds, 3, loop="probe"), counted("quantmill_reconcile_failures_total", 2, loop="probe"):
        assert attempted("probe", asks) == 1
        told = COUNTED.get_sample_value("quantmill_reconcile_last_success_timestamp_seconds", {"loop": "probe"})
        assert attempted("probe", raises) == 0
        with database_away(bench):
            assert attempted("probe", asks) == 0
    assert told == COUNTED.get_sample_value("quantmill_reconcile_last_success_timestamp_seconds", {"loop": "probe"}), (
        "a failure is no success"
    )


def free_port(count: int = 1) -> int:
    """The first of so many ports in a row that nobody listens on."""
    while True:
        with socket.create_server(("127.0.0.1", 0)) as found:
            port: int = found.getsockname()[1]
        try:
            for number in range(count):
                socket.create_server(("127.0.0.1", port + number)).close()
        except (OSError, OverflowError):
            continue
        return port


def scrape(port: int) -> str:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_SECONDS) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain")
        return str(answer.read().decode())


def scraped_until(port: int, holds: Callable[[str], bool]) -> str:
    def look() -> str:
        try:
            text = scrape(port)
        except OSError:  # it does not listen yet
            return ""
        return text if holds(text) else ""

    return wait_for(look, message="its metrics never said so")


@pytest.mark.slow
def test_a_worker_serves_its_metrics_and_refuses_a_port_in_use(bench: Workbench) -> None:
    port = free_port()
    with worker(bench, "--queues", "cpu", QUANTMILL_METRICS_PORT=str(port)) as process:
        text = scrape(port)
        assert 'quantmill_build_info{process="worker"' in text
        assert 'quantmill_claims_total{result="won"} 0.0' in text
        assert 'quantmill_disk_free_bytes{place="scratch"}' in text
        assert "quantmill_database_transaction_duration_seconds_bucket" in text
        assert "http_server_" not in text
        places = {"QUANTMILL_DATA_DIR": str(bench.settings.data_dir), "QUANTMILL_METRICS_PORT": str(port)}
        second = subprocess.run(
            command("worker", "--queues", "cpu"), env=environment(**QUICK, **places), capture_output=True, text=True,
            check=False, timeout=PATIENCE_SECONDS,
        )  # fmt: skip
        assert second.returncode == 1
        assert f"Cannot serve metrics on 127.0.0.1 port {port}" in second.stderr
        assert "QUANTMILL_METRICS_PORT" in second.stderr
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0


@pytest.mark.slow
def test_a_reconciler_serves_its_metrics(bench: Workbench) -> None:
    bench.submit()
    port = free_port()
    places = {"QUANTMILL_DATA_DIR": str(bench.settings.data_dir), "QUANTMILL_METRICS_PORT": str(port)}
    process = subprocess.Popen(command("reconcile"), env=environment(**QUICK, **places))
    try:
        loops = [f'last_success_timestamp_seconds{{loop="{loop}"}} 1.' for loop in ("hand_over", "expire_leases")]
        text = scraped_until(port, lambda text: all(loop in text for loop in loops))
        assert 'quantmill_build_info{process="reconciler"' in text
        assert 'quantmill_jobs{queue="inspect",state="queued"} 1.0' in text
        assert 'quantmill_reconcile_period_seconds{loop="collect_files"}' in text
        assert 'quantmill_reconcile_failures_total{loop="expire_leases"} 0.0' in text
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_SECONDS) == 0
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_up_serves_four_ports(bench: Workbench) -> None:
    port = free_port(4)
    with (bench.folder / "up.log").open("wb") as log:
        up = start_up(
            bench.folder / "home", "--port", "0", stderr=log.fileno(), **QUICK, QUANTMILL_METRICS_PORT=str(port)
        )
    try:
        for number, process in enumerate(("api", "reconciler", "worker", "worker")):
            scraped_until(port + number, lambda text, kind=process: f'quantmill_build_info{{process="{kind}"' in text)
        up.send_signal(signal.SIGTERM)
        assert up.wait(PATIENCE_SECONDS) == 0
    finally:
        if up.poll() is None:
            os.killpg(up.pid, signal.SIGKILL)
            up.wait()
        assert up.stdout is not None
        up.stdout.close()

"""Metrics of an API process, as its own route shows them."""

from __future__ import annotations

import secrets
import shutil
import subprocess
from collections.abc import Iterator

import pytest
from prometheus_client import generate_latest
from prometheus_client.parser import text_string_to_metric_families

from service.db import Database
from service.monitoring import collectors
from service.monitoring.collectors import registry_of
from service.monitoring.declarations import DECLARED
from service.monitoring.timing import timed_store
from service.queues.repository import announce
from tests.support.front import Front, problem

Series = dict[tuple[str, frozenset[tuple[str, str]]], float]
NOBODY = "postgresql+psycopg://nobody@127.0.0.1:1/none"


@pytest.fixture(autouse=True)
def _looked_at_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "FRESH_SECONDS", -1.0)


def series_of(text: str) -> Series:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def scraped(front: Front) -> Series:
    answer = front.http.get("/metrics")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/plain; version=")
    assert answer.headers["cache-control"] == "no-store"
    return series_of(answer.text)


def value(found: Series, name: str, **labels: str) -> float:
    return found.get((name, frozenset(labels.items())), 0.0)


def requests(found: Series, method: str, route: str, status: int) -> float:
    labels = {"http_request_method": method, "http_route": route, "http_response_status_code": str(status)}
    return value(found, "http_server_request_duration_seconds_count", **labels)


def test_requests_are_counted_by_the_template_of_their_route(sqlite_front: Front) -> None:
    before = scraped(sqlite_front)
    model_id = sqlite_front.new_model()
    for path in (f"/v1/models/{model_id}", "/v1/jobs/job_0", "/no/such/path", "/healthz"):
        sqlite_front.http.get(path)
    sqlite_front.http.request("BREW", "/healthz")
    sqlite_front.http.get("/v1/jobs", headers={"Host": "evil.example"})
    now = scraped(sqlite_front)
    for method, route, status, count in (
        ("POST", "/v1/models", 201, 1),
        ("GET", "/v1/models/{model_id}", 200, 1),
        ("GET", "/v1/jobs/{job_id}", 404, 1),
        ("GET", "unmatched", 404, 1),
        ("GET", "/healthz", 200, 1),
        ("_OTHER", "/healthz", 405, 1),
        ("GET", "/metrics", 200, 1),
        ("PUT", "/v1/uploads/{upload_id}/content", 200, 1),
    ):
        assert requests(now, method, route, status) - requests(before, method, route, status) == count, route
    assert value(now, "http_server_active_requests") == 1, "the scrape itself"
    told = "quantmill_uploads_bytes_total"
    assert value(now, told) - value(before, told) == len(b"model bytes")
    for mode in ("read", "write"):
        told = "quantmill_database_transaction_duration_seconds_count"
        assert value(now, told, mode=mode) > value(before, told, mode=mode)


def test_a_fault_of_ours_counts_as_500(sqlite_front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("service.queues.service.figures", lambda *_: 1 / 0)
    before = scraped(sqlite_front)
    assert sqlite_front.http.get("/v1/queues").status_code == 500
    now = scraped(sqlite_front)
    assert requests(now, "GET", "/v1/queues", 500) - requests(before, "GET", "/v1/queues", 500) == 1


@pytest.mark.slow
def test_a_thousand_paths_add_no_series(sqlite_front: Front) -> None:
    def ask() -> None:
        token = secrets.token_hex(4)
        for path in (f"/{token}", f"/v1/jobs/{token}", f"/guide/{token}", f"/v1/{token}/{token}?{token}=1"):
            sqlite_front.http.get(path)

    ask()
    scraped(sqlite_front)
    before = set(scraped(sqlite_front))
    for _ in range(250):
        ask()
    assert set(scraped(sqlite_front)) == before


@pytest.mark.both_databases
def test_queues_and_outboxes_are_looked_up(front: Front) -> None:
    assert front.http.post("/v1/webhooks", json={"url": "https://8.8.8.8/"}).status_code == 201
    job_id = front.new_job()
    running = front.new_job()
    front.claim(running)
    with front.app.database.write() as session:
        announce(session, "worker-1", {"cpu": 3}, short_slots=1)
    found = scraped(front)
    for name, count, labels in (
        ("quantmill_database_up", 1, {}),
        ("quantmill_jobs", 1, {"queue": "cpu", "state": "queued"}),
        ("quantmill_jobs", 1, {"queue": "cpu", "state": "running"}),
        ("quantmill_jobs", 0, {"queue": "gpu", "state": "queued"}),
        ("quantmill_queue_due_jobs", 1, {"queue": "cpu"}),
        ("quantmill_queue_wanted_slots", 2, {"queue": "cpu"}),
        ("quantmill_slots", 1, {"queue": "cpu", "state": "busy"}),
        ("quantmill_slots", 2, {"queue": "cpu", "state": "free"}),
        ("quantmill_short_slots", 1, {"queue": "cpu"}),
        ("quantmill_workers", 1, {"queue": "cpu"}),
        ("quantmill_workers", 0, {"queue": "gpu"}),
        ("quantmill_outbox_pending", 0, {"outbox": "hand_overs"}),
    ):
        assert found[name, frozenset(labels.items())] == count, (name, labels)
    assert value(found, "quantmill_queue_oldest_age_seconds", queue="cpu") >= 0
    assert value(found, "quantmill_disk_free_bytes", place="storage") > 0
    webhook = front.http.get("/v1/webhooks").json()["items"][0]["id"]
    front.http.post(f"/v1/webhooks/{webhook}/ping")
    found = scraped(front)
    pending = ("quantmill_outbox_pending", frozenset({("outbox", "webhooks")}))
    assert found[pending] >= 1
    assert ("quantmill_outbox_overdue_seconds", frozenset({("outbox", "webhooks")})) in found
    told = front.http.get("/metrics").text
    assert not any(secret in told for secret in (job_id, running, webhook, "worker-1", "default"))


def test_each_process_shows_what_is_declared_for_it(sqlite_front: Front) -> None:
    settings, database = sqlite_front.app.settings, sqlite_front.app.database
    for process, looked in (("api", database), ("worker", None), ("reconciler", database)):
        text = generate_latest(registry_of(settings, process, looked)).decode()
        shown = {line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")}
        wanted = {metric.name for metric in DECLARED.values() if process in metric.processes}
        assert {name for name in shown if not name.startswith("process_")} == wanted, process


def test_a_database_that_is_away_is_told_of_and_nothing_breaks(sqlite_front: Front) -> None:
    away = Database(NOBODY)
    registry = registry_of(sqlite_front.app.settings, "reconciler", away)
    generate_latest(registry)
    found = series_of(generate_latest(registry).decode())
    away.close()
    assert found["quantmill_database_up", frozenset()] == 0
    assert not any(name == "quantmill_jobs" for name, _ in found), "what is not known is absent"
    assert value(found, "quantmill_disk_free_bytes", place="data") > 0
    assert value(found, "quantmill_database_errors_total", mode="read") >= 1


def test_what_was_found_is_kept_for_a_moment(sqlite_front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collectors, "FRESH_SECONDS", 3600.0)
    queued = {"queue": "cpu", "state": "queued"}
    assert value(scraped(sqlite_front), "quantmill_jobs", **queued) == 0
    sqlite_front.new_job()
    assert value(scraped(sqlite_front), "quantmill_jobs", **queued) == 0


@pytest.fixture
def timed(sqlite_front: Front) -> Iterator[Front]:
    with timed_store("put"):
        pass
    with pytest.raises(OSError, match="full"), timed_store("put"):
        raise OSError("full")
    yield sqlite_front


def test_operations_of_the_store_are_timed(timed: Front) -> None:
    found = scraped(timed)
    for result in ("ok", "error"):
        told = "quantmill_store_operation_duration_seconds_count"
        assert value(found, told, operation="put", result=result) >= 1


def test_a_real_scrape_is_as_promtool_wants_it(sqlite_front: Front) -> None:
    program = shutil.which("promtool")
    if program is None:
        pytest.skip("PROMTOOL IS NOT INSTALLED: the scrape is not checked by it (apt-get install prometheus)")
    sqlite_front.new_job()
    text = sqlite_front.http.get("/metrics").text
    done = subprocess.run([program, "check", "metrics"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_operators_alone_may_scrape(sqlite_front: Front) -> None:
    for scope in ("read", "submit", "manage", "admin"):
        key = sqlite_front.http.post("/v1/keys", json={"name": "ci", "scope": scope, "tenant": "acme"}).json()["key"]
        problem(sqlite_front.http.get("/metrics", headers={"Authorization": f"Bearer {key}"}), 403, "scope-missing")
    made = sqlite_front.http.post("/v1/keys", json={"name": "prometheus", "scope": "operator"}).json()["key"]
    assert sqlite_front.http.get("/metrics", headers={"Authorization": f"Bearer {made}"}).status_code == 200


def test_metrics_take_no_parameters_and_no_other_method(sqlite_front: Front) -> None:
    problem(sqlite_front.http.post("/metrics"), 405, "method-not-allowed")

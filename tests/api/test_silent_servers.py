"""A broker and a database that accept everything and answer nothing."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
import redis
from sqlalchemy import select
from sqlalchemy.engine import make_url

from service.db import Database, migrate
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.storage import FileStore
from service.tables import Job
from tests.api.conftest import front_of
from tests.support.front import problem
from tests.support.patience import PATIENCE_SECONDS
from tests.support.server import ApiProcess
from tests.support.stalling import StallingProxy, freezable_redis
from tests.worker.workbench import wait_for
from worker.broker import QueueDepths
from worker.reconcile.loops import Reconciler

JOBS = 30


@pytest.mark.redis
def test_a_frozen_broker_keeps_no_submission(app, tmp_path: Path, sqlite_url: str) -> None:
    """A message may take longer than any test: whoever is answered did not wait for one."""
    with freezable_redis(tmp_path) as broker:
        settings = Settings(
            data_dir=tmp_path / "data",
            database_url=sqlite_url,
            broker_url=broker.url,
            publish_seconds=PATIENCE_SECONDS,
            min_free_bytes=0,
        )
        broker.freeze()
        with front_of(app, settings) as front:
            body = front.job_body()
            made = [front.http.post("/v1/jobs", json=body) for _ in range(JOBS)]
            assert {answer.status_code for answer in made} == {202}
            checks = front.http.get("/readyz").json()
            assert (checks["status"], checks["checks"]["broker"]["outcome"]) == ("ready", "degraded")
            broker.thaw()
            ids = {answer.json()["id"] for answer in made}

            def dispatched() -> bool:
                with front.desk.database.read() as session:
                    found = session.scalars(select(Job.id).where(Job.dispatched_at.is_not(None)))
                    return ids <= set(found)

            quick = settings.model_copy(update={"publish_seconds": 5.0})
            sender = Dispatcher(quick)
            reconciler = Reconciler(
                quick, front.desk.database, FileStore(settings.storage_dir), sender, QueueDepths(quick)
            )
            wait_for(lambda: reconciler.redispatch() >= 0 and dispatched())
            sender.close()
        with redis.Redis.from_url(broker.url) as client:
            assert client.llen("cpu") >= JOBS


@pytest.mark.postgres
def test_a_database_that_falls_silent(app, tmp_path: Path, postgres_url: str) -> None:
    where = make_url(postgres_url)
    proxy = StallingProxy(where.host or "127.0.0.1", where.port or 5432)
    url = where.set(host="127.0.0.1", port=proxy.port).render_as_string(hide_password=False)
    settings = Settings(data_dir=tmp_path / "data", database_url=url, min_free_bytes=0, api_answer_seconds=0.5)
    server = None
    try:
        with front_of(app, settings) as front:
            body = front.job_body()
            job_id = front.new_job(**body)
        server = ApiProcess(settings)
        with httpx.Client(base_url=server.url, timeout=PATIENCE_SECONDS) as http:
            assert http.get(f"/v1/jobs/{job_id}").status_code == 200
            proxy.stall()
            for answer in (http.get(f"/v1/jobs/{job_id}"), http.post("/v1/jobs", json=body), http.get("/v1/jobs")):
                problem(answer, 503, "database-unavailable")
                assert int(answer.headers["retry-after"]) >= 1
            assert http.get("/healthz").status_code == 200
            assert http.get("/readyz").json()["checks"]["database"]["outcome"] == "failed"
            proxy.resume()
            wait_for(lambda: http.get(f"/v1/jobs/{job_id}").status_code == 200)
            assert http.post("/v1/jobs", json=body).status_code == 202
    finally:
        proxy.close()
        if server is not None:
            server.close()


def test_a_schema_that_is_left_behind(app, tmp_path: Path, database_url: str) -> None:
    settings = Settings(data_dir=tmp_path / "data", database_url=database_url, min_free_bytes=0)
    with front_of(app, settings) as front:
        migrate(database_url, "base")
        try:
            told = problem(front.http.get("/v1/jobs"), 503, "schema-behind")
            ready = front.http.get("/readyz")
            assert ready.status_code == 503
            assert ready.json()["checks"]["database"]["detail"] == told["detail"]
            assert "quantmill migrate" in told["detail"]
        finally:
            migrate(database_url)
    database = Database(database_url)
    with database.read() as session:
        assert session.scalars(select(Job)).all() == []
    database.close()

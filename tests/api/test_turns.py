"""Slow requests take a bounded part of the threads and connections: others are served meanwhile."""

from __future__ import annotations

import ast
import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest
from fastapi import FastAPI
from sqlalchemy import text

from service import deps
from service.comparison import service as comparing
from service.deps import HEAVY_READERS, READERS
from service.models import router as models
from service.settings import Settings
from service.threads import Asker, ServiceBusyError, Threads, asker
from tests.api.conftest import front_of
from tests.api.serving import served
from tests.security.conftest import bearer, make_key
from tests.support.patience import PATIENCE_SECONDS
from tests.support.source import trees


def test_turns_are_shared_by_tenants_and_routes() -> None:
    """Of eight threads a tenant has six, four on one route; who has fewest is next."""
    at_once, go, order, given = {}, threading.Event(), [], []

    class Noting(Threads):
        def _count_in(self, mine: Asker, change: int) -> None:
            given.extend([mine] * change)
            super()._count_in(mine, change)

    async def ask(threads: Threads, tenant: str, route: str) -> None:
        asker.set(Asker(tenant, route))
        await threads.run(lambda: (order.append(tenant + route), go.wait(PATIENCE_SECONDS)))

    async def main() -> None:
        threads = Noting(8, PATIENCE_SECONDS)
        tasks = [asyncio.create_task(ask(threads, "a", route)) for route in "x" * 9 + "y" * 9]
        tasks += [asyncio.create_task(ask(threads, tenant, "x")) for tenant in "bcd"]
        while len(order) < 8:
            await asyncio.sleep(0.001)
        at_once.update({word: order.count(word) for word in order})
        tasks[9 + 2].cancel()  # one that waits
        asker.set(Asker("a", "z"))
        with pytest.raises(ServiceBusyError):
            busy = Threads(1, 0.0)
            await asyncio.gather(busy.run(lambda: go.wait(0.05)), busy.run(bool))
        go.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert (threads._running, threads._waiting, len(threads._of_askers)) == (0, [], 0)

    asyncio.run(main())
    assert at_once == {"ax": 4, "ay": 2, "bx": 1, "cx": 1}
    assert given[8] == Asker("d", "x"), "the last to come, and the next to go"
    assert len(order) == 9 + 8 + 3


@pytest.mark.both_databases
@pytest.mark.usefixtures("unhurried_probes")
def test_slow_lists_and_comparisons_keep_nobody_else_waiting(
    app: FastAPI, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More of them than there are threads and connections, of one tenant, each with a connection in use."""
    go, begun = threading.Event(), threading.Semaphore(0)
    settings = settings.model_copy(update={"api_answer_seconds": PATIENCE_SECONDS, "open": False})
    monkeypatch.setattr(deps, "CONNECT_SECONDS", PATIENCE_SECONDS)  # a busy machine is no absent database
    with front_of(app, settings) as front, served(app) as url, ThreadPoolExecutor(80) as pool:

        def hang(*_: object, **__: object) -> None:
            with front.app.database.read() as session:
                session.execute(text("SELECT 1"))
                begun.release()
                go.wait(PATIENCE_SECONDS)
                raise ServiceBusyError("It was slow.")

        monkeypatch.setattr(models, "list_page", hang)
        monkeypatch.setattr(comparing, "compare", hang)
        theirs, others = (bearer(make_key(front, "admin", tenant)[1]) for tenant in "ab")
        slow = ["/v1/models"] * 40 + ["/v1/compare?job=a&job=b"] * 40
        with httpx.Client(base_url=url, timeout=PATIENCE_SECONDS) as http:
            sent = [pool.submit(httpx.get, url + path, headers=theirs, timeout=PATIENCE_SECONDS) for path in slow]
            try:
                for _ in range(READERS // 2 + HEAVY_READERS // 2):
                    assert begun.acquire(timeout=PATIENCE_SECONDS)
                assert http.get("/readyz").json()["checks"]["database"]["outcome"] == "ok"
                for headers in (theirs, others):
                    for path in ("/v1/webhooks", "/v1/queues", "/v1/jobs", "/v1/quota", "/v1/artifacts/none"):
                        assert http.get(path, headers=headers).status_code in (200, 404), path
                    body = {"name": "m", "files": []}
                    assert http.post("/v1/models", json=body, headers=headers).status_code == 422
                    assert http.post("/v1/keys", json={"name": "k"}, headers=headers).status_code == 201
                assert not begun.acquire(blocking=False), "no more of them than their share"
            finally:
                go.set()
            assert {one.result().status_code for one in sent} == {503}


def test_no_endpoint_takes_the_threads_of_the_framework_to_the_database() -> None:
    """They are as many as there are connections: those that only compute may, or move bytes."""
    moves = {"self._file.write", "stream.seek", "stream.read", "digest.update"}
    for name, nodes in trees("service").items():
        for node in nodes:
            if isinstance(node, ast.FunctionDef) and "app" in {argument.arg for argument in node.args.args}:
                words = [ast.unparse(one) for one in node.decorator_list]
                assert not any(word.startswith("router.") for word in words) or "reading" in words, (name, node.name)
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "run_in_threadpool":
                assert ast.unparse(node.args[0]) in moves, name

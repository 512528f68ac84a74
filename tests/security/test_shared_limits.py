"""Limits that API processes share in Redis, and those of addresses."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import redis
from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from service.contracts.quota import Quota
from service.deps import get_principal
from service.dispatch.broker import redis_client
from service.keys.guesses import GUESSES_AT_ONCE, Guesses
from service.limiting import HEALTH_PATHS
from service.limits import KEYLESS
from service.monitoring.declarations import SHARED_LIMITS
from service.quotas import addresses, buckets, shared
from service.quotas.addresses import AddressRates
from service.quotas.schemas import AddressRateError
from service.quotas.shared import RedisTokens
from service.settings import Settings
from tests.api.conftest import front_of
from tests.security.conftest import bearer, make_key
from tests.support.front import Front, problem
from tests.support.patience import PATIENCE_SECONDS
from tests.support.stalling import freezable_redis

# So slow that none comes back in a test.
RATE, BURST_SECONDS = 0.01, 2000.0
DEPTH = int(RATE * BURST_SECONDS)
ANYWHERE = "203.0.113.9"


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(buckets, "BURST_SECONDS", BURST_SECONDS)
    monkeypatch.setattr(shared, "STEP_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(shared, "ANSWER_SECONDS", PATIENCE_SECONDS)
    monkeypatch.setattr(shared, "PAUSE_SECONDS", PATIENCE_SECONDS)


def limited(place: Settings, url: str = "") -> Settings:
    return place.model_copy(update={"broker_url": url, "quota": Quota(requests_per_second=RATE)})


@pytest.fixture
def pair(app: FastAPI, place: Settings, redis_url: str) -> Iterator[tuple[Front, Front]]:
    """Two API processes of one installation."""
    with front_of(app, limited(place, redis_url)) as one, front_of(app, limited(place, redis_url)) as other:
        yield one, other


def get(front: Front, path: str = "/v1/jobs") -> int:
    front.http.app.state.app = front.app
    return front.http.get(path).status_code


@pytest.mark.redis
@pytest.mark.parametrize("ahead", (1, 3))
def test_two_processes_allow_the_rate_together(pair: tuple[Front, Front], ahead: int, monkeypatch) -> None:
    monkeypatch.setattr(buckets, "AHEAD_SECONDS", ahead / RATE)
    one, other = pair
    statuses = [get(one)] + [get(other) for _ in range(DEPTH + 5)]
    held = ahead - 1
    assert statuses.count(200) == DEPTH - held
    assert statuses[-1] == 429
    assert [get(one) for _ in range(held + 1)] == [200] * held + [429], "what it took beforehand is its own"


@pytest.mark.redis
def test_headers_tell_what_all_have_left(pair: tuple[Front, Front]) -> None:
    one, other = pair
    for left, front in ((19, one), (18, other), (17, one)):
        front.http.app.state.app = front.app
        assert f";r={left};" in front.http.get("/v1/jobs").headers["ratelimit"]


def counted() -> dict[str, float]:
    return {name: SHARED_LIMITS.labels(name)._value.get() for name in ("answered", "failed", "skipped")}


@pytest.mark.redis
@pytest.mark.slow
@pytest.mark.parametrize("fault", ("freeze", "kill"))
def test_without_redis_each_process_limits_by_itself(
    app: FastAPI, place: Settings, tmp_path: Path, fault: str, monkeypatch, caplog
) -> None:
    if fault == "freeze":
        monkeypatch.setattr(shared, "STEP_SECONDS", 0.05)
    with freezable_redis(tmp_path) as server, front_of(app, limited(place, server.url)) as front:
        assert [get(front) for _ in range(5)] == [200] * 5
        server.freeze() if fault == "freeze" else server.kill()
        before = counted()
        assert [get(front) for _ in range(DEPTH)] == [200] * (DEPTH - 5) + [429] * 5
        failed = {name: value - before[name] for name, value in counted().items()}
        assert failed == {"answered": 0, "failed": 1, "skipped": DEPTH - 6}, "one has asked, the others did not wait"
        assert caplog.text.count("limits.not_shared") == 1
        server.thaw() if fault == "freeze" else server.start()
        assert isinstance(front.app.tokens, RedisTokens)
        front.app.tokens._paused_until = 0.0
        taken = front.app.tokens.take("a bucket", RATE, DEPTH)
        assert taken is not None
        assert taken.granted == 1
        assert not front.app.tokens._away


def tokens_of(place: Settings, url: str, secret: str = "secret") -> RedisTokens:
    settings = place.model_copy(update={"broker_url": url})
    return RedisTokens(redis_client(settings, PATIENCE_SECONDS), secret)


@pytest.mark.redis
def test_buckets_go_by_the_clock_of_redis_and_expire(place: Settings, redis_url: str, monkeypatch) -> None:
    here, there = tokens_of(place, redis_url), tokens_of(place, redis_url)
    assert here.take("tenant acme", RATE, 3.0, 5) == (3, 0.0)
    now = time.time() + 1e7
    monkeypatch.setattr(time, "time", lambda: now)
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert there.take("tenant acme", RATE, 3.0, 5) == (0, 0.0), "a host that is months ahead sees the same"
    assert there.take("tenant acme", RATE, 3.0, -1) == (-1, 1.0)
    assert here.take("tenant acme", RATE, 3.0, 5) == (1, 0.0)
    assert tokens_of(place, redis_url, "another").take("tenant acme", RATE, 3.0, 5) == (3, 0.0)
    with redis.Redis.from_url(redis_url) as client:
        keys = [key.decode() for key in client.keys("quantmill:rate:*")]
        assert len(keys) == 2
        assert "acme" not in "".join(keys)
        assert all(0 < client.ttl(key) <= 3 / RATE for key in keys)
        here.take("tenant beta", 1.0, 3.0)
        here.take("tenant beta", 1.0, 3.0, -3)
        assert len(client.keys("quantmill:rate:*")) == 2, "a full bucket needs no key"


@pytest.mark.redis
def test_guesses_of_one_address_count_in_all_processes(place: Settings, redis_url: str) -> None:
    one, other = (Guesses(tokens_of(place, redis_url)) for _ in range(2))
    half = int(GUESSES_AT_ONCE) // 2
    assert {guesses.take(ANYWHERE) for _ in range(half) for guesses in (one, other)} == {0.0}
    waits = [guesses.take(ANYWHERE) for _ in range(half) for guesses in (one, other)]
    assert sum(wait > 0 for wait in waits) > half, "a few come back while a busy machine is slow"
    assert other.take("203.0.113.10") == 0.0


@pytest.mark.redis
def test_addresses_are_limited_in_all_processes(app: FastAPI, place: Settings, redis_url: str) -> None:
    strict = place.model_copy(update={"broker_url": redis_url, "address_requests_per_second": RATE})
    with front_of(app, strict) as one, front_of(app, strict) as other:
        statuses = [get(front, "/v1/version") for _ in range(DEPTH) for front in (one, other)]
        assert statuses == [200] * DEPTH + [429] * DEPTH


def test_who_has_no_key_is_limited_by_address(app: FastAPI, closed: Front) -> None:
    strict = closed.app.settings.model_copy(update={"address_requests_per_second": 4 / BURST_SECONDS})
    _, key = make_key(closed)
    with front_of(app, strict) as front:
        paths = ("/v1/problems", "/sign-in", "/docs/start.js", "/v1/keys/signing")
        assert [front.http.get(path).status_code for path in paths] == [200] * 4
        for path in (*paths, "/openapi.json", "/shared/x"):
            answer = front.http.get(path)
            problem(answer, 429, "address-rate-limited")
            assert int(answer.headers["retry-after"]) > 1
        assert front.http.post("/sign-in", data={"key": key}).status_code == 429
        problem(front.http.get("/v1/jobs", headers=bearer("wrong")), 429, "address-rate-limited")
        assert "Too many requests" in front.http.get("/sign-in", headers={"Accept": "text/html"}).text
        assert {front.http.get(path).status_code for path in HEALTH_PATHS} == {200}
        assert front.http.get("/v1/jobs", headers=bearer(key)).status_code == 200
        elsewhere = TestClient(app, client=(ANYWHERE, 1))
        assert elsewhere.get("/v1/jobs", headers=bearer("wrong")).status_code == 401
        forwarded = {"X-Forwarded-For": "198.51.100.7"}
        proxy = TestClient(app, client=("127.0.0.1", 1))
        assert proxy.get("/v1/version", headers=forwarded).status_code == 200
        assert elsewhere.get("/v1/version", headers={"X-Forwarded-For": "198.51.100.8"}).status_code == 200
        assert set(front.app.addresses._buckets) == {"testclient", ANYWHERE, "198.51.100.7"}


def test_many_addresses_take_a_bounded_memory_and_a_network_is_one(monkeypatch) -> None:
    monkeypatch.setattr(addresses, "REMEMBERED", 5)

    async def count() -> AddressRates:
        rates = AddressRates(2 / BURST_SECONDS, None)
        for number in range(99):
            await rates.count(f"203.0.113.{number}")
        await rates.count("2001:db8::1")
        await rates.count("2001:db8::2:3")
        with pytest.raises(AddressRateError):
            await rates.count("2001:db8::ffff")
        await rates.count("2001:db8:0:1::1")
        for _ in range(9):
            await rates.count("")
        return rates

    assert len(asyncio.run(count())._buckets) == 5
    asyncio.run(AddressRates(0.0, None).count(ANYWHERE))


def asks_for_a_key(route: APIRoute) -> bool:
    waiting = [route.dependant]
    while waiting:
        found = waiting.pop()
        if found.call is get_principal:
            return True
        waiting += found.dependencies
    return "GuestDep" in str(route.endpoint.__annotations__.values())


def test_every_route_is_counted_by_key_or_by_address(app: FastAPI) -> None:
    waiting, seen = list(app.routes), set()
    while waiting:
        route = waiting.pop()
        if isinstance(route, APIRoute):
            keyless = KEYLESS.fullmatch(route.path) is not None
            assert keyless is not (asks_for_a_key(route) or route.path in HEALTH_PATHS), route.path
            seen.add(keyless)
        elif hasattr(route, "original_router"):
            waiting += route.original_router.routes
    assert seen == {True, False}

"""Pages of other origins, and other names for this machine: what a browser may do with a service on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.settings import Settings
from tests.support import services
from tests.support.browser import ARGUMENTS, browser_trouble, chromium
from tests.support.each import each
from tests.support.front import problem
from tests.support.server import ApiProcess
from tests.worker.workbench import wait_for

HEADERS = ("X-Content-Type-Options", "X-Frame-Options", "Referrer-Policy", "Content-Security-Policy")
OWN = "127.0.0.1:8000"
KEY = "0a1b2c3d4e5f-of-some-length-behind-a-proxy"
DASHBOARD = "https://dash.example:8443"


@pytest.fixture(scope="module")
def http(tmp_path_factory: pytest.TempPathFactory, _sqlite_template: Path) -> Iterator[TestClient]:
    folder = tmp_path_factory.mktemp("loopback")
    (folder / "service.db").write_bytes(_sqlite_template.read_bytes())
    settings = Settings(
        data_dir=folder, database_url=f"sqlite:///{folder / 'service.db'}", min_free_bytes=0,
        allowed_hosts="quant.example, other.example", cors_origins=f"{DASHBOARD}, http://[::1]:3000",
    )  # fmt: skip
    with TestClient(create_app(settings), base_url=f"http://{OWN}") as client:
        yield client


OURS = ["localhost:8000", "127.0.0.1", "127.9.9.9:80", "[::1]:8000", "LOCALHOST.", ""]


@each("host", [*OURS, "quant.example", "OTHER.example:443"])
def test_names_of_loopback_and_those_that_were_given_are_ours(http: TestClient, host: str) -> None:
    assert http.get("/v1/jobs", headers={"Host": host}).status_code == 200


@each("host", ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "10.0.0.7", "[::2]", "a b", "["])
def test_other_names_are_not(http: TestClient, host: str) -> None:
    """A page may have had its own name resolved to 127.0.0.1: the browser then takes us for its server."""
    for method, path in (("GET", "/v1/jobs"), ("GET", "/docs"), ("POST", "/v1/uploads"), ("GET", "/x")):
        problem(http.request(method, path, headers={"Host": host}), 421, "foreign-host")


FOREIGN = [f"http://{OWN}.evil.example", "http://evil.example", "http://127.0.0.1:8001", "null", ""]


@each("headers", [{"Sec-Fetch-Site": site} for site in ("cross-site", "same-site")] + [{"Origin": o} for o in FOREIGN])
def test_other_origins_change_nothing(http: TestClient, headers: dict[str, str]) -> None:
    for method, path in (("POST", "/v1/uploads"), ("POST", "/v1/jobs/x:cancel"), ("DELETE", "/v1/x")):
        problem(http.request(method, path, headers=headers), 403, "foreign-origin")


def test_our_own_pages_and_programs_may(http: TestClient) -> None:
    own, none = {"Sec-Fetch-Site": "same-origin", "Origin": f"http://{OWN}"}, {"Sec-Fetch-Site": "none"}
    for headers in (own, none, {"Origin": "https://quant.example"}, {}):
        assert http.post("/v1/uploads", json={"filename": "a.npz"}, headers=headers).status_code == 201


@each("origin", [DASHBOARD, "http://[::1]:3000"])
def test_pages_of_origins_that_were_given_may(http: TestClient, origin: str) -> None:
    cross = {"Origin": origin, "Sec-Fetch-Site": "cross-site"}
    answer = http.post("/v1/uploads", json={"filename": "a.npz"}, headers=cross)
    assert (answer.status_code, answer.headers["access-control-allow-origin"]) == (201, origin)
    assert "access-control-allow-credentials" not in answer.headers
    assert "Location" in answer.headers["access-control-expose-headers"]
    asked = {**cross, "Access-Control-Request-Method": "PATCH", "Access-Control-Request-Headers": "If-Match"}
    preflight = http.options("/v1/jobs/job_x", headers=asked)
    assert (preflight.status_code, preflight.headers["access-control-allow-origin"]) == (200, origin)
    refused = http.get("/v1/jobs/job_x", headers=cross)
    assert refused.headers["access-control-allow-origin"] == origin, "a page is told what went wrong"


@each("origin", ["https://dash.example", "http://dash.example:8443", f"{DASHBOARD}.evil.example", "null"])
def test_others_may_not(http: TestClient, origin: str) -> None:
    problem(http.post("/v1/uploads", json={}, headers={"Origin": origin}), 403, "foreign-origin")
    asks = {"Access-Control-Request-Method": "GET", "Access-Control-Request-Headers": "Authorization"}
    preflight = http.options("/v1/jobs", headers={"Origin": origin, **asks})
    for answer in (preflight, http.get("/v1/jobs", headers={"Origin": origin})):
        assert "access-control-allow-origin" not in answer.headers


@each("text", ["*", "dash.example", "https://dash.example/", "https://a b", "https://*.example", "null"])
def test_what_is_no_origin_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        Settings(cors_origins=f"https://fine.example, {text}")


@each("path", ["/healthz", "/docs", "/v1/jobs", "/v1/jobs/job_x", "/nothing", "/openapi.json", "/docs/config.md"])
def test_every_answer_says_what_pages_may_do(http: TestClient, path: str) -> None:
    answer = http.get(path)
    assert all(answer.headers.get(name) for name in HEADERS)
    assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]


FORWARDED = {"X-Forwarded-For": "6.6.6.6, 203.0.113.9, 10.9.9.9", "X-Forwarded-Proto": "https"}


@each(
    ("peer", "headers", "public_url", "address", "origin"),
    [("10.1.2.3", FORWARDED, "", "203.0.113.9", "https://inner:8000"),
     ("fd00::7", FORWARDED, "", "203.0.113.9", "https://inner:8000"),
     ("10.1.2.3", {"X-Forwarded-For": "x" * 10_000}, "", "x" * 45, "http://inner:8000"),
     ("203.0.113.7", FORWARDED, "", "203.0.113.7", "http://inner:8000"),
     ("203.0.113.7", FORWARDED, "https://quant.example", "203.0.113.7", "https://quant.example")],
)  # fmt: skip
def test_what_a_proxy_forwards_is_believed_if_it_is_trusted(
    place: Settings, peer: str, headers: dict[str, str], public_url: str, address: str, origin: str
) -> None:
    given = {"trusted_proxies": "10.0.0.0/8, fd00::/8", "public_url": public_url, "api_key": KEY, "open": False}
    app = create_app(Settings(**{**place.model_dump(), **given}))
    client = TestClient(app, "http://inner:8000", client=(peer, 1), follow_redirects=False, headers=headers)
    with client as http:
        cookie = http.post("/sign-in", data={"key": KEY}, headers={"Origin": origin}).headers["set-cookie"]
        assert ("Secure" in cookie) == origin.startswith("https")
        assert http.get("/jobs/").headers["location"] == f"{origin}/jobs"
        bearer = {"Authorization": f"Bearer {KEY}"}
        assert http.post("/v1/uploads", json={"filename": "a.npz"}, headers=bearer).status_code == 201
        assert http.get("/v1/audit", headers=bearer).json()["items"][0]["address"] == address


@each(
    ("name", "text"), [("trusted_proxies", "proxy"), ("trusted_proxies", "10.0.0.1/8"), ("public_url", "https://a/b")]
)
def test_what_names_no_proxy_or_place_is_refused(name: str, text: str) -> None:
    with pytest.raises(ValueError, match=name):
        Settings(**{name: text})


@pytest.fixture
def server(place: Settings) -> Iterator[ApiProcess]:
    process = ApiProcess(place)
    yield process
    process.close()


@pytest.fixture
def page() -> Iterator[Any]:
    services.require(browser_trouble())
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        yield browser.new_page()
        browser.close()


VIOLATIONS = """window.violations = [];
document.addEventListener("securitypolicyviolation", event => window.violations.push(
  event.violatedDirective + " " + event.blockedURI + " " + event.sample));"""


@pytest.mark.long
@pytest.mark.slow
def test_the_page_of_the_documentation_obeys_its_strict_policy(server: ApiProcess, page: Any) -> None:
    """It shows everything without a script or a style of its own, and runs none that somebody else puts into it."""
    page.add_init_script(VIOLATIONS)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    answer = page.goto(f"{server.url}/docs")
    policy = answer.headers["content-security-policy"]
    assert "unsafe" not in policy
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    page.wait_for_selector(".opblock")
    page.click(".opblock button")
    page.wait_for_selector(".opblock-body")
    assert page.evaluate("window.violations") == []
    assert all(url.startswith((server.url, "data:")) for url in asked)
    page.evaluate("document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=\"window.ran = 1\">')")
    wait_for(lambda: page.evaluate("window.violations.length"))
    assert page.evaluate("window.ran") is None

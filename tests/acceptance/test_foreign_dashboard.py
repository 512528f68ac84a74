"""Another team's dashboard, on an origin of its own, in a browser: it lists, filters, follows and compares."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from service.app import create_app
from service.jobs import events
from service.jobs.outcome import NewArtifact, QuantizeOutcome
from service.settings import Settings
from tests.support import services
from tests.support.browser import ARGUMENTS, browser_trouble, chromium
from tests.support.front import Front, make_report
from tests.support.patience import PATIENCE_SECONDS
from tests.support.scripted import Scripted, scripted
from tests.support.server import ApiProcess

pytestmark = pytest.mark.slow
KEY = "3f786850e387550fdab836ed7e6dc881"

PAGE = """<!doctype html><title>dashboard</title><script>
const headers = {Authorization: "Bearer KEY"}, api = "URL/v1";
const call = async (path, more = {}) => {
  const answer = await fetch(api + path, {headers, ...more});
  if (!answer.ok) throw new Error((await answer.json()).code);
  return answer;
};
const list = async query => (await (await call("/jobs?" + query)).json()).items.map(job => job.name);
const compare = async ids => (await call("/compare?" + ids.map(id => "job=" + id).join("&"))).json();
const etag = async id => (await call("/jobs/" + id)).headers.get("ETag");
const label = async (id, labels) => (await (await call("/jobs/" + id, {
  method: "PATCH", headers: {...headers, "Content-Type": "application/json"}, body: JSON.stringify({labels}),
})).json()).labels;
const refusal = async path => { try { await call(path); return null; } catch (error) { return error.message; } };
window.seen = [];
const follow = async id => {
  const {url} = await (await call("/jobs/" + id + "/events/token", {method: "POST"})).json();
  const source = new EventSource("URL" + url);
  for (const kind of ["state", "log"])
    source.addEventListener(kind, event => window.seen.push([Number(event.lastEventId), JSON.parse(event.data)]));
  source.addEventListener("end", event => { source.close(); window.ended = JSON.parse(event.data); });
};
</script>"""


@pytest.fixture
def pages() -> dict[str, str]:
    """What the host serves, once it is known."""
    return {"text": ""}


@pytest.fixture
def host(pages: dict[str, str]) -> Iterator[Scripted]:
    """What serves the dashboard's page."""
    head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"
    with scripted(lambda connection: connection.sendall((head + pages["text"]).encode())) as running:
        yield running


@pytest.fixture
def server(host: Scripted, tmp_path: Path, sqlite_url: str) -> Iterator[ApiProcess]:
    process = ApiProcess(
        Settings(
            data_dir=tmp_path / "data",
            database_url=sqlite_url,
            min_free_bytes=0,
            api_key=KEY,
            open=False,
            cors_origins=f"http://dashboard.localhost:{host.port}",
        )
    )
    yield process
    process.close()


@pytest.fixture
def worker(server: ApiProcess) -> Iterator[Front]:
    """The database behind the server, to do the worker's part."""
    app = create_app(server.settings)
    with TestClient(app, headers={"Authorization": f"Bearer {KEY}"}) as http:
        yield Front(http, app.state.desk)


def succeed(worker: Front, job_id: str) -> None:
    data = job_id.encode()
    artifact = NewArtifact("model", "q.onnx", "application/octet-stream", worker.store(data), len(data))
    worker.finish(job_id, QuantizeOutcome(make_report("pass"), (artifact,)))


def test_a_dashboard_of_another_origin(
    host: Scripted, pages: dict[str, str], server: ApiProcess, worker: Front
) -> None:
    services.require(browser_trouble())
    from playwright.sync_api import sync_playwright

    nouns = {"model_id": worker.ready_model(), "calibration_dataset_id": worker.ready_dataset()}
    ids = [
        worker.new_job(name=name, labels={"team": team}, config={"preset": "int8", "seed": seed}, **nouns)
        for seed, (name, team) in enumerate([("one", "a"), ("two", "b"), ("three", "a")])
    ]
    for job_id in ids[:2]:
        succeed(worker, job_id)
    pages["text"] = PAGE.replace("KEY", KEY).replace("URL", server.url)
    with sync_playwright() as play:
        browser = play.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
        page = browser.new_page()
        page.set_default_timeout(PATIENCE_SECONDS * 1000)
        page.goto(f"http://dashboard.localhost:{host.port}/")
        assert page.evaluate("list('limit=10')") == ["three", "two", "one"]
        assert page.evaluate("list('label.team=a')") == ["three", "one"]
        assert page.evaluate("list('label[team]=b')") == ["two"]
        compared = page.evaluate("ids => compare(ids)", ids[:2])
        assert compared["config_differences"] == [{"pointer": "/seed", "values": [0, 1]}]
        assert page.evaluate("id => etag(id)", ids[0]).startswith('"')
        assert page.evaluate("id => label(id, {seen: 'yes'})", ids[0]) == {"team": "a", "seen": "yes"}
        assert page.evaluate("refusal('/jobs/job_nobody')") == "job-not-found"

        page.evaluate("id => follow(id)", ids[2])
        page.wait_for_function("window.seen.length === 1")
        with worker.desk.database.write() as session:
            events.append(session, ids[2], 0, "log", {"level": "info", "message": "seen from afar"})
        page.wait_for_function("window.seen.length === 2")
        succeed(worker, ids[2])
        page.wait_for_function("window.ended !== undefined")
        seen = page.evaluate("window.seen")
        assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
        assert seen[1][1]["data"]["message"] == "seen from afar"
        assert page.evaluate("window.ended")["state"] == "succeeded"

        # the same page under a name that was not allowed
        page.goto(f"http://other.localhost:{host.port}/")
        with pytest.raises(Exception, match="Failed to fetch"):
            page.evaluate("list('limit=10')")
        browser.close()

"""Another team's dashboard, on an origin of its own, in a browser: it reads, labels and follows jobs."""

from __future__ import annotations

from pathlib import Path

import pytest

from service.app import create_app
from service.jobs import events
from service.settings import Settings
from tests.api.conftest import front_of
from tests.api.serving import served
from tests.support import services
from tests.support.batches import succeed
from tests.support.browser import browser_trouble, new_page, running_browser
from tests.support.scripted import scripted

pytestmark = pytest.mark.slow
KEY = "3f786850e387550fdab836ed7e6dc881"

PAGE = """<!doctype html><title>dashboard</title><script>
const headers = {Authorization: "Bearer KEY"}, api = "URL/v1";
const call = async (path, more = {}) => {
  const answer = await fetch(api + path, {headers, ...more});
  if (!answer.ok) throw new Error((await answer.json()).code);
  return answer;
};
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


def test_a_dashboard_of_another_origin(tmp_path: Path, sqlite_url: str) -> None:
    services.require(browser_trouble())
    text = ["HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n"]
    with scripted(lambda connection: connection.sendall("".join(text).encode())) as host, running_browser() as browser:
        settings = Settings(
            data_dir=tmp_path / "data", database_url=sqlite_url, min_free_bytes=0, api_key=KEY, open=False,
            cors_origins=f"http://dashboard.localhost:{host.port}",
        )  # fmt: skip
        with front_of(create_app(settings), settings) as worker, served(worker.http.app) as url:
            worker.http.headers["Authorization"] = f"Bearer {KEY}"
            job_id = worker.new_job(labels={"team": "a"})
            text.append(PAGE.replace("KEY", KEY).replace("URL", url))
            page = new_page(browser.new_context(), f"http://dashboard.localhost:{host.port}/").page
            assert page.evaluate("id => etag(id)", job_id).startswith('"')
            assert page.evaluate("id => label(id, {seen: 'yes'})", job_id) == {"team": "a", "seen": "yes"}
            assert page.evaluate("refusal('/jobs/job_nobody')") == "job-not-found"

            page.evaluate("id => follow(id)", job_id)
            page.wait_for_function("window.seen.length === 1")
            with worker.app.database.write() as session:
                events.append(session, job_id, 0, "log", {"level": "info", "message": "seen from afar"})
            page.wait_for_function("window.seen.length === 2")
            succeed(worker, job_id)
            page.wait_for_function("window.ended !== undefined")
            seen = page.evaluate("window.seen")
            assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
            assert seen[1][1]["data"]["message"] == "seen from afar"
            assert page.evaluate("window.ended")["state"] == "succeeded"

            # the same page under a name that was not allowed
            page.goto(f"http://other.localhost:{host.port}/")
            with pytest.raises(Exception, match="Failed to fetch"):
                page.evaluate("id => etag(id)", job_id)

"""How soon pages show something, and what open pages of jobs cost the API.

    python -m benchmarks.dashboard [--jobs 10000] [--layers 500] [--open 50] [--seconds 20]

An API runs on a temporary folder with that many jobs, one with a report of that many layers, and one that tells of its
progress, with figures for its curves, twice a second. First contentful paint is what Chromium reports of a page that it
has not seen before; its style and scripts come anew each time. The API's share of a core is read from /proc while that
many pages of the running job are open, each with its event stream. Exits with 1 if a page takes longer than 300 ms or
the open ones cost more than a fifth of a core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import httpx

from benchmarks.api import fill as copy_job
from benchmarks.api import telling
from service.db import migrate
from service.deps import AppState
from service.settings import Settings
from tests.support.browser import browser_trouble, running_browser
from tests.support.filled import fill, succeed
from tests.support.front import Front
from tests.support.pages import PAGES, is_served
from tests.support.patience import PATIENCE_SECONDS
from tests.support.reports import large_report
from tests.support.server import ApiProcess

TAKEN = 5
LIMIT_MS, LIMIT_SHARE = 300.0, 0.2
_PAINTED = """() => new Promise(done => {
  const first = list => list.find(one => one.name === 'first-contentful-paint');
  const known = first(performance.getEntriesByType('paint'));
  if (known) return done(known.startTime);
  new PerformanceObserver((list, observer) => {
    const one = first(list.getEntries());
    if (one) { observer.disconnect(); done(one.startTime); }
  }).observe({type: 'paint', buffered: true});
})"""


def cpu_seconds(pid: int) -> float:
    """What a process has computed so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def paints(browser: Any, url: str, ids: dict[str, str]) -> dict[str, tuple[list[float], int]]:
    """Milliseconds to the first contentful paint, and bytes of the document, by page."""
    found = {}
    for known in PAGES:
        if not is_served(known.path):
            continue
        address, times, size = url + known.path.format(**ids), [], 0
        for _ in range(TAKEN):
            context = browser.new_context(viewport={"width": 1440, "height": 900})
            page = context.new_page()
            answer = page.goto(address, wait_until="load")
            times.append(page.evaluate(_PAINTED))
            size = len(answer.body())
            context.close()
        found[known.name] = times, size
    return found


def share_of_core(browser: Any, api: ApiProcess, job_id: str, pages: int, seconds: float) -> float:
    """What the API takes of a core while so many pages of a running job are open."""
    contexts = []
    for _ in range(pages):
        # of a browser's own each: one would share its connections, and have six at a time
        context = browser.new_context()
        context.new_page().goto(f"{api.url}/jobs/{job_id}", wait_until="load")
        contexts.append(context)
    before, begun = cpu_seconds(api.pid), time.monotonic()
    time.sleep(seconds)
    share = (cpu_seconds(api.pid) - before) / (time.monotonic() - begun)
    for context in contexts:
        context.close()
    return share


def main() -> int:
    """Measure and print; the exit code says whether every page was painted in time, and open ones cost little."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=10_000, help="in the table")
    parser.add_argument("--layers", type=int, default=500, help="of the report")
    parser.add_argument("--open", type=int, default=50, help="pages of the running job")
    parser.add_argument("--seconds", type=float, default=20.0, help="for which they are open")
    options = parser.parse_args()
    if (trouble := browser_trouble()) is not None:
        parser.error(trouble)
    os.environ["QUANTMILL_OPEN"] = "true"
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="quantmill-pages-")))
        url = f"sqlite:///{folder / 'service.db'}"
        migrate(url)
        settings = Settings(data_dir=folder / "data", database_url=url, min_free_bytes=0, open=True)
        app = AppState.from_settings(settings)
        stack.callback(app.close)
        api = ApiProcess(settings)
        stack.callback(api.close)
        http = stack.enter_context(httpx.Client(base_url=api.url, timeout=PATIENCE_SECONDS))
        front = Front(http, app)  # type: ignore[arg-type]
        ids = fill(front)
        large = front.new_job(model_id=ids["model"], calibration_dataset_id=ids["dataset"], name="large")
        succeed(front, large, large_report(options.layers))
        copy_job(app.database, ids["queued"], options.jobs)
        browser = stack.enter_context(running_browser())
        seen = paints(browser, api.url, {**ids, "succeeded": large})
        with telling(app.database, ids["running"], figures=True):
            share = share_of_core(browser, api, ids["running"], options.open, options.seconds)
    print(f"{options.jobs} jobs, a report of {options.layers} layers; milliseconds of {TAKEN} views each\n")
    print("| Page | Document | First contentful paint, median | Longest |")
    print("|---|---|---|---|")
    for name, (times, size) in seen.items():
        print(f"| {name} | {size / 1024:.0f} KiB | {statistics.median(times):.0f} ms | {max(times):.0f} ms |")
    print(f"\n{options.open} open pages of a job that tells of its progress twice a second: {share:.0%} of a core")
    in_time = all(statistics.median(times) <= LIMIT_MS for times, _ in seen.values())
    return 0 if in_time and share <= LIMIT_SHARE else 1


if __name__ == "__main__":
    sys.exit(main())

"""Pictures of the pages of a service with real work in it: light, dark and narrow.

usage: python -m tools.screenshots [--output build/screenshots] [--readme docs/pictures]

Starts a service on a temporary folder, trains the small network of the demo on real digits, quantizes it, and goes
through the pages with Chromium. Pages that the service does not have are left out.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from playwright.sync_api import Browser, sync_playwright

from service.client import Client
from service.contracts.config import parse_config
from service.contracts.dataset import PreprocessingSpec
from service.keys.files import LOCAL_KEY_FILE, own_secret
from tests.support.browser import ARGUMENTS, browser_trouble, chromium
from tests.support.pages import Known, is_served
from worker.commands.demo import CONFIG, PREPROCESSING, serving

PAGES = (
    Known("sign-in", "/sign-in"),
    Known("overview", "/"),
    Known("jobs", "/jobs"),
    Known("job", "/jobs/{job}"),
    Known("job-failed", "/jobs/{failed}"),
    Known("job-missing", "/jobs/job_nothing"),
    Known("new", "/new"),
    Known("new-from", "/new?from={job}"),
    Known("report", "/jobs/{job}/report"),
    Known("graph", "/jobs/{job}/graph"),
    Known("compare", "/compare?job={job}&job={other}"),
    Known("models", "/models"),
    Known("model", "/models/{model}"),
    Known("trials", "/jobs/{found}/trials"),
    Known("batches", "/batches"),
    Known("batch", "/batches/{batch}"),
    Known("datasets", "/datasets"),
    Known("dataset", "/datasets/{dataset}"),
    Known("schedules", "/schedules"),
    Known("schedule", "/schedules/{schedule}"),
    Known("edit-schedule", "/schedules/{schedule}/edit"),
    Known("new-schedule", "/schedules/new?from={job}"),
    Known("workers", "/workers"),
    Known("webhooks", "/webhooks"),
    Known("new-webhook", "/webhooks/new"),
    Known("keys", "/keys"),
    Known("audit", "/audit"),
    Known("tenants", "/tenants"),
    Known("tenant", "/tenants/default"),
)


WAIT_SECONDS = 120.0


# What the README shows, of the size of a window.
README = (
    Known("job", "/jobs/{other}"),
    Known("report", "/jobs/{other}/report"),
    Known("graph", "/jobs/{other}/graph?node=%2F4%2F4.3%2FConv"),
)
WINDOW: Any = {"width": 1280, "height": 800}


class Look(NamedTuple):
    """How a page is looked at."""

    name: str
    width: int
    height: int
    scheme: str


LOOKS = (Look("light", 1440, 900, "light"), Look("dark", 1440, 900, "dark"), Look("phone", 360, 780, "light"))


def work(folder: Path, client: Client) -> dict[str, str]:
    """Give the service something to show; ids by what they are."""
    # in a process of its own: torch must not be loaded where others are started
    subprocess.run([sys.executable, "-m", "worker.commands.demo_model", str(folder)], check=True)
    spec = PreprocessingSpec.model_validate(PREPROCESSING)
    model = client.wait_ready(client.push_model(folder / "digits.onnx")).id
    calibration = client.wait_ready(client.push_dataset(folder / "calibration.npz", spec)).id
    evaluation = client.wait_ready(client.push_dataset(folder / "evaluation.npz", spec)).id
    inputs = {"model": model, "calibration": calibration, "evaluation": evaluation}
    job = client.submit(**inputs, config=parse_config(CONFIG), name="digits, as the demo does")
    tuned = {**CONFIG, "preset": "u8s8_aaws_adaround"}
    other = client.submit(**inputs, config=parse_config(tuned), name="digits, rounded by adaround")
    failing = client.submit(**inputs, config=parse_config(CONFIG), name="canceled by hand")
    client.cancel(failing.id)
    goal = {"kind": "drop", "metric": "top1", "max_drop": 0.5}
    search = {"method": "autopilot", "goal": goal, "budget": {"max_trials": 4}}
    searched = {"preset": "xint8", "algorithms": [search]}
    found = client.submit(**inputs, config=parse_config(searched), name="digits, searched")
    batch = client.submit_batch(
        [model],
        presets=["int8", "int8_dynamic"],
        calibration=calibration,
        evaluation=evaluation,
        name="digits by two presets",
    )
    for one in (job, other, found):
        client.wait_succeeded(one.id)
    client.wait_batch(batch.id)
    client.wait(failing.id)
    template = {
        "model_id": "digits@latest",
        "calibration_dataset_id": calibration,
        "evaluation_dataset_id": evaluation,
        "config": CONFIG,
    }
    schedule = client.create_schedule("digits nightly", "0 3 * * *", template)
    for _ in range(2):
        run = client.run_schedule(schedule.id)
        client.wait_succeeded(_job_of(client, schedule.id, run.id))
    return {
        "job": job.id,
        "other": other.id,
        "failed": failing.id,
        "found": found.id,
        "batch": batch.id,
        "schedule": schedule.id,
        "model": model,
        "dataset": calibration,
    }


def _job_of(client: Client, schedule_id: str, run_id: str) -> str:
    """The job of a run, once the reconciler has submitted it."""
    ends = time.monotonic() + WAIT_SECONDS
    while (job_id := client.schedule_run(schedule_id, run_id).job_id) is None:
        if time.monotonic() > ends:
            raise TimeoutError(f"the run {run_id} has no job after {WAIT_SECONDS:g} s")
        time.sleep(0.5)
    return job_id


def take(browser: Browser, url: str, key: str, ids: dict[str, str], output: Path) -> int:
    """Write the pictures; how many there are."""
    taken = 0
    for look in LOOKS:
        viewport: Any = {"width": look.width, "height": look.height}
        scheme: Any = look.scheme
        context = browser.new_context(viewport=viewport, color_scheme=scheme)
        page = context.new_page()
        for known in PAGES:
            if not is_served(known.path):
                continue
            page.goto(url + known.path.format(**ids), wait_until="load")
            page.screenshot(path=output / f"{known.name}-{look.name}.png", full_page=True)
            taken += 1
            if known.name == "sign-in":
                page.fill("#f-key", key)
                page.get_by_role("button", name="Sign in").click()
                page.wait_for_url(f"{url}/")
        context.close()
    return taken


def take_readme(browser: Browser, url: str, key: str, ids: dict[str, str], output: Path) -> None:
    """Write the pictures of the README."""
    page = browser.new_context(viewport=WINDOW, color_scheme="light").new_page()
    page.goto(f"{url}/sign-in")
    page.fill("#f-key", key)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{url}/")
    for known in README:
        page.goto(url + known.path.format(**ids), wait_until="load")
        page.screenshot(path=output / f"{known.name}.png")
    page.context.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path("build/screenshots"))
    parser.add_argument("--readme", type=Path, help="folder for the pictures of the README; none: not taken")
    options = parser.parse_args()
    output: Path = options.output
    if (trouble := browser_trouble()) is not None:
        parser.error(trouble)
    output.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="quantmill-screenshots-") as temporary:
        folder, home = Path(temporary), Path(temporary) / "home"
        with serving(home, folder / "service.log") as url:
            key = own_secret(home / LOCAL_KEY_FILE)
            with Client(url, key=key) as client:
                ids = work(folder, client)
            with sync_playwright() as driver:
                browser = driver.chromium.launch(executable_path=chromium(), args=list(ARGUMENTS))
                taken = take(browser, url, key, ids, output)
                if options.readme is not None:
                    options.readme.mkdir(parents=True, exist_ok=True)
                    take_readme(browser, url, key, ids, options.readme)
                browser.close()
    print(f"{taken} pictures in {output}")


if __name__ == "__main__":
    main()

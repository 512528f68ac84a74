"""The command line that a job's page shows works as it is pasted into a shell."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
from pathlib import Path

import httpx
import pytest

from service.jobs.schemas import JobOut
from tests.cli.conftest import KEY, ROOT
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import Service

_BLOCK = re.compile(r'<pre class="take"[^>]*aria-label="Command line"[^>]*>(.*?)</pre>', re.DOTALL)


def shown(service: Service, job_id: str) -> str:
    """What the button of the page copies."""
    with httpx.Client(base_url=service.url, follow_redirects=True, timeout=PATIENCE_SECONDS) as browser:
        browser.post("/sign-in", data={"key": KEY}, headers={"Origin": service.url})
        page = browser.get(f"/jobs/{job_id}", headers={"Accept": "text/html"})
    assert page.status_code == httpx.codes.OK
    (block,) = _BLOCK.findall(page.text)
    return html.unescape(block)


def pasted(command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command in bash, as somebody runs it who has the service's key and ``quantmill`` in the path."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith("QUANTMILL_")}
    path = f"{ROOT / '.venv' / 'bin'}:{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env={**variables, "PATH": path, "QUANTMILL_API_KEY": KEY, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )


@pytest.mark.slow
@pytest.mark.parametrize("which", ["job", "other_job"])
def test_the_command_line_of_a_job_submits_the_same_again(
    which: str, request: pytest.FixtureRequest, service: Service, tmp_path: Path
) -> None:
    """A job of a preset alone; one with a config, a gate, and a name that a shell could take for more than text."""
    job: JobOut = request.getfixturevalue(which)
    done = pasted(shown(service, job.id), tmp_path)
    assert done.returncode == 0, done.stderr
    again = service.client.job(done.stdout.split()[0])
    same = (
        "model_id",
        "calibration_dataset_id",
        "evaluation_dataset_id",
        "preset",
        "config",
        "name",
        "labels",
        "verdict",
    )
    assert {name: getattr(again, name) for name in same} == {name: getattr(job, name) for name in same}
    assert again.id != job.id
    assert json.loads(json.dumps(again.config)) == job.config

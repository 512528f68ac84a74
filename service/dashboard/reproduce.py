"""The same request as a job's for a shell, for the command line and for Python: each works as it is pasted."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from service.dashboard.config_form import differing
from service.dashboard.forms import pretty
from service.jobs.schemas import JobOut
from service.jobs.views import given_name

_KEY = "Set QUANTMILL_API_KEY to a key of this service first."


class Command(NamedTuple):
    """How a job is submitted again."""

    title: str
    text: str
    hint: str = ""


def commands(job: JobOut, base_url: str) -> list[Command]:
    """The commands; none for jobs that are no quantization.

    Args:
        job: to be submitted again.
        base_url: of this service.
    """
    if job.kind != "quantize" or job.model_id is None or job.config is None:
        return []
    config, url = differing(job.config), base_url.rstrip("/")
    python = (
        "from quantmill import Client\n\n"
        f"with Client({url!r}) as client:\n    job = client.retry({job.id!r})\n    client.wait_succeeded(job.id)\n"
    )
    return [
        Command("Command line", _command_line(job, config, url), _KEY),
        Command("curl", _curl(job, config, url)),
        Command("Python", python),
    ]


def _command_line(job: JobOut, config: dict[str, Any], url: str) -> str:
    """``quantmill jobs submit`` with the ids of model and data, which the service has."""
    options = {
        "--model": job.model_id,
        "--calibration": job.calibration_dataset_id,
        "--evaluation": job.evaluation_dataset_id,
        "--name": given_name(job),
        "--priority": str(job.priority) if job.priority else None,
        "--device": job.device if job.device != "auto" else None,
    }
    preset_alone = set(config) <= {"preset"}
    options |= {"--preset": job.preset} if preset_alone else {"--config": "config.json"}
    words = [f"{option} {shlex.quote(value)}" for option, value in options.items() if value is not None]
    words += [f"--label {shlex.quote(f'{key}={value}')}" for key, value in job.labels.items()]
    submit = " \\\n  ".join(["quantmill jobs submit", *words, f"--server {shlex.quote(url)} --wait"])
    return submit if preset_alone else f"cat > config.json <<'JSON'\n{pretty(config)}\nJSON\n{submit}"


def _curl(job: JobOut, config: dict[str, Any], url: str) -> str:
    body: dict[str, Any] = {"model_id": job.model_id, "config": config}
    for name in ("calibration_dataset_id", "evaluation_dataset_id"):
        if getattr(job, name) is not None:
            body[name] = getattr(job, name)
    if (given := given_name(job)) is not None:
        body["name"] = given
    if job.labels:
        body["labels"] = job.labels
    return (
        f'curl --fail-with-body -X POST {url}/v1/jobs -H "Authorization: Bearer $QUANTMILL_API_KEY" \\\n'
        f"  -H 'Content-Type: application/json' --data-binary @- <<'JSON'\n{pretty(body)}\nJSON"
    )

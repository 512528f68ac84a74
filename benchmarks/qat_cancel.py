"""How soon a training ends that somebody cancels: a job of a real service, canceled at random moments of an epoch.

"s" is from the request until the job is told as canceled. Goal: 2 s.
"""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.cases import W4A4, case_of, data_folder
from service.client import Client
from service.contracts.config import parse_config
from worker.commands.demo import serving

MODELS = ("ResNet20", "KWT-1", "MobileNetV2 1.0")
GOAL_SECONDS = 2.0
_CANCELS = 5
_CONFIG: dict[str, Any] = {**W4A4, "algorithms": [{"method": "qat"}]}


def compare(words: list[str]) -> None:
    """Print the table."""
    dice = random.Random(0)
    folder = data_folder()
    print("| model | median s | most s | goal |\n" + "|" + "---|" * 4)
    with tempfile.TemporaryDirectory() as temporary:
        scratch = Path(temporary)
        with serving(scratch / "home", scratch / "service.log") as url, Client(url) as client:
            for name in MODELS:
                if not any(word in name for word in words):
                    continue
                case = case_of(name)
                model = client.wait_ready(client.push_model(folder / case.model))
                path, preprocessing = case.calibration
                data = client.wait_ready(client.push_dataset(folder / path, preprocessing))
                seconds = [_cancel(client, model.id, data.id, dice.uniform(0.5, 4.0)) for _ in range(_CANCELS)]
                met = "met" if max(seconds) <= GOAL_SECONDS else "missed"
                print(f"| {name} | {statistics.median(seconds):.2f} | {max(seconds):.2f} | {met} |", flush=True)


def _cancel(client: Client, model_id: str, data_id: str, after_seconds: float) -> float:
    """Let a job train for a while, cancel it, and wait until it has ended; seconds of the last."""
    job = client.submit(model=model_id, calibration=data_id, config=parse_config(_CONFIG))
    for event in client.follow(job.id):
        if event.type == "metric":  # that of the start: steps follow
            break
    time.sleep(after_seconds)
    began = time.monotonic()
    client.cancel(job.id)
    ended = client.wait(job.id)
    if ended.state != "canceled":
        raise RuntimeError(f"the job ended as {ended.state}: the training was over before")
    return time.monotonic() - began

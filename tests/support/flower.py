"""A real Flower from PyPI, in the environment that ``make flower`` makes: what operators look at Celery with.

Without that environment the test that needs it is skipped; with CI=true it fails instead.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.fault.harness.servers import free_port
from tests.support.mlflow_server import is_there, serving
from tests.worker.running import ROOT

HOME = ROOT / ".venv-flower"


def flower_trouble() -> str | None:
    """Why there is no Flower to test with; None if there is."""
    if (HOME / ".installed").exists():
        return None
    return f"no Flower in {HOME.name}: Celery's monitoring is not tested; make flower installs it"


@contextmanager
def flower(folder: Path, broker_url: str) -> Iterator[str]:
    """The address of a Flower that knows the broker and nothing else of ours."""
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    command = ["celery", "--broker", broker_url, "flower", "--address=127.0.0.1", f"--port={port}"]
    own = {"PYTHONPATH": "", "FLOWER_UNAUTHENTICATED_API": "true"}
    with serving(folder, "flower", command, lambda: is_there(f"{url}/healthcheck"), home=HOME, **own):
        yield url

"""A version replaces the one before it, process by process, while clients work: nothing is lost, and nobody is refused.

The version before is the code of the commit before the newest migration.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from pathlib import Path

import httpx
import pytest

from service.db import migrate
from tests.fault.client import Client
from tests.fault.harness.faults import ASKED_TO_END
from tests.fault.harness.installation import Backend, Installation
from tests.fault.harness.versions import history_trouble, version_before
from tests.fault.ledger import Ledger, check
from tests.support.patience import PATIENCE_SECONDS
from tests.support.tiny import Tiny

pytestmark = [pytest.mark.slow, pytest.mark.long]

_PAUSE_SECONDS = 0.3
_MOST_LIVE = 3
PATHS = ("/readyz", "/v1/jobs?limit=5", "/v1/models?limit=5", "/v1/queues")


class Load:
    """Reads and submissions, one after the other, until it is ended; what was answered is counted."""

    def __init__(self, installation: Installation, client: Client) -> None:
        self.answers: Counter[str] = Counter()
        self.databases: Counter[str] = Counter()
        self.refused: list[str] = []
        self._installation = installation
        self._client = client
        self._http = httpx.Client(base_url=installation.url, timeout=PATIENCE_SECONDS, trust_env=False)
        self._over = threading.Event()
        self._threads = ThreadPoolExecutor(1)

    def __enter__(self) -> Load:
        self._done = self._threads.submit(self._run)
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._threads.shutdown()
        self._http.close()
        self._done.result()  # raises what ended it

    def _run(self) -> None:
        number = 0
        while not self._over.wait(_PAUSE_SECONDS):
            for path in PATHS:
                self._ask(path)
            # no more than the workers get done: jobs that are waited for stand behind them
            if self._installation.live_jobs() < _MOST_LIVE:
                self._client.submit(f"load-{number}")
            number += 1

    def _ask(self, path: str) -> None:
        try:
            answer = self._http.get(path)
        except httpx.TransportError:  # of a server that is being replaced
            self.answers["none"] += 1
            return
        self.answers[str(answer.status_code)] += 1
        if answer.status_code != 200:
            self.refused.append(f"{path}: {answer.status_code} {answer.text[:500]}")
        elif path == "/readyz":
            self.databases[answer.json()["checks"]["database"]["outcome"]] += 1


class Stream:
    """The numbers of a job's events, as a client that goes on after a lost connection sees them."""

    def __init__(self, installation: Installation, job_id: str) -> None:
        self.seen: list[int] = []
        self._client = installation.client(patience_seconds=PATIENCE_SECONDS)
        self._job_id = job_id
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        with self._client:
            self.seen.extend(event.seq for event in self._client.follow(self._job_id))

    def whole(self) -> list[int]:
        self._thread.join(PATIENCE_SECONDS)
        assert not self._thread.is_alive(), "the stream never ended"
        return self.seen


class HalfUpload:
    """An upload of which one version gets the first half, and the next one the rest."""

    def __init__(self, url: str, content: bytes) -> None:
        self._http = httpx.Client(base_url=url, timeout=PATIENCE_SECONDS, trust_env=False)
        self._content = content
        body = {"filename": "half.onnx", "size_bytes": len(content)}
        self.id = self._http.post("/v1/uploads", json=body).raise_for_status().json()["id"]
        self._half = len(content) // 2
        self._send(0, content[: self._half])

    def _send(self, offset: int, part: bytes) -> None:
        headers = {"Upload-Offset": str(offset)}
        self._http.patch(f"/v1/uploads/{self.id}", content=part, headers=headers).raise_for_status()

    def finish(self) -> str:
        """Send the rest; returns the model made of it."""
        with closing(self._http):
            self._send(self._half, self._content[self._half :])
            files = [{"upload_id": self.id, "path": "half.onnx"}]
            made = self._http.post("/v1/models", json={"name": "half", "files": files}).raise_for_status()
        return str(made.json()["id"])


@contextmanager
def started_before(installation: Installation) -> Iterator[None]:
    """A server of this version waits for the migration that the block does, and then starts."""
    early = installation.another("early", "api", "--port", "0")
    early.start(QUANTMILL_SCHEMA_WAIT_SECONDS=str(PATIENCE_SECONDS))
    try:
        early.wait_until_said("schema.waiting")
        assert "startup complete" not in early.said()
        yield
        early.wait_until_said("startup complete")
        assert early.stop() in ASKED_TO_END
    finally:
        early.close()


def test_a_version_replaces_the_one_before_it_under_load(
    backend: Backend, request: pytest.FixtureRequest, tmp_path: Path, tiny: Tiny
) -> None:
    if (trouble := history_trouble()) is not None:
        pytest.skip(trouble)
    servers = request.getfixturevalue("servers") if backend == "servers" else None
    version = version_before(tmp_path / "before")
    folder = tmp_path / backend
    with Installation(folder, servers=servers, workers=2, apis=2, version=version) as installation:
        ledger = Ledger(folder / "ledger.jsonl")
        client = Client(installation.url, ledger, installation.upload(tiny))
        # the one worker gets a job that it does not end; the other one does all the rest
        first, second = installation.workers
        for worker in installation.workers:
            worker.stop()
        stay = folder / "stay"
        stay.touch()
        installation.start(first, after_runner_start=f"wait:{stay}")
        begun = client.submit("begun-before")
        installation.wait_for(lambda: (folder / "stay.reached").exists(), "no worker took the job")
        installation.start(second)
        stream, upload = Stream(installation, begun), HalfUpload(installation.url, tiny.model.read_bytes())
        with Load(installation, client) as load:
            ended = client.submit("ended-before")
            installation.wait_for_state(ended, "succeeded")
            with started_before(installation):
                migrate(installation.database_url)
            old_in_new = client.submit("old-processes-new-schema")
            installation.wait_for_state(old_in_new, "succeeded")
            installation.wait_for(lambda: load.databases["degraded"], "readiness never told of the newer schema")
            assert (load.refused, load.answers["none"]) == ([], 0), "old processes go on as if nothing had happened"

            codes = [installation.replace(api) for api in installation.apis]
            model_id = upload.finish()
            old_worker = client.submit("new-server-old-worker")
            installation.wait_for_state(old_worker, "succeeded")
            codes.append(second.stop())
            first.kill()  # its job is begun again by others, as after a crash
            stay.unlink()
            installation.start()
            codes.append(installation.replace(installation.reconciler))
            assert set(codes) <= set(ASKED_TO_END), codes
            assert installation.wait_for_state(begun, "succeeded").attempt == 2
            new_worker = client.submit("all-new")
            installation.wait_for_state(new_worker, "succeeded")
        assert load.refused == []
        assert set(load.databases) == {"ok", "degraded"}
        with installation.client() as http:
            assert http.wait_ready(http.model(model_id), timeout_seconds=PATIENCE_SECONDS).status == "ready"
            for job_id in (begun, ended, old_in_new, old_worker, new_worker):
                assert http.report(job_id).verdict == "none"
        assert stream.whole() == list(range(1, installation.job(begun).last_seq + 1))
        installation.quiesce()
        client.close()
        ledger.close()
        found = check(ledger, installation.database, installation.store)
        jobs = ", ".join(f"{state}={count}" for state, count in found.states.items())
        print(f"upgrade: backend={backend} from {version.commit[:8]} answers: {dict(load.answers)} jobs: {jobs}")
        print(found)
        assert found.clean, f"{found.told()}\n{installation.tail()}"

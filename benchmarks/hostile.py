"""What honest work costs while strangers upload hostile models.

usage: python -m benchmarks.hostile [--times N] [--cases N]

``quantmill up`` on the embedded default; every model of the corpus of ``tests.security`` is uploaded by a tenant of its
own and looked into, one after the other as fast as they are taken. Beside it an honest tenant submits jobs on a small
model, and uploads that model anew. Printed: its times alone and beside, the API's 99th percentile, and how the corpus
has ended.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
import threading
import time
import zlib
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks.service import write_inputs
from service.client import ApiError, Client, WaitTimeoutError
from service.contracts.config import QuantizationConfig
from service.contracts.dataset import PreprocessingSpec
from tests.security.corpus import models
from tests.security.corpus.case import Case
from worker.children import command_line
from worker.commands.demo import serving

GET_PERIOD_SECONDS = 0.05
UPLOADERS = 4
ENDS_WITHIN_SECONDS = 900.0


class Honest:
    """An honest tenant: one job after the other, and a new upload each."""

    def __init__(self, client: Client, model_file: Path, data_file: Path) -> None:
        self._client, self._model_file = client, model_file
        self._model = client.wait_ready(client.push_model(model_file)).id
        self._data = client.wait_ready(client.push_dataset(data_file, PreprocessingSpec())).id

    def job_seconds(self) -> float:
        begun = time.perf_counter()
        job = self._client.submit(model=self._model, calibration=self._data, config=QuantizationConfig())
        self._client.wait_succeeded(job.id)
        return time.perf_counter() - begun

    def upload_seconds(self) -> float:
        begun = time.perf_counter()
        self._client.wait_ready(self._client.push_model(self._model_file))
        return time.perf_counter() - begun


class Gets:
    """Asks for lists at a fixed rate until it is stopped."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._stop = threading.Event()
        self.milliseconds: list[float] = []
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Gets:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(GET_PERIOD_SECONDS):
            begun = time.perf_counter()
            self._client.jobs_page(limit=20)
            self.milliseconds.append((time.perf_counter() - begun) * 1e3)


def attack(url: str, key: str, cases: list[Case], folder: Path) -> Counter[str]:
    """Upload every case and wait for its end; how they have ended."""

    def one(case: Case) -> str:
        place = folder / str(zlib.crc32(case.name.encode()))
        place.mkdir()
        main = case.lay_out(place, place / "canary")
        with Client(url, key) as client:
            try:
                return client.wait_ready(client.push_model(main)).status
            except ApiError as error:
                return error.sent.code
            except WaitTimeoutError:
                return "tried again later"

    with ThreadPoolExecutor(UPLOADERS) as pool:
        return Counter(pool.map(one, cases))


def make_key(home: Path, tenant: str) -> str:
    made = subprocess.run(
        command_line("keys", "create", tenant, "--tenant", tenant, "--data-dir", str(home)),
        check=True, capture_output=True, text=True,
    )  # fmt: skip
    return made.stdout.strip()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=5, help="honest jobs and uploads, alone")
    parser.add_argument("--cases", type=int, default=None, help="only so many of the corpus")
    arguments = parser.parse_args()
    cases = [case for case in models.ALL if len(case.files) == 1][: arguments.cases]
    with tempfile.TemporaryDirectory() as temporary:
        folder, home = Path(temporary), Path(temporary) / "home"
        model_file, data_file = write_inputs(folder)
        with serving(home, folder / "service.log") as url:
            honest_key, hostile_key = make_key(home, "honest"), make_key(home, "stranger")
            with Client(url, honest_key) as client, Client(url, honest_key) as other:
                honest = Honest(client, model_file, data_file)
                jobs = [honest.job_seconds() for _ in range(arguments.times)]
                uploads = [honest.upload_seconds() for _ in range(arguments.times)]
                print(f"alone   job {median(jobs):6.2f} s   upload until ready {median(uploads):6.2f} s", flush=True)
                with Gets(other) as gets, ThreadPoolExecutor(1) as pool:
                    ends = pool.submit(attack, url, hostile_key, cases, folder)
                    beside, again = [], []
                    while not ends.done():
                        beside.append(honest.job_seconds())
                        again.append(honest.upload_seconds())
                    ended = ends.result(ENDS_WITHIN_SECONDS)
        p99 = float(np.percentile(gets.milliseconds, 99))
        print(
            f"beside  job {median(beside):6.2f} s ({median(beside) / median(jobs):.2f} x, longest {max(beside):.2f} s)"
            f"   upload {median(again):6.2f} s ({median(again) / median(uploads):.2f} x, longest {max(again):.2f} s)"
        )
        print(f"GET     p99 {p99:.0f} ms, longest {max(gets.milliseconds):.0f} ms, {len(gets.milliseconds)} requests")
        print(f"corpus  {len(cases)} models: {dict(ended.most_common())}")


if __name__ == "__main__":
    main()

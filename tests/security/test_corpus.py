"""Every file of the hostile corpus ends as it must, in a process of its own, under limits that the kernel holds.

An inspection that takes more CPU time or memory than it may is ended by the kernel, and fails its test.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from service.contracts.errors import Problem
from service.contracts.runner import EXIT_OK, EXIT_RESOURCE_LIMIT, EXIT_USER_ERROR
from tests.security.corpus import archives, escapes, models, pickles
from tests.security.corpus.case import CANARY, READY, Case
from worker.inspection_budget import InspectionBudget

CASES = [*models.ALL, *escapes.ALL, *archives.ALL, *pickles.ALL]
GIB = 1 << 30
# Far below what production gives to a file of a few bytes: 60 s of CPU time, 2 GiB.
CPU_SECONDS = 20
MEMORY_BYTES = GIB
BUDGET = InspectionBudget(cpu_seconds=CPU_SECONDS, wall_seconds=60, memory_bytes=MEMORY_BYTES, memory_is_own=True)
# What the look at a model's bytes may hold, as long as it alone has been at work.
BESIDE_THE_FILE_BYTES = 64 << 20
SKELETON = "skeleton/model.onnx"

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Ended:
    """How a case has ended."""

    code: str
    problem: dict[str, Any]
    exit: int
    peak_bytes: int
    base_bytes: int


@pytest.fixture(scope="module")
def zygote() -> Iterator[Callable[[dict[str, Any]], dict[str, Any]]]:
    command = [sys.executable, "-m", "tests.security.corpus.zygote"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin is not None
    assert process.stdout is not None

    def ask(order: dict[str, Any]) -> dict[str, Any]:
        process.stdin.write(json.dumps(order) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    yield ask
    process.stdin.close()
    process.wait()


def task_of(case: Case, main: Path, output: Path) -> dict[str, Any]:
    if case.kind == "dataset":
        return {"kind": "inspect_dataset", "path": str(main), "output_dir": str(output)}
    task = {"kind": "inspect_model", "model_path": str(main), "threads": 1}
    if case.kind == "state":
        skeleton = output.parent / SKELETON
        skeleton.parent.mkdir()
        skeleton.write_bytes(models.WEIGHTED)
        made = {"format": "safetensors", "state_path": str(main), "output_dir": str(output)}
        return task | made | {"model_path": str(skeleton)}
    return task


def run(ask: Callable[[dict[str, Any]], dict[str, Any]], case: Case, folder: Path, canary: Path) -> Ended:
    uploaded, output = folder / "in", folder / "out"
    uploaded.mkdir()
    output.mkdir()
    main = case.lay_out(uploaded, canary)
    order = {"task": task_of(case, main, output), "folder": str(output)}
    answer = ask(order | {"memory_bytes": MEMORY_BYTES, "cpu_seconds": CPU_SECONDS})
    problem = answer["problem"]
    if answer["exit"] == EXIT_RESOURCE_LIMIT:  # as the supervisor reads it
        problem = BUDGET.judged(Problem.model_validate(problem)).model_dump(mode="json")
    return Ended(problem.get("code", "none"), problem, answer["exit"], answer["peak_bytes"], answer["base_bytes"])


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_hostile_file_ends_as_it_must(
    case: Case, zygote: Callable[[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    canary = Path("/dev/shm") / f"canary-{zlib.crc32(case.name.encode()) % 10**6:06d}-canary-canary"
    assert len(str(canary).encode()) == len(CANARY)
    ended = run(zygote, case, tmp_path, canary)
    assert not canary.exists(), "code of the file was run"
    assert ended.code == case.code, ended
    assert ended.exit in {EXIT_OK} if case.code == READY else {EXIT_USER_ERROR, EXIT_RESOURCE_LIMIT}
    if case.limit is not None:
        assert ended.problem["where"]["limit"] == case.limit
        size = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
        assert ended.peak_bytes < ended.base_bytes + size + BESIDE_THE_FILE_BYTES
    if case.code == "too-complex":
        assert ended.problem["where"]["found"] > 0
        assert ended.problem["where"]["most"] > 0
    assert models.SECRET.decode() not in json.dumps(ended.problem), "a file outside was read"
    assert list((tmp_path / "out").glob("**/*secret*")) == []


def test_the_corpus_is_large_and_names_each_case_once() -> None:
    assert len(CASES) >= 150
    assert Counter(case.name for case in CASES).most_common(1)[0][1] == 1
    assert {case.kind for case in CASES} == {"model", "dataset", "state"}

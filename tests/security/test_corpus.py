"""Every file of the hostile corpus ends as it must, in a process of its own, under limits that the kernel holds.

An inspection that takes more CPU time or memory than it may is ended by the kernel, and fails its test.
"""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from service.contracts.errors import Problem
from service.contracts.runner import EXIT_OK, EXIT_RESOURCE_LIMIT, EXIT_USER_ERROR
from tests.security.corpus import archives, escapes, models, pickles
from tests.security.corpus.case import CANARY, READY, Case
from worker.sandbox import InspectionBudget

CASES = [*models.ALL, *escapes.ALL, *archives.ALL, *pickles.ALL]
GIB = 1 << 30
# Far below what production gives to a file of a few bytes: 60 s of CPU time, 2 GiB.
CPU_SECONDS = 20
MEMORY_BYTES = GIB
BUDGET = InspectionBudget(cpu_seconds=CPU_SECONDS, wall_seconds=60, memory_bytes=MEMORY_BYTES, memory_is_own=True)
# What may be held beside the file until a limit is told; what a parser makes of many small messages may take more.
BESIDE_THE_FILE_BYTES = 64 << 20
SKELETON = "skeleton/model.onnx"
# A second or more each.
LONG_ONES = {
    "metadata-within-nodes", "nodes-within-training", "npz-of-a-quarter-gibibyte-of-zeros",
    "picture-archive-that-unpacks-to-more", "tar-of-300000-empty-files", "tar-gz-bomb", "tensor-of-rank-a-million",
    "twenty-million-numbers-in-a-node",
    *(case.name for case in models.MANY if case.name.startswith("five-million-")),
} - {"five-million-nodes"}  # fmt: skip
Zygote = Callable[[dict[str, Any]], dict[str, Any]]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
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


def run(ask: Zygote, case: Case, folder: Path, canary: Path) -> dict[str, Any]:
    uploaded, output = folder / "in", folder / "out"
    uploaded.mkdir()
    output.mkdir()
    main = case.lay_out(uploaded, canary)
    order = {"task": task_of(case, main, output), "folder": str(output)}
    answer = ask(order | {"memory_bytes": MEMORY_BYTES, "cpu_seconds": CPU_SECONDS})
    if answer["exit"] == EXIT_RESOURCE_LIMIT:  # as the supervisor reads it
        answer["problem"] = BUDGET.judged(Problem.model_validate(answer["problem"])).model_dump(mode="json")
    return answer


def long_ones(case: Case) -> Any:
    return pytest.param(case, id=case.name, marks=[pytest.mark.long] if case.name in LONG_ONES else [])


@pytest.mark.parametrize("case", [long_ones(case) for case in CASES])
def test_a_hostile_file_ends_as_it_must(case: Case, zygote: Zygote, tmp_path: Path) -> None:
    canary = Path("/dev/shm") / f"canary-{zlib.crc32(case.name.encode()) % 10**6:06d}-canary-canary"
    assert len(str(canary).encode()) == len(CANARY)
    ended = run(zygote, case, tmp_path, canary)
    assert not canary.exists(), "code of the file was run"
    problem = ended["problem"]
    assert problem.get("code") == case.code, ended
    assert ended["exit"] in ({EXIT_OK} if case.code == READY else {EXIT_USER_ERROR, EXIT_RESOURCE_LIMIT})
    if case.limit is not None:
        assert problem["where"]["limit"] == case.limit
        assert min(problem["where"]["found"], problem["where"]["most"]) > 0
        size = sum(path.stat().st_size for path in (tmp_path / "in").iterdir())
        assert case in models.MANY or ended["peak_bytes"] < ended["base_bytes"] + size + BESIDE_THE_FILE_BYTES
    assert models.SECRET.decode() not in json.dumps(problem), "a file outside was read"
    assert list((tmp_path / "out").glob("**/*secret*")) == []

"""The same hostile runner under a worker that is no root: nothing of the sandbox needs a privilege."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.security.conftest import require_controls
from tests.security.taken_over import HOSTILE, INPUT, SECRET, Surroundings, surroundings
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.workbench import WAITS
from worker import launcher, runner_input
from worker.confinement.controls import CONTROLS, find_controls
from worker.confinement.places import Places, rules_before, rules_for

pytestmark = pytest.mark.slow  # starts processes

NOBODY = 65534
# A worker in small, which any interpreter can run: it keeps the controls that a plain user has, and starts a runner.
SMALL_WORKER = r"""
import json, os, subprocess, sys
launcher, scratch, spec, assigned, *command = sys.argv[1:]
controls = json.loads(spec)
start = [sys.executable, "-I", "-S", launcher]
probed = subprocess.run([*start, json.dumps({"probe": True, "controls": controls})], stdout=subprocess.PIPE, check=True)
missing = {name: why for name, why in json.loads(probed.stdout).items() if why is not None}
reading, writing = os.pipe()
spec = {"parent": os.getpid(), "death_signal": 9, "line_fd": writing, "limits": {"RLIMIT_CORE": 0}}
spec["controls"] = {name: needs for name, needs in controls.items() if name not in missing}
runner = subprocess.Popen([*start, json.dumps(spec), *command], pass_fds=(writing,), cwd=scratch, env={},
                          stdin=subprocess.PIPE)
os.close(writing)
lines = os.fdopen(reading)
if assigned:  # a spare one
    told = json.loads(assigned)
    told["controls"] = {name: needs for name, needs in told["controls"].items() if name not in missing}
    runner.stdin.write(json.dumps(told).encode() + b"\n")
    runner.stdin.flush()
    assert [next(lines), next(lines)] == ["ready\n", "begun\n"]
said = [json.loads(line)["message"] for line in lines]
print(json.dumps({"code": runner.wait(), "missing": missing, "said": said}))
"""


@pytest.fixture
def around() -> Iterator[Surroundings]:
    folder = Path(tempfile.mkdtemp(prefix="quantmill-plain-", dir="/tmp"))  # where that user comes to
    try:
        with surroundings(folder, NOBODY) as made:
            yield made
    finally:
        shutil.rmtree(folder)


def answers(around: Surroundings, python: str, *, without: tuple[str, ...] = (), spare: bool) -> dict[str, Any]:
    folder, scratch, programs = around.folder, around.folder / "scratch", around.folder / "programs"
    (programs / "worker").mkdir(parents=True)
    for name, text in (
        ("worker/__init__.py", ""),
        ("worker/launcher.py", Path(launcher.__file__).read_text()),
        ("worker/runner_input.py", Path(runner_input.__file__).read_text()),
        ("waits.py", WAITS.read_text().replace("import sys\n", f"import sys\nsys.path.append({str(programs)!r})\n")),
        ("hostile.py", HOSTILE.read_text()),
        ("small_worker.py", SMALL_WORKER),
    ):
        (programs / name).write_text(text)
    task_file = scratch / "task.json"
    task_file.write_text(json.dumps({**json.loads(task_file.read_text()), "only": []}))
    command = [python, "-I", *([str(programs / "waits.py")] if spare else ()), str(programs / "hostile.py")]
    rules = rules_for([*command, str(task_file)], scratch, Places(readable=(folder / "store" / "input",)), gpus=False)
    spec, assigned = find_controls().spec(rules), b""
    if spare:
        spec = find_controls().spec(rules_before(command, folder, Places()), narrows=True)
        assigned = runner_input.assignment_line(
            str(task_file), scratch=scratch, environment={"PYTHONPATH": ""}, limits={},
            controls=find_controls().narrowed(rules),
        )  # fmt: skip
    kept = {name: needs for name, needs in spec.items() if name not in without}
    worker = [python, "-I", str(programs / "small_worker.py"), str(programs / "worker" / "launcher.py"), str(scratch)]
    worker += [json.dumps(kept), assigned.decode(), *command, "--spare" if spare else str(task_file)]
    done = subprocess.run(
        worker, env={"QUANTMILL_API_KEY": SECRET}, user=NOBODY, group=NOBODY, extra_groups=[], capture_output=True,
        text=True, timeout=PATIENCE_SECONDS, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["code"] == 0, done.stderr
    told["tries"] = dict(message.split(": ", 1) for message in told["said"])
    return told


@pytest.mark.parametrize(
    "without", [(), pytest.param(("namespaces",), marks=pytest.mark.long)], ids=["all", "container"]
)
@pytest.mark.parametrize("spare", [False, True])
def test_every_line_fails_for_a_plain_user_as_well(
    around: Surroundings, python: str, without: tuple[str, ...], spare: bool
) -> None:
    require_controls(*(control.name for control in CONTROLS if control.required))
    told = answers(around, python, without=without, spare=spare)
    assert set(told["missing"]) <= {"namespaces"}
    tries = told["tries"]
    assert INPUT in tries.pop("honest")
    assert {name: came for name, came in tries.items() if not came.startswith("refused ")} == {}
    assert len(tries) > 120
    around.undisturbed()

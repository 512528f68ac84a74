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
from worker import launcher
from worker.confinement.controls import CONTROLS, find_controls
from worker.confinement.places import Places, rules_for

pytestmark = pytest.mark.slow  # starts processes

NOBODY = 65534
# A worker in small, which any interpreter can run: it keeps the controls that a plain user has, and starts a runner.
WORKER = """
import json, os, subprocess, sys
launcher, scratch, spec, *command = sys.argv[1:]
controls = json.loads(spec)
start = [sys.executable, "-I", "-S", launcher]
probed = subprocess.run([*start, json.dumps({"probe": True, "controls": controls})], stdout=subprocess.PIPE, check=True)
missing = {name: why for name, why in json.loads(probed.stdout).items() if why is not None}
reading, writing = os.pipe()
spec = {"parent": os.getpid(), "death_signal": 9, "line_fd": writing, "limits": {"RLIMIT_CORE": 0}}
spec["controls"] = {name: needs for name, needs in controls.items() if name not in missing}
runner = subprocess.Popen([*start, json.dumps(spec), *command], pass_fds=(writing,), cwd=scratch, env={})
os.close(writing)
said = [json.loads(line)["message"] for line in os.fdopen(reading)]
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


def answers(around: Surroundings, python: str, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    folder, scratch = around.folder, around.folder / "scratch"
    (folder / "programs").mkdir()
    for name, text in (
        ("launcher.py", Path(launcher.__file__).read_text()),
        ("hostile.py", HOSTILE.read_text()),
        ("worker.py", WORKER),
    ):
        (folder / "programs" / name).write_text(text)
    task_file = scratch / "task.json"
    task_file.write_text(json.dumps({**json.loads(task_file.read_text()), "only": []}))
    command = [python, "-I", str(folder / "programs" / "hostile.py"), str(task_file)]
    places = Places(readable=(folder / "store" / "input",))
    spec = find_controls().spec(rules_for(command, scratch, places, gpus=False))
    kept = {name: needs for name, needs in spec.items() if name not in without}
    worker = [python, "-I", str(folder / "programs" / "worker.py"), str(folder / "programs" / "launcher.py")]
    done = subprocess.run(
        [*worker, str(scratch), json.dumps(kept), *command], env={"QUANTMILL_API_KEY": SECRET}, user=NOBODY,
        group=NOBODY, extra_groups=[], capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False, cwd="/",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["code"] == 0, done.stderr
    told["tries"] = dict(message.split(": ", 1) for message in told["said"])
    return told


@pytest.mark.parametrize(
    "without", [(), pytest.param(("namespaces",), marks=pytest.mark.long)], ids=["all", "container"]
)
def test_every_line_fails_for_a_plain_user_as_well(around: Surroundings, python: str, without: tuple[str, ...]) -> None:
    require_controls(*(control.name for control in CONTROLS if control.required))
    told = answers(around, python, without=without)
    assert set(told["missing"]) <= {"namespaces"}
    tries = told["tries"]
    assert INPUT in tries.pop("honest")
    assert {name: came for name, came in tries.items() if not came.startswith("refused ")} == {}
    assert len(tries) > 120
    around.undisturbed()

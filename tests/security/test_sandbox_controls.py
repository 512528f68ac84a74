"""A runner that was taken over tries everything that it must not do, under the controls of this kernel and of lesser
ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.security.conftest import require_controls
from tests.security.taken_over import INPUT, SECRET, Surroundings, surroundings
from worker.confinement.controls import CONTROLS, LANDLOCK, SECCOMP

pytestmark = pytest.mark.slow  # starts processes

START = pytest.mark.parametrize("start", ["fresh", "spare"])
# What stands between a runner and the files of its user, and its traces, where there is no Landlock.
FILES = ("read", "write", "list", "create in", "remove", "open", "touch", "rename across", "lower its oom score")


@pytest.fixture
def around(tmp_path: Path) -> Iterator[Surroundings]:
    with surroundings(tmp_path) as made:
        yield made


def done(answers: dict[str, str]) -> dict[str, str]:
    return {name: told for name, told in answers.items() if not told.startswith("refused ")}


def assert_honest(answers: dict[str, str]) -> None:
    """What a runner is there for works: threads, files of its own, its input."""
    told = answers.pop("honest")
    assert "by a thread" in told
    assert INPUT in told


@START
@pytest.mark.parametrize("lacking", [(), pytest.param(("unshare",), marks=pytest.mark.long)], ids=["all", "container"])
def test_every_line_of_a_hostile_runner_fails(around: Surroundings, lacking: tuple[str, ...], start: str) -> None:
    require_controls(*(control.name for control in CONTROLS if control.required or not lacking))
    answers = around.tries(lacking=lacking, start=start)
    assert_honest(answers)
    assert done(answers) == {}
    assert len(answers) > 120
    around.undisturbed()


@START
def test_without_landlock_only_files_of_the_user_are_open(around: Surroundings, start: str) -> None:
    """Nothing is executed or started, nobody is reached or harmed; what the worker's user may read is open."""
    require_controls(SECCOMP.name)
    answers = around.tries(lacking=["landlock"], start=start)
    assert_honest(answers)
    through = [name for name in done(answers) if not name.startswith((*FILES, "write to", "make an input"))]
    assert through == []
    assert around.bystander.poll() is None


@START
def test_without_seccomp_files_and_secrets_are_closed(around: Surroundings, start: str) -> None:
    require_controls(LANDLOCK.name)
    answers = around.tries(lacking=["seccomp"], start=start)
    closed = ("read", "write", "list", "create in", "trace the parent", "kill the parent", "connect to TCP", "regain")
    assert not any(name.startswith(closed) for name in done(answers)), done(answers)


def test_a_runner_without_controls_gets_through(around: Surroundings) -> None:
    """That the tries are real: without the sandbox they succeed, and what is stolen is the secret."""
    harmless = ["list store", "connect to TCP on loopback", "connect to an abstract UNIX socket", "run a program"]
    answers = around.tries(mode="off", only=["read environ of the parent", "read canary", *harmless])
    assert SECRET in answers["read environ of the parent"]
    assert SECRET in answers["read canary"]
    assert [name for name in harmless if name not in done(answers)] == []

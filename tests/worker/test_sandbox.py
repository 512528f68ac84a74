"""The sandbox with small runners of our own: channels, limits, and that nothing is left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from service.contracts.errors import EngineError
from service.contracts.runner import LogLine
from service.settings import Settings
from tests.support.patience import PATIENCE_SECONDS
from tests.worker.running import ROOT
from tests.worker.workbench import WAITS, process_gone, spare_pid, wait_for
from worker import launcher
from worker.confinement.controls import Mode
from worker.runner_process import RunnerProcess
from worker.sandbox import RESERVED_BYTES, Sandbox, SandboxLimits
from worker.spares import Spares

# ``say(text)`` writes a log line to descriptor 3.
HEAD = """
import json, os, sys, time, signal, subprocess, resource
def say(text):
    os.write(3, (json.dumps({"line": "log", "message": str(text)}) + "\\n").encode())
"""
SLEEPER = "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']).pid"


def messages(process: RunnerProcess, timeout_seconds: float = PATIENCE_SECONDS) -> list[str]:
    return [line.message for line in process.remaining_lines(timeout_seconds) if isinstance(line, LogLine)]


def gone(pid: int) -> bool:
    return wait_for(lambda: process_gone(pid), message=f"{pid} lives on")


@pytest.fixture(params=["fresh", "spare"])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Callable[..., RunnerProcess]]:
    started, kept = list[RunnerProcess](), list[Spares]()
    settings = Settings(data_dir=tmp_path / "data", scratch_dir=tmp_path)
    settings.make_folders()

    def runner(code: str, limits: SandboxLimits | None = None, mode: Mode = "auto", **variables: str) -> RunnerProcess:
        scratch, program = tmp_path / "scratch", tmp_path / "program.py"
        scratch.mkdir(exist_ok=True)
        program.write_text(HEAD + textwrap.dedent(code))
        (scratch / "task.json").write_text("{}")
        sandbox = Sandbox((sys.executable, "-P", str(WAITS), str(program)), variables=variables, mode=mode)
        limits = replace(limits or SandboxLimits(), gpus=False)
        if request.param == "fresh":
            process = sandbox.start(scratch / "task.json", scratch=scratch, limits=limits)
        else:
            kept.append(Spares(sandbox, settings, first_seconds=0.0))
            pid = spare_pid(kept[-1])
            process = kept[-1].take(scratch / "task.json", scratch=scratch, limits=limits)
            assert process.pid == pid
        started.append(process)
        return process

    yield runner
    for process in started:
        process.close()
    for spares in kept:
        spares.close()


def test_lines_exit_code_and_stderr_come_through(run):
    process = run("say('one'); say('two'); print('trouble', file=sys.stderr); sys.exit(7)")
    assert messages(process) == ["one", "two"]
    process.close()
    assert process.returncode == 7
    assert process.stderr_tail().strip() == "trouble"


def test_the_environment_is_an_allow_list_and_failpoints_reach_the_runner_only_when_they_are_armed(run, monkeypatch):
    monkeypatch.setenv("QUANTMILL_API_KEY", "very-secret")
    monkeypatch.setenv("SOME_TOKEN", "very-secret")
    code = "say(json.dumps(dict(os.environ)))"
    (text,) = messages(run(code, EXTRA="given"))
    assert "very-secret" not in text
    assert json.loads(text)["EXTRA"] == "given"
    assert "QUANTMILL" not in text
    monkeypatch.setenv("QUANTMILL_FAILPOINTS", "after_layer=kill@2")
    (text,) = messages(run(code))
    assert json.loads(text)["QUANTMILL_FAILPOINTS"] == "after_layer=kill@2"


def test_working_directory_is_the_scratch_folder_and_nothing_is_imported_from_it(tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    for name in ("onnx.py", "json.py", "pydantic.py", "service.py"):
        (scratch / name).write_text("open('imported-from-scratch', 'w').close()\n")
    task_file = scratch / "task.json"
    task_file.write_text('{"kind": "nonsense", "threads": 1}')
    process = Sandbox().start(task_file, scratch=scratch, limits=SandboxLimits())
    assert messages(process) == []
    process.close()
    assert process.returncode == 1
    assert "nonsense" in process.stderr_tail()
    assert not (scratch / "imported-from-scratch").exists()


def test_limits_are_set(run):
    process = run(
        """
        for name in ("RLIMIT_AS", "RLIMIT_FSIZE", "RLIMIT_NOFILE", "RLIMIT_CORE", "RLIMIT_CPU"):
            say(resource.getrlimit(getattr(resource, name)))
        say(resource.getrlimit(resource.RLIMIT_NPROC)[0])
        """,
        SandboxLimits(memory_bytes=1 << 30, cpu_seconds=60, file_bytes=1 << 20, open_files=100, more_threads=100),
    )
    values = [(1 << 30) + RESERVED_BYTES, 1 << 20, 100, 0]
    hard = 60 + launcher.CPU_GRACE_SECONDS
    *told, threads = messages(process)
    assert told == [str((value, value)) for value in values] + [str((60, hard))]
    assert 100 < int(threads) < 2**22, "what the machine has and some more"


def test_too_much_memory_is_an_ordinary_error_in_the_child(run):
    code = f"try: bytearray({RESERVED_BYTES} + (512 << 20))\nexcept MemoryError: say('refused')"
    assert messages(run(code, SandboxLimits(memory_bytes=256 << 20))) == ["refused"]


def test_cpu_limit_ends_the_child_by_signal(run):
    process = run("while True: pass", SandboxLimits(cpu_seconds=1))
    assert messages(process) == []
    assert process.returncode == -signal.SIGXCPU


@pytest.mark.parametrize("end", ["kill", "close"])
def test_terminate_asks_and_kill_or_close_end_the_whole_group(run, end):
    code = f"""
        signal.signal(signal.SIGTERM, lambda *_: say("asked"))
        say({SLEEPER})
        while True: time.sleep(0.05)
        """
    process = run(code, mode="off")  # under the controls it could start none
    line = process.next_line(PATIENCE_SECONDS)
    assert isinstance(line, LogLine)
    process.terminate()
    assert process.next_line(PATIENCE_SECONDS) == LogLine(message="asked")
    getattr(process, end)()
    assert process.returncode == -signal.SIGKILL
    assert gone(int(line.message))


def test_close_ends_what_a_child_that_has_ended_left_behind(run):
    process = run(f"say({SLEEPER})", mode="off")
    line = process.next_line(PATIENCE_SECONDS)
    process.close()
    assert gone(int(line.message))


def test_a_line_that_is_no_runner_line_is_an_engine_error(run):
    process = run("os.write(3, b'hello\\n'); time.sleep(600)")
    with pytest.raises(EngineError, match="wrote an invalid line"):
        process.next_line(PATIENCE_SECONDS)


def test_stderr_is_capped(run):
    process = run("sys.stderr.write('x' * 10_000_000 + 'END')")
    assert messages(process) == []
    process.close()
    assert process.stderr_tail().endswith("xEND")
    assert len(process.stderr_tail(10**9)) <= 64 * 1024


def test_many_lines_nobody_reads_do_not_block_close(run):
    process = run("for i in range(100_000): say(i)")
    assert process.next_line(PATIENCE_SECONDS) == LogLine(message="0")
    process.close()
    assert gone(process.pid)


FRESH = "Sandbox(command).start(folder / 'task.json', scratch=folder, limits=SandboxLimits())"
SPARE = "spare()"


@pytest.mark.parametrize("start", [FRESH, SPARE], ids=["fresh", "spare"])
def test_the_child_dies_with_its_parent(tmp_path, start):
    """The parent is killed without a chance to clean up; the child sleeps and watches nothing."""
    program, parent = tmp_path / "sleeper.py", tmp_path / "parent.py"
    program.write_text("import os, time\nos.write(3, b'x')\ntime.sleep(600)\n")
    parent.write_text(f"""
import sys, time
from pathlib import Path
from service.settings import Settings
from worker.sandbox import Sandbox, SandboxLimits
from worker.spares import Spares
command, folder = (sys.executable, {str(program)!r}), Path({str(tmp_path)!r})
def spare():
    settings = Settings(data_dir=folder)
    settings.make_folders()
    spares = Spares(Sandbox(command), settings, first_seconds=0)
    while spares._spare is None:
        time.sleep(0.01)
    return spares._spare.started.process
print({start}.pid, flush=True)
time.sleep(600)
""")
    with subprocess.Popen(
        [sys.executable, str(parent)], stdout=subprocess.PIPE, env={**os.environ, "PYTHONPATH": str(ROOT)}
    ) as process:
        assert process.stdout is not None
        child = int(process.stdout.readline())
        process.kill()
    assert gone(child)


def test_the_launcher_refuses_an_orphan():
    spec = '{"parent": 1, "death_signal": 9, "limits": {}}'
    result = subprocess.run(
        [sys.executable, "-I", "-S", launcher.__file__, spec, sys.executable, "-c", "print('started')"],
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (result.returncode, result.stdout) == (launcher.EXIT_NOT_STARTED, "")
    assert "has ended" in result.stderr

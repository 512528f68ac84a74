"""The runner's own parts: what it sends, when it stops, which exit code it gives."""

from __future__ import annotations

import errno
import sys

import pytest
import torch

from service.contracts.errors import (
    CanceledError,
    EngineError,
    NotOnnxError,
    ResourceLimitError,
    gpu_memory_error,
)
from service.contracts.runner import (
    EXIT_CANCELED,
    EXIT_INTERRUPTED,
    EXIT_NOT_STARTED,
    EXIT_RESOURCE_LIMIT,
    EXIT_USER_ERROR,
    LINE_ADAPTER,
    ErrorLine,
    InspectModelTask,
    MetricLine,
    ProgressLine,
)
from tests.support.patience import PATIENCE_SECONDS
from worker import launcher, runner
from worker.resource_limits import resource_limit
from worker.sandbox import Sandbox, SandboxLimits


class Bench:
    """A run with a clock that a test sets, and the lines that it sends."""

    def __init__(self) -> None:
        self.now, self.lines = 100.0, list[ProgressLine]()
        self.run = runner.LineRun(self.lines.append, lambda: None, period_seconds=0.2, clock=lambda: self.now)


@pytest.fixture
def lined() -> Bench:
    return Bench()


def test_progress_is_thinned_but_first_and_last_are_sent(lined):
    for done in range(1001):
        lined.now += 0.001
        lined.run.progress("calibrate", done, 1000, "samples")
    assert (lined.lines[0].done, lined.lines[-1].done) == (0, 1000)
    assert 5 <= len(lined.lines) <= 8


def test_the_held_back_line_is_sent_when_the_stage_changes_and_once_at_the_end(lined):
    run = lined.run
    for done in (1, 2, 3):
        run.progress("load", done)
    run.progress("plan", 1)
    assert [(line.stage, line.done) for line in lined.lines] == [("load", 1), ("load", 3), ("plan", 1)]
    run.progress("plan", 2, 9, "nodes", "reading")
    run.flush()
    run.flush()
    assert lined.lines[3:] == [ProgressLine(stage="plan", done=2, total=9, unit="nodes", message="reading")]


def test_lines_carry_how_far_the_whole_has_come_and_a_silent_stage_is_told_again(lined):
    run, lines = lined.run, lined.lines
    run.progress("load")
    run.overall(0.1, 90.0)
    run.progress("adaround", 0, 10)
    assert [(line.stage, line.share, line.seconds_left) for line in lines] == [
        ("load", None, None), ("adaround", 0.1, 90.0)
    ]  # fmt: skip
    run.overall(0.15, 85.0)
    assert len(lines) == 2  # too soon
    lined.now += 5.0
    run.overall(0.2, 80.0)
    assert (lines[-1].stage, lines[-1].done, lines[-1].share) == ("adaround", 0, 0.2)
    run.overall(1.0, 0.0)
    assert (lines[-1].share, lines[-1].seconds_left) == (1.0, 0.0)


def test_figures_are_never_thinned_and_hold_no_nan(lined):
    lined.run.progress("qat", 1)
    for step in range(3):
        lined.run.metric("qat", step, {"train_loss": float("nan") if step == 1 else 0.5, "metric": None})
    assert lined.lines[1:] == [
        MetricLine(stage="qat", step=step, values={"train_loss": None if step == 1 else 0.5, "metric": None})
        for step in range(3)
    ]
    assert [LINE_ADAPTER.validate_json(line.model_dump_json()) for line in lined.lines] == lined.lines


def test_the_flag_file_tells_canceled_from_interrupted(tmp_path):
    stop = runner.StopSignal(tmp_path / runner.CANCEL_FLAG)
    assert stop() is None
    stop._remember()
    assert isinstance(stop(), runner.InterruptedRunError)
    (tmp_path / runner.CANCEL_FLAG).touch()
    assert type(stop()) is CanceledError


def caused(error: Exception, cause: Exception) -> Exception:
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    ("error", "resource"),
    [
        (MemoryError(), "memory"),
        (RuntimeError("[ONNXRuntimeError] : 6 : RUNTIME_EXCEPTION : std::bad_alloc"), "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"), "memory"),
        (caused(EngineError("the session could not be made"), MemoryError()), "memory"),
        (torch.cuda.OutOfMemoryError("Tried to allocate 2.00 GiB"), "gpu_memory"),
        (caused(EngineError("adaround failed"), torch.cuda.OutOfMemoryError("no more")), "gpu_memory"),
        (RuntimeError("CUDA error: out of memory"), "gpu_memory"),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), "gpu_memory"),
        (gpu_memory_error("The job needs more memory than its GPU has."), "gpu_memory"),
        (OSError(errno.ENOSPC, "No space left on device"), "disk"),
        (OSError(errno.EFBIG, "File too large"), "disk"),
        (ValueError("x"), None),
        (NotOnnxError("a tensor named 'out of memory'"), None),
    ],
)
def test_resource_limits_are_recognized(error, resource):
    found = resource_limit(error)
    assert (found and (type(found), found.where["resource"], bool(found.hint))) == (
        resource and (ResourceLimitError, resource, True)
    )


def task() -> InspectModelTask:
    return InspectModelTask(model_path="/nowhere/model.onnx", threads=1)


@pytest.mark.parametrize(
    ("error", "code", "problem"),
    [
        (NotOnnxError("not a model"), EXIT_USER_ERROR, "not-onnx"),
        (EngineError("broken"), EXIT_USER_ERROR, "engine-error"),
        (MemoryError(), EXIT_RESOURCE_LIMIT, "resource-limit"),
        (torch.cuda.OutOfMemoryError("CUDA out of memory."), EXIT_RESOURCE_LIMIT, "resource-limit"),
        (CanceledError("stop"), EXIT_CANCELED, "canceled"),
        (runner.InterruptedRunError("stop"), EXIT_INTERRUPTED, None),
        (BrokenPipeError(), EXIT_INTERRUPTED, None),
        (ZeroDivisionError("oops"), runner.EXIT_CRASH, None),
    ],
)
def test_exit_codes(monkeypatch, capsys, error, code, problem):
    def perform(task, run):
        raise error

    monkeypatch.setattr(runner, "perform", perform)
    lines = []
    assert runner.execute(task(), lines.append, lambda: None) == code
    assert [line.problem.code for line in lines if isinstance(line, ErrorLine)] == ([problem] if problem else [])
    assert ("ZeroDivisionError" in capsys.readouterr().err) == (code == runner.EXIT_CRASH)


def test_an_engine_that_cannot_be_loaded_is_told_from_a_crash(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "worker.quantizer.intake.made", None)
    lines = []
    assert runner.execute(task(), lines.append, lambda: None) == EXIT_NOT_STARTED == launcher.EXIT_NOT_STARTED
    assert lines == []
    assert "worker.quantizer.intake.made" in capsys.readouterr().err


def test_a_stop_before_the_start_is_honored():
    assert runner.execute(task(), lambda line: None, lambda: CanceledError("stop")) == EXIT_CANCELED


def test_a_process_on_a_broken_model_ends_with_a_typed_error_on_descriptor_3(tmp_path):
    assert runner.main([]) == 2, "usage"
    (tmp_path / "model.onnx").write_bytes(b"not a model at all")
    task_file = tmp_path / "task.json"
    task_file.write_text(InspectModelTask(model_path=str(tmp_path / "model.onnx"), threads=1).model_dump_json())
    process = Sandbox().start(task_file, scratch=tmp_path, limits=SandboxLimits())
    lines = list(process.remaining_lines(PATIENCE_SECONDS))
    process.close()
    assert process.returncode == EXIT_USER_ERROR, process.stderr_tail()
    assert isinstance(lines[-1], ErrorLine)
    assert lines[-1].problem.code == "not-onnx"

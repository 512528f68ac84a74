"""Every way in which a runner process can end, and what it means."""

from __future__ import annotations

import signal

import pytest

from service.contracts.errors import CanceledError, NotOnnxError, ResourceLimitError
from service.contracts.model import ModelSummary
from service.contracts.runner import (
    EXIT_CANCELED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    EXIT_RESOURCE_LIMIT,
    EXIT_USER_ERROR,
    ErrorLine,
    ModelResult,
)
from worker.outcome import (
    Canceled,
    Ending,
    Failed,
    Fenced,
    Interrupted,
    Retry,
    StopReason,
    Succeeded,
    classify,
)

RESULT = ModelResult(
    summary=ModelSummary(
        ir_version=8,
        opset={"": 17},
        producer="",
        inputs=(),
        outputs=(),
        node_count=0,
        op_counts={},
        parameter_count=0,
        size_bytes=1,
        sha256="0" * 64,
    )
)
USER_ERROR = ErrorLine(problem=NotOnnxError("no model").problem())
FULL_DISK = ErrorLine(problem=ResourceLimitError("disk full", transient=True).problem())
NO_MEMORY = ErrorLine(problem=ResourceLimitError("no memory").problem())
CANCELED = ErrorLine(problem=CanceledError("canceled").problem())


def ending(returncode, last_line=None, stopped=None, attempt=1, max_attempts=3):
    return Ending(returncode, last_line, stopped, "last words", attempt, max_attempts)


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (ending(EXIT_OK, RESULT), Succeeded),
        (ending(EXIT_USER_ERROR, USER_ERROR), Failed),
        (ending(EXIT_RESOURCE_LIMIT, NO_MEMORY), Failed),
        (ending(EXIT_RESOURCE_LIMIT, FULL_DISK), Retry),
        (ending(EXIT_RESOURCE_LIMIT, FULL_DISK, attempt=2), Failed),
        (ending(EXIT_INTERRUPTED), Interrupted),
        (ending(EXIT_INTERRUPTED, stopped=StopReason.SHUTDOWN), Interrupted),
        (ending(-signal.SIGKILL, stopped=StopReason.SHUTDOWN), Interrupted),
        (ending(EXIT_OK, RESULT, stopped=StopReason.SHUTDOWN), Succeeded),
        (ending(EXIT_CANCELED, CANCELED, stopped=StopReason.CANCELED), Canceled),
        (ending(EXIT_OK, RESULT, stopped=StopReason.CANCELED), Canceled),
        (ending(-signal.SIGKILL, stopped=StopReason.CANCELED), Canceled),
        (ending(-signal.SIGKILL, stopped=StopReason.FENCED), Fenced),
        (ending(EXIT_OK, RESULT, stopped=StopReason.FENCED), Fenced),
        (ending(-signal.SIGKILL, stopped=StopReason.DEADLINE), Failed),
        (ending(-signal.SIGKILL, stopped=StopReason.STALLED), Failed),
        (ending(-signal.SIGXCPU), Failed),
        (ending(-signal.SIGSEGV), Retry),
        (ending(-signal.SIGKILL), Retry),
        (ending(1), Retry),
        (ending(EXIT_OK), Retry),
        (ending(EXIT_USER_ERROR), Retry),
        (ending(EXIT_CANCELED, CANCELED), Retry),
        (ending(-signal.SIGKILL, stopped=StopReason.PROTOCOL), Retry),
        (ending(-signal.SIGSEGV, attempt=3), Failed),
    ],
)
def test_classification(what, kind):
    assert isinstance(classify(what), kind)


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (ending(EXIT_USER_ERROR, USER_ERROR), "not-onnx"),
        (ending(EXIT_RESOURCE_LIMIT, NO_MEMORY), "resource-limit"),
        (ending(-signal.SIGXCPU), "resource-limit"),
        (ending(-signal.SIGKILL, stopped=StopReason.DEADLINE), "deadline-exceeded"),
        (ending(-signal.SIGKILL, stopped=StopReason.STALLED), "stalled"),
        (ending(-signal.SIGSEGV, attempt=3), "poison"),
    ],
)
def test_problem_codes(what, code):
    outcome = classify(what)
    assert isinstance(outcome, Failed)
    assert outcome.problem.code == code
    assert code == "not-onnx" or code == "resource-limit" or outcome.problem.hint


def test_poison_says_how_it_ended_and_what_it_last_said():
    outcome = classify(ending(-signal.SIGSEGV, attempt=3))
    assert isinstance(outcome, Failed)
    assert "SIGSEGV" in outcome.problem.detail
    assert outcome.problem.where == {"exit": "ended by SIGSEGV", "attempts": 3, "stderr": "last words"}

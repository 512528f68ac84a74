"""Every way in which a runner process can end, and what it means."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from service.contracts.errors import CanceledError, NotOnnxError, ResourceLimitError
from service.contracts.model import ModelSummary
from service.contracts.runner import (
    EXIT_CANCELED,
    EXIT_CRASH,
    EXIT_INSTALLATION,
    EXIT_INTERRUPTED,
    EXIT_NOT_STARTED,
    EXIT_OK,
    EXIT_RESOURCE_LIMIT,
    EXIT_USER_ERROR,
    ErrorLine,
    ModelResult,
)
from service.storage import StorageFullError
from worker.outcome import (
    TABLE,
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
FULL_DISK = ErrorLine(problem=StorageFullError("disk full").problem())
NO_MEMORY = ErrorLine(problem=ResourceLimitError("no memory").problem())
CANCELED = ErrorLine(problem=CanceledError("canceled").problem())


def ending(returncode, last_line=None, stopped=None, attempt=1, max_attempts=3, **circumstances):
    return Ending(returncode, last_line, stopped, "last words", attempt, max_attempts, **circumstances)


@pytest.mark.parametrize(
    ("what", "kind"),
    [
        (ending(EXIT_OK, RESULT), Succeeded),
        (ending(EXIT_USER_ERROR, USER_ERROR), Failed),
        (ending(EXIT_RESOURCE_LIMIT, NO_MEMORY), Failed),
        (ending(EXIT_INSTALLATION, FULL_DISK), Interrupted),
        (ending(EXIT_INSTALLATION, FULL_DISK, attempt=3), Interrupted),
        (ending(EXIT_INSTALLATION), Retry),
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
        (ending(-signal.SIGTERM), Interrupted),
        (ending(1), Retry),
        (ending(1, heard=False), Interrupted),
        (ending(EXIT_NOT_STARTED), Interrupted),
        (ending(EXIT_CRASH, heard=False), Retry),
        (ending(EXIT_OK), Retry),
        (ending(EXIT_USER_ERROR), Retry),
        (ending(EXIT_CANCELED, CANCELED), Retry),
        (ending(-signal.SIGKILL, stopped=StopReason.PROTOCOL), Retry),
        (ending(-signal.SIGKILL, stopped=StopReason.AWAY, lease_over=True), Interrupted),
        (ending(-signal.SIGKILL, lease_over=True), Interrupted),
        (ending(-signal.SIGSEGV, lease_over=True), Retry),
        (ending(-signal.SIGKILL, memory=NO_MEMORY.problem), Failed),
        (ending(-signal.SIGKILL, stopped=StopReason.MEMORY, memory=NO_MEMORY.problem), Failed),
        (ending(-signal.SIGKILL, memory=NO_MEMORY.problem, within_share=True), Retry),
        (ending(-signal.SIGKILL, within_share=True), Retry),
        (ending(-signal.SIGSEGV, memory=NO_MEMORY.problem), Retry),
        (ending(-signal.SIGBUS, storage=FULL_DISK.problem), Interrupted),
        (ending(-signal.SIGBUS), Retry),
        (ending(-signal.SIGSEGV, storage=FULL_DISK.problem), Retry),
        (ending(EXIT_CRASH, attempt=3), Failed),
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
        (ending(-signal.SIGKILL, memory=NO_MEMORY.problem), "resource-limit"),
        (ending(EXIT_CRASH, attempt=3), "poison"),
    ],
)
def test_problem_codes(what, code):
    outcome = classify(what)
    assert isinstance(outcome, Failed)
    assert outcome.problem.code == code
    assert code == "not-onnx" or code == "resource-limit" or outcome.problem.hint


def test_poison_says_how_it_ended_and_what_it_last_said():
    outcome = classify(ending(-signal.SIGSEGV, attempt=3))
    assert isinstance(outcome, Retry)
    assert outcome.deadly
    assert "SIGSEGV" in outcome.poison.detail
    assert outcome.poison.where == {"exit": "ended by SIGSEGV", "attempts": 3, "stderr": "last words"}


@pytest.mark.parametrize(
    ("what", "code"),
    [
        (ending(EXIT_INSTALLATION, FULL_DISK), "storage-full"),
        (ending(-signal.SIGBUS, storage=FULL_DISK.problem), "storage-full"),
        (ending(-signal.SIGKILL, stopped=StopReason.AWAY), "database-away"),
        (ending(-signal.SIGKILL, stopped=StopReason.SHUTDOWN), "worker-shutdown"),
        (ending(EXIT_NOT_STARTED, heard=False, attempt=3), "runner-not-started"),
    ],
)
def test_what_the_installation_did_is_told(what, code):
    outcome = classify(what)
    assert isinstance(outcome, Interrupted)
    assert outcome.waiting is not None
    assert outcome.waiting.code == code
    assert outcome.waiting.hint


@pytest.mark.parametrize(
    ("what", "deadly"),
    [
        (ending(-signal.SIGSEGV), True),
        (ending(-signal.SIGABRT), True),
        (ending(-signal.SIGILL), False),
        (ending(-signal.SIGSYS), False),
        (ending(EXIT_CRASH), False),
        (ending(-signal.SIGKILL, memory=NO_MEMORY.problem, within_share=True), False),
        (ending(-signal.SIGKILL, stopped=StopReason.PROTOCOL), False),
    ],
)
def test_only_what_kills_its_process_is_deadly(what, deadly):
    outcome = classify(what)
    assert isinstance(outcome, Retry)
    assert outcome.deadly is deadly


def test_of_limits_only_an_end_by_the_kernel_puts_the_model_under_suspicion():
    for what, suspected in (
        (ending(-signal.SIGKILL, memory=NO_MEMORY.problem), True),
        (ending(-signal.SIGKILL, stopped=StopReason.MEMORY, memory=NO_MEMORY.problem), False),
        (ending(EXIT_RESOURCE_LIMIT, NO_MEMORY), False),
    ):
        outcome = classify(what)
        assert isinstance(outcome, Failed)
        assert (outcome.suspicion is not None) is suspected


def test_the_last_row_holds_whatever_happened_and_no_other_does():
    strange = ending(77)
    assert [row.name for row in TABLE if row.holds(strange)] == ["crash"]


def test_operators_read_the_same_table():
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    rows = [f"| {row.name} | {row.sign} | {row.meaning} |" for row in TABLE]
    assert "\n".join(rows) in page

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
from worker.outcome import TABLE, Canceled, Ending, Failed, Fenced, Interrupted, Retry, StopReason, Succeeded, classify
from worker.sandbox import InspectionBudget

SUMMARY = {"ir_version": 8, "opset": {"": 17}, "producer": "", "node_count": 0, "op_counts": {}, "size_bytes": 1}
RESULT = ModelResult(
    summary=ModelSummary(**SUMMARY, inputs=(), outputs=(), parameter_count=0, sha256="0" * 64)  # type: ignore[arg-type]
)
NO_MEMORY, NO_DISK = (
    ErrorLine(problem=ResourceLimitError("none", resource=what, used_bytes=7).problem()) for what in ("memory", "disk")
)
FULL_DISK = ErrorLine(problem=StorageFullError("disk full").problem())
USER_ERROR = ErrorLine(problem=NotOnnxError("no model").problem())
CANCELED = ErrorLine(problem=CanceledError("canceled").problem())
BUDGET = InspectionBudget(cpu_seconds=60.0, wall_seconds=60.0, memory_bytes=2 << 30, memory_is_own=True)
SHARE = InspectionBudget(cpu_seconds=60.0, wall_seconds=60.0, memory_bytes=2 << 30, memory_is_own=False)
KILLED = -signal.SIGKILL


def ending(returncode, last_line=None, stopped=None, attempt=1, max_attempts=3, **circumstances):
    stopped = None if stopped is None else StopReason[stopped]
    for name in ("memory", "storage"):
        if name in circumstances:
            circumstances[name] = circumstances[name].problem
    return Ending(returncode, last_line, stopped, "last words", attempt, max_attempts, **circumstances)


def told(outcome):
    """The kind, and the code of what is told; of a retry, whether the runner killed its process."""
    match outcome:
        case Failed(problem, _):
            return Failed, problem.code
        case Interrupted(waiting) if waiting is not None:
            assert waiting.hint
            return Interrupted, waiting.code
        case Retry():
            return Retry, outcome.deadly
    return type(outcome), None


@pytest.mark.parametrize(
    ("what", "kind", "code"),
    [
        (ending(EXIT_OK, RESULT), Succeeded, None),
        (ending(EXIT_OK, RESULT, "SHUTDOWN"), Succeeded, None),
        (ending(EXIT_OK, RESULT, "CANCELED"), Canceled, None),
        (ending(EXIT_OK, RESULT, "FENCED"), Fenced, None),
        (ending(EXIT_CANCELED, CANCELED, "CANCELED"), Canceled, None),
        (ending(KILLED, None, "CANCELED"), Canceled, None),
        (ending(KILLED, None, "FENCED"), Fenced, None),
        (ending(EXIT_USER_ERROR, USER_ERROR), Failed, "not-onnx"),
        (ending(EXIT_RESOURCE_LIMIT, NO_MEMORY), Failed, "resource-limit"),
        (ending(EXIT_INSTALLATION, FULL_DISK), Interrupted, "storage-full"),
        (ending(EXIT_INSTALLATION, FULL_DISK, attempt=3), Interrupted, "storage-full"),
        (ending(EXIT_INTERRUPTED), Interrupted, None),
        (ending(EXIT_INTERRUPTED, None, "SHUTDOWN"), Interrupted, "worker-shutdown"),
        (ending(KILLED, None, "SHUTDOWN"), Interrupted, "worker-shutdown"),
        (ending(-signal.SIGTERM), Interrupted, None),
        (ending(KILLED, None, "DEADLINE"), Failed, "deadline-exceeded"),
        (ending(KILLED, None, "DEADLINE", validates=True), Interrupted, "validation-overdue"),
        (ending(KILLED, None, "STALLED"), Failed, "stalled"),
        (ending(-signal.SIGXCPU), Failed, "resource-limit"),
        (ending(1, heard=False), Interrupted, "runner-not-started"),
        (ending(EXIT_NOT_STARTED, heard=False, attempt=3), Interrupted, "runner-not-started"),
        (ending(KILLED, None, "AWAY", lease_over=True), Interrupted, "database-away"),
        (ending(KILLED, lease_over=True), Interrupted, "database-away"),
        (ending(-signal.SIGSEGV, lease_over=True), Retry, True),
        (ending(KILLED, memory=NO_MEMORY), Failed, "resource-limit"),
        (ending(KILLED, None, "MEMORY", memory=NO_MEMORY), Failed, "resource-limit"),
        (ending(KILLED, memory=NO_MEMORY, within_share=True), Retry, False),
        (ending(KILLED, within_share=True), Retry, False),
        (ending(-signal.SIGSEGV, memory=NO_MEMORY), Retry, True),
        (ending(-signal.SIGBUS, storage=FULL_DISK), Interrupted, "storage-full"),
        (ending(-signal.SIGBUS), Retry, True),
        (ending(-signal.SIGSEGV, storage=FULL_DISK), Retry, True),
        (ending(-signal.SIGABRT), Retry, True),
        (ending(-signal.SIGILL), Retry, False),
        (ending(-signal.SIGSYS), Retry, False),
        (ending(KILLED), Retry, False),
        (ending(KILLED, None, "PROTOCOL"), Retry, False),
        (ending(1), Retry, False),
        (ending(EXIT_OK), Retry, False),
        (ending(EXIT_USER_ERROR), Retry, False),
        (ending(EXIT_INSTALLATION), Retry, False),
        (ending(EXIT_CANCELED, CANCELED), Retry, False),
        (ending(EXIT_CRASH, heard=False), Retry, False),
        (ending(EXIT_CRASH, attempt=3), Failed, "poison"),
        # of an inspection: limits of the machine are told as such, and time without a CPU is no fault of the file
        (ending(KILLED, None, "MEMORY", memory=NO_MEMORY, budget=SHARE), Failed, "resource-limit"),
        (ending(EXIT_RESOURCE_LIMIT, NO_MEMORY, budget=SHARE), Failed, "resource-limit"),
        (ending(EXIT_RESOURCE_LIMIT, NO_DISK, budget=BUDGET), Failed, "resource-limit"),
        (ending(KILLED, None, "BUDGET", budget=BUDGET, cpu_seconds=30.0), Interrupted, "validation-overdue"),
    ],
)
def test_classification(what, kind, code):
    outcome = classify(what)
    assert told(outcome) == (kind, code)
    assert code not in ("deadline-exceeded", "stalled", "poison") or outcome.problem.hint


@pytest.mark.parametrize(
    ("what", "limit", "found", "most"),
    [
        (ending(KILLED, None, "BUDGET", budget=BUDGET, cpu_seconds=59.0), "cpu_seconds", 59.0, 60.0),
        (ending(-signal.SIGXCPU, budget=BUDGET), "cpu_seconds", 60.0, 60.0),
        (ending(KILLED, None, "MEMORY", memory=NO_MEMORY, budget=BUDGET), "memory_bytes", 7, 2 << 30),
        (ending(KILLED, memory=NO_MEMORY, budget=BUDGET), "memory_bytes", 7, 2 << 30),
        (ending(EXIT_RESOURCE_LIMIT, NO_MEMORY, budget=BUDGET), "memory_bytes", 7, 2 << 30),
    ],
)
def test_what_breaks_the_budget_of_an_inspection_is_too_complex(what, limit, found, most):
    problem = classify(what).problem
    assert (problem.code, problem.where) == ("too-complex", {"limit": limit, "found": found, "most": most})
    assert str(most) in problem.detail
    assert problem.hint


def test_poison_says_how_it_ended_and_what_it_last_said():
    outcome = classify(ending(-signal.SIGSEGV, attempt=3))
    assert "SIGSEGV" in outcome.poison.detail
    assert outcome.poison.where == {"exit": "ended by SIGSEGV", "attempts": 3, "stderr": "last words"}


def test_of_limits_only_an_end_by_the_kernel_puts_the_model_under_suspicion():
    for what, suspected in (
        (ending(KILLED, memory=NO_MEMORY), True),
        (ending(KILLED, None, "MEMORY", memory=NO_MEMORY), False),
        (ending(EXIT_RESOURCE_LIMIT, NO_MEMORY), False),
    ):
        assert (classify(what).suspicion is not None) is suspected


def test_the_last_row_holds_whatever_happened_and_no_other_does():
    strange = ending(77)
    assert [row.name for row in TABLE if row.holds(strange)] == ["crash"]


def test_operators_read_the_same_table():
    page = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
    rows = [f"| {row.name} | {row.sign} | {row.meaning} |" for row in TABLE]
    assert "\n".join(rows) in page

"""What the command line shows: progress, errors, and the file of a fault of ours. Results go to standard output."""

from __future__ import annotations

import os
import platform
import re
import sys
import tempfile
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook, RenderResult
from rich.progress import Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.segment import Segment
from rich.table import Column
from rich.text import Text

from service.contracts.base import VERSION
from service.contracts.errors import FieldProblem, Problem, QuantmillError
from service.contracts.report.layers import CRITICAL_LOGGED
from service.contracts.surfaces import for_command_line, rewritten, with_options
from service.reports.figures import shown
from worker.commands.figures import whole_words

WIDTH_WITHOUT_TERMINAL = 120
# Of tables with more columns than there is room for, with rules between them.
NARROW: dict[str, Any] = {"box": None, "padding": (0, 1, 0, 0)}
PLAIN_PERIOD_SECONDS = 2.0
# A figure that the steps of layers alone have.
_OF_LAYERS = "error_left_percent"
# The time left is a guess before so much of the run has passed.
_KNOWN_SECONDS, _KNOWN_SHARE = 5.0, 0.05
# Of the line that shows progress: it fits into 80 columns.
_STAGE_CHARS, _AMOUNT_CHARS = 26, 18


def make_console(*, stderr: bool = False, quiet: bool = False) -> Console:
    """A console that is as wide as the terminal, and wide enough for tables where there is none."""
    console = Console(stderr=stderr, quiet=quiet, highlight=False, soft_wrap=False)
    if not console.is_terminal:
        console = Console(stderr=stderr, quiet=quiet, highlight=False, width=WIDTH_WITHOUT_TERMINAL)
    console.push_render_hook(_Printable())
    return console


class _Printable(RenderHook):
    """Whatever is printed: names from a model must not steer the terminal (CWE-150)."""

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        return [_Cleaned(renderable) for renderable in renderables]


class _Cleaned:
    """What is drawn, with the escape of each character that is no printable letter."""

    def __init__(self, inner: ConsoleRenderable) -> None:
        self._inner = inner

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inner, options):
            if segment.control:
                yield segment
            else:
                yield Segment("\n".join(map(shown, segment.text.split("\n"))), segment.style)


def _cut(most: int) -> Column:
    return Column(no_wrap=True, overflow="ellipsis", max_width=most)


class ProgressView:
    """Progress: one line that is rewritten on a terminal, a line now and then elsewhere; nothing where ``quiet``, and
    figures of every layer where ``verbose``.

    Is a ``Run`` of the quantizer.
    """

    def __init__(self, console: Console | None = None, *, quiet: bool = False, verbose: bool = False) -> None:
        self._verbose = verbose
        self._console = console or make_console(stderr=True, quiet=quiet)
        self._printed: dict[str, tuple[float, str]] = {}
        self._whole = self._whole_told = ""
        self._began = self._whole_told_at = time.monotonic()
        self._line: Progress | None = None
        self._task = TaskID(0)
        if self._console.is_terminal:
            self._line = Progress(
                SpinnerColumn(),
                TextColumn("{task.description}", markup=False, table_column=_cut(_STAGE_CHARS)),
                TextColumn("{task.fields[amount]}", markup=False, table_column=_cut(_AMOUNT_CHARS)),
                TimeElapsedColumn(),
                TextColumn("{task.fields[whole]}", markup=False, table_column=Column(no_wrap=True)),
                console=self._console,
                transient=True,
            )
            self._task = self._line.add_task("start", total=None, amount="", whole="")

    def __enter__(self) -> ProgressView:
        if self._line is not None:
            self._line.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._line is not None:
            self._line.stop()

    def progress(
        self,
        stage: str,
        done: int = 0,
        total: int | None = None,
        unit: str = "",
        message: str = "",
        *,
        share: float | None = None,
    ) -> None:
        """Show how far ``stage`` has come."""
        note = message or unit
        amount = f"{done}/{total}" if total is not None else (str(done) if done else "")
        if self._line is None:
            self._print_plain(stage, f"{amount} {note}".strip(), ended=total is not None and done >= total)
        else:
            self._line.update(self._task, description=stage, amount=f"{amount} {note}".strip())

    def overall(self, share: float, seconds_left: float) -> None:
        """Show how far the whole has come."""
        known = share >= _KNOWN_SHARE and time.monotonic() - self._began >= _KNOWN_SECONDS
        self._whole = whole_words(share, seconds_left if known else None)
        if self._line is not None:
            self._line.update(self._task, whole=self._whole)

    def metric(self, stage: str, step: int, values: Mapping[str, float | None]) -> None:
        """Show figures of a step; those of layers only where ``verbose``, as a message tells them, too."""
        if _OF_LAYERS in values and not self._verbose:
            return
        figures = "  ".join(f"{name} {value:.4g}" for name, value in values.items() if value is not None)
        self._console.print(Text(f"{stage} {step}: {figures}", style="dim"))

    def log(self, message: str, level: Literal["info", "warning"] = "info") -> None:
        """Show a message; critical findings stand in the summary."""
        if message.startswith(CRITICAL_LOGGED):
            return
        self._console.print(Text(f"{level}: {message}", style="yellow" if level == "warning" else ""))

    def check(self) -> None:
        """Nobody cancels from here: Ctrl-C raises KeyboardInterrupt."""

    def try_written(self, folder: Path) -> int | None:
        """Nobody makes processes for this one."""
        return None

    def _print_plain(self, stage: str, amount: str, *, ended: bool) -> None:
        now = time.monotonic()
        printed_at, told = self._printed.get(stage, (None, None))
        early = printed_at is not None and now - printed_at < PLAIN_PERIOD_SECONDS and not ended
        if early or told == amount:
            return
        self._printed[stage] = (now, amount)
        if self._whole != self._whole_told and now - self._whole_told_at >= PLAIN_PERIOD_SECONDS:
            self._whole_told_at, self._whole_told = now, self._whole
            self._console.print(Text(f"progress {self._whole}", style="dim"))
        self._console.print(Text(f"{stage} {amount}".rstrip()))


def print_problem(problem: Problem, console: Console | None = None) -> None:
    """Say what was wrong, where, and what to do next."""
    console = console or make_console(stderr=True)
    problem = rewritten(problem, for_command_line)
    if "file" not in problem.where:  # pointers into a file stay
        problem = with_options(problem)
    # left to the terminal: what is searched for in a log must not be cut in two
    told = partial(console.print, soft_wrap=True)
    items = problem.errors
    head = problem.title if len(items) > 1 and _lists(problem.detail, items) else problem.detail
    told(Text.assemble((f"error[{problem.code}]", "bold red"), f": {head}"))
    for item in items:
        if head != problem.detail or item.message not in head:
            told(Text(f"  at {item.pointer or '/'}: {item.message}"))
        elif item.pointer and item.pointer not in head:
            told(Text(f"  at {item.pointer}"))
    for name, value in problem.where.items():
        if _are_problems(value):  # told by the errors, each with its pointer
            continue
        for line in _where_lines(name, value):
            told(Text(line))
    if problem.hint:
        told(Text(f"  hint: {problem.hint}"))
    if problem.request_id:
        told(Text(f"  request: {problem.request_id}"))


def _are_problems(value: Any) -> bool:
    """True for whole problem objects, such as the reasons of a rejected upload."""
    return isinstance(value, list) and any(
        isinstance(one, dict) and {"type", "title", "status"} <= set(one) for one in value
    )


def _where_lines(name: str, value: Any) -> Iterator[str]:
    """A place that an error names; of a list of objects, a line for each."""
    if not isinstance(value, list | tuple | dict):
        yield f"  {name}: {value}"
    elif isinstance(value, dict):
        yield f"  {name}: {_object_words(value)}"
    elif not any(isinstance(item, dict) for item in value):
        yield f"  {name}: {', '.join(map(str, value))}"
    else:
        yield f"  {name}:"
        yield from (f"    {_object_words(item) if isinstance(item, dict) else item}" for item in value)


def _object_words(told: Mapping[str, Any]) -> str:
    """An object in a line: what it is, and behind a colon the fault that it tells of."""
    if set(told) == {"kind", "name"}:
        return f"{told['kind']} {told['name']}"
    fault = {"code", "detail"} <= set(told)
    shown = {name: value for name, value in told.items() if value is not None}
    words = ", ".join(f"{name} {value}" for name, value in shown.items() if not (fault and name in ("code", "detail")))
    return f"{words}: [{told['code']}] {told['detail']}" if fault else words


def _lists(detail: str, items: Sequence[FieldProblem]) -> bool:
    """True for a detail that does nothing but tell the first of the items, which are told below it."""
    rest = detail
    for item in items:
        for told in (f"{item.pointer or '/'}: {item.message}", item.message):
            if told in rest:
                rest = rest.replace(told, "", 1)
                break
    return not rest.strip(" ;.")


# The last resort of the command line: a fault of ours becomes a few lines, and a file that can be reported.

_KEY_OPTIONS = ("--key",)
# Settings are read whatever the case of their names.
_KEY_VARIABLE = "QUANTMILL_API_KEY"
_HIDDEN = "[hidden]"
# Up to the last @: passwords that nobody encoded hold "@" and "/". Rather too much is hidden than too little.
_USER_IN_URL = re.compile(r"(?<=://)(?:[^/\s:]*:\S*|[^/\s]+)(?=@)")
_SECRET_IN_QUERY = re.compile(r"([?&;][\w.-]*(?:password|passwd|pwd|token|secret|key|signature)=)[^&;#\s'\"]+", re.I)
_LONGEST_TOLD = 300
# Shorter texts would hide parts of innocent words.
_SHORTEST_SECRET = 4


def crash_error(error: BaseException) -> QuantmillError:
    """The error to tell of ``error``, which is written to a file with its traceback."""
    # What is cut first may be cut within a secret, which nothing finds then.
    told = without_secrets(f"{type(error).__name__}: {error}", sys.argv, os.environ)
    told = _escaped(told.strip().splitlines()[0][:_LONGEST_TOLD])
    try:
        path = _escaped(str(write_crash(error, sys.argv, os.environ)))
    except OSError as refused:
        return QuantmillError(
            f"Internal error in Quantmill: {told} (the crash report could not be written: {refused.strerror}).",
            hint="Free space in the folder for temporary files, run the command again, and report its file.",
        )
    return QuantmillError(
        f"Internal error in Quantmill: {told}",
        hint=f"Report it with the file {path}, which contains the traceback, versions and the command, but no keys.",
    )


def write_crash(error: BaseException, arguments: Sequence[str], environment: Mapping[str, str]) -> Path:
    """Write what is needed to find the fault, readable by this user alone.

    Raises:
        OSError: the disk refused.
    """
    lines = [
        f"quantmill {VERSION}",
        f"python {platform.python_version()} on {platform.platform()}",
        f"command: {' '.join(_redacted(arguments))}",
        "",
        *traceback.format_exception(error),
    ]
    text = without_secrets("\n".join(lines), arguments, environment)
    descriptor, name = tempfile.mkstemp(prefix="quantmill-crash-", suffix=".txt")
    # File names may hold bytes that no encoding has, and the locale's encoding may lack letters.
    with os.fdopen(descriptor, "w", encoding="utf-8", errors="backslashreplace") as stream:
        stream.write(text)
    return Path(name)


def without_secrets(text: str, arguments: Sequence[str], environment: Mapping[str, str]) -> str:
    """``text`` without the service's key, wherever it came from, and without passwords and tokens in addresses."""
    set_keys = [value for name, value in environment.items() if name.upper() == _KEY_VARIABLE]
    secrets = [*_keys(arguments), *set_keys]
    for secret in sorted((one for one in secrets if len(one) >= _SHORTEST_SECRET), key=len, reverse=True):
        text = text.replace(secret, _HIDDEN)
    return _SECRET_IN_QUERY.sub(rf"\1{_HIDDEN}", _USER_IN_URL.sub(_HIDDEN, text))


def _escaped(text: str) -> str:
    """``text`` with what cannot be printed, such as a file name's odd bytes, as escapes."""
    return text.encode("utf-8", "backslashreplace").decode()


def _keys(arguments: Sequence[str]) -> list[str]:
    """Values of the options that take keys."""
    found = [value for option, value in pairwise(arguments) if option in _KEY_OPTIONS]
    return found + [a.partition("=")[2] for a in arguments if a.partition("=")[0] in _KEY_OPTIONS]


def _redacted(arguments: Sequence[str]) -> list[str]:
    """The command without keys, short ones too."""
    shown: list[str] = []
    for argument in arguments:
        option, equals, _ = argument.partition("=")
        if shown and shown[-1] in _KEY_OPTIONS:
            shown.append(_HIDDEN)
        elif equals and option in _KEY_OPTIONS:
            shown.append(f"{option}={_HIDDEN}")
        else:
            shown.append(argument)
    return shown

"""How commands are declared: records of options in their signatures, and calls of a service whose answer is printed."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from itertools import islice
from types import SimpleNamespace
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar, get_type_hints

import typer

from worker.commands import options
from worker.commands.printing import print_items, print_json, print_line

if TYPE_CHECKING:
    from service.client import Client

KNOCK_SECONDS = 10.0
_Command = TypeVar("_Command", bound=Callable[..., Any])
_RETURNED = ("client", "return")
_JOB_PREFIX, _MOST_NAMED = "job_", 5


@dataclass(frozen=True, kw_only=True)
class Service:
    """Which service a command asks, and by which key."""

    server: options.Server = None
    key: options.Key = field(default=None, repr=False)

    @contextmanager
    def connected(self) -> Iterator[Client]:
        """A client of that service, or of the one that ``find_service`` finds, once somebody answers there.

        Raises:
            InvalidServerError: the address is not spelled as one.
            ServiceNotFoundError: no address is given, and this user runs no service here.
            ServerUnreachableError: nobody answers.
            ApiError: whatever the service refuses; without the right key its hint says how to give one.
        """
        from service.client import UnauthorizedError
        from service.client.clients import CommandClient
        from service.client.connection import SERVER_VARIABLE, checked_address
        from service.contracts.command_errors import InvalidServerError

        if self.server is not None and not self.server.strip():
            raise InvalidServerError(
                "--server is empty.", hint="Leave it out to run here, or to use your service where a command needs one."
            )
        told = self.server or os.environ.get(SERVER_VARIABLE) or None
        with CommandClient(None if told is None else checked_address(told), self.key) as client:
            _knock(client.place.url)
            try:
                yield client
            except UnauthorizedError as error:
                word = "The API key is not valid" if client.place.key else "The service requires an API key"
                hint = (
                    f"{word}: give one with --key, or set QUANTMILL_API_KEY. `quantmill keys create` creates one; a "
                    "service started with `quantmill up` prints the file of its key."
                )
                raise UnauthorizedError(error.sent.model_copy(update={"hint": hint})) from None


def job_id(client: Client, job: str) -> str:
    """The id of a job that is named by its id or by a name that one job alone has.

    Raises:
        typer.BadParameter: several jobs have the name, or none.
    """
    if job.startswith(_JOB_PREFIX):
        return job
    named = [one.id for one in islice(client.jobs(name=job), _MOST_NAMED + 1)]
    if not named:
        raise typer.BadParameter(
            f"No job has the id or name {job!r}; `quantmill jobs list` lists the jobs.", param_hint="JOB"
        )
    if len(named) > 1:
        more = ", ..." if len(named) > _MOST_NAMED else ""
        told = f"{', '.join(named[:_MOST_NAMED])}{more}"
        raise typer.BadParameter(f"Several jobs are named {job!r}; give the id of one: {told}", param_hint="JOB")
    return named[0]


@dataclass(frozen=True, kw_only=True)
class Printing:
    """How a command that shows progress prints."""

    json: options.Json = False
    quiet: options.Quiet = False


@dataclass(frozen=True, kw_only=True)
class ResultPrinting(Printing):
    """How a command prints that may end with the result of a job."""

    verbose: options.Verbose = False


@dataclass(frozen=True)
class Listed:
    """The newest of a list, read one further than ``limit`` to know whether there are more."""

    found: list[Any]
    limit: int


class Done(NamedTuple):
    """What a command has done that leaves nothing to show: as JSON in one line, and in words."""

    document: dict[str, Any]
    words: str


def deleted(reference: str) -> Done:
    """That something was deleted."""
    return Done({"id": reference, "deleted": True}, f"{reference} was deleted")


def command(app: typer.Typer, name: str | None = None, *, about: str | None = None) -> Callable[[_Command], _Command]:
    """Make a command of a function: in place of a dataclass among its parameters stand the options that it holds."""

    def register(function: _Command) -> _Command:
        app.command(name, help=about or function.__doc__)(
            _expanded(function, get_type_hints(function, include_extras=True))
        )
        return function

    return register


def remote(
    app: typer.Typer,
    name: str | None = None,
    *,
    text: Callable[[Any], object] | None = None,
    line: Callable[[Any], str] = str,
    empty: str = "",
    about_json: str = "Print JSON, as the API returns it.",
    about: str | None = None,
) -> Callable[[_Command], _Command]:
    """Make a command of a function that asks a service and gives what is to be printed.

    The function's ``client`` stands for ``--server`` and ``--key``; ``--json`` is added. It gives a record of the
    service, a list of such, a ``Listed`` or a ``Done``.

    Args:
        app: that the command belongs to.
        name: of the command; default: that of the function.
        text: prints the whole answer for people.
        line: in place of ``text``: a line for a record, of a list for each of its items.
        empty: printed in place of an empty list's lines.
        about_json: help of ``--json``.
        about: help of the command; default: the function's docstring.
    """

    def register(function: _Command) -> _Command:
        told = {key: kind for key, kind in function.__annotations__.items() if key not in _RETURNED}
        hints = get_type_hints(SimpleNamespace(__annotations__=told), function.__globals__, include_extras=True)
        json_option = Annotated[bool, typer.Option("--json", help=about_json)]

        def run(*, client: Service, json: bool, **given: Any) -> None:
            with client.connected() as connection:
                found = function(client=connection, **given)
            show(found, json=json, text=text, line=line, empty=empty)

        run.__signature__ = inspect.signature(function).replace(  # type: ignore[attr-defined]
            parameters=[
                *inspect.signature(function).parameters.values(),
                inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False),
            ]
        )
        hints |= {"client": Service, "json": json_option}
        app.command(name or function.__name__, help=about or function.__doc__)(_expanded(run, hints))
        return function

    return register


def show(
    found: Any,
    *,
    json: bool,
    text: Callable[[Any], object] | None = None,
    line: Callable[[Any], str] = str,
    empty: str = "",
) -> None:
    """Print what a service has answered; arguments as for ``remote``."""
    if isinstance(found, Done):
        return print_line(found.document) if json else typer.echo(found.words)
    shown, more = found, False
    if isinstance(found, Listed):
        shown, more = found.found[: found.limit], len(found.found) > found.limit
    if json:
        return print_items(shown, has_more=more) if isinstance(shown, list) else print_json(shown)
    if shown == [] and empty:
        typer.echo(empty)
    elif text is not None:
        text(shown)
    else:
        for item in shown if isinstance(shown, list) else [shown]:
            typer.echo(line(item))
    if more:
        told = f"Only the newest {found.limit} are shown; --limit shows up to {options.MOST_LISTED}."
        typer.echo(told, err=True)


def _expanded(function: Callable[..., Any], hints: Mapping[str, Any]) -> Callable[..., Any]:
    """``function`` with a signature as typer reads it, and records made of the options that typer gives."""
    parameters: list[inspect.Parameter] = []
    records: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        kind = hints[parameter.name]
        if is_dataclass(kind):
            records[parameter.name] = kind
            parameters += _options_of(kind)
        else:
            changed = parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY, annotation=kind)
            parameters.append(changed)

    def run(**given: Any) -> None:
        for name, kind in records.items():
            given[name] = kind(**{field.name: given.pop(field.name) for field in fields(kind)})
        function(**given)

    run.__name__ = function.__name__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return run


def _options_of(kind: Any) -> Iterator[inspect.Parameter]:
    hints = get_type_hints(kind, include_extras=True)
    for one in fields(kind):
        default = inspect.Parameter.empty if one.default is MISSING else one.default
        yield inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=hints[one.name])


def _knock(address: str) -> None:
    """Fail at once where nobody answers: tries go on for a service that was there before."""
    import httpx

    from service.client import ServerUnreachableError
    from worker.commands.console import without_secrets

    try:
        httpx.get(f"{address}/healthz", timeout=KNOCK_SECONDS, trust_env=False).raise_for_status()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ServerUnreachableError(
            f"No service answers at {without_secrets(address, (), {})}: {error}",
            hint="Check the address, or start a service with `quantmill up`.",
        ) from None

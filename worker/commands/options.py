"""Types of the command line's arguments, and settings with what the command line says."""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer
from pydantic import ValidationError

from service import failpoints, logs
from service.contracts.command_errors import (
    EngineMissingError,
    FileAccessError,
    InvalidSettingsError,
    SystemRefusalError,
)
from service.contracts.dataset import PREPROCESSING_NAMES
from service.contracts.devices import DeviceChoice
from service.contracts.errors import QuantmillError
from service.contracts.validation import field_problems
from service.settings import Settings
from worker.quantizer.graph.sizes import VARIABLE as LARGE_VARIABLE
from worker.resource_limits import resource_limit

if TYPE_CHECKING:
    from service.client.options import SubmitOptions

VARIABLE_PREFIX = "QUANTMILL_"
# Variables of clients, of the test suite and the benchmarks, which are no settings of a process.
_NO_SETTINGS = (
    "QUANTMILL_SERVER",
    "QUANTMILL_DATA",
    "QUANTMILL_REQUIRE_DATA",
    "QUANTMILL_TEST_POSTGRES_URL",
    "QUANTMILL_TEST_REDIS_URL",
    failpoints.VARIABLE,
    LARGE_VARIABLE,
)


def default_of(setting: str) -> str:
    """The default of a setting in words: its environment variable, or else the value."""
    return f"{VARIABLE_PREFIX}{setting.upper()}, or {Settings.model_fields[setting].default}"


def file_option(metavar: str, help: str) -> Any:  # noqa: A002 - as typer calls it
    """An option that names a file which is there."""
    return typer.Option(metavar=metavar, exists=True, dir_okay=False, help=help)


DATA_HELP = "Arrays (.npz, .safetensors), or pictures or sounds (.tar, .tar.gz, .zip or a folder)."
ModelPath = Annotated[Path, typer.Argument(metavar="MODEL.onnx", exists=True, dir_okay=False, readable=True)]
DataPath = Annotated[Path, typer.Option(metavar="FILE|FOLDER", exists=True, readable=True, help=DATA_HELP)]
OptionalData = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|FOLDER",
        exists=True,
        readable=True,
        help="Evaluation data: accuracy is measured on it. Same formats as --calibration.",
    ),
]
Baseline = Annotated[Path | None, file_option("FLOAT.onnx", "Baseline, such as the float model.")]
CalibrationPath = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE|FOLDER",
        exists=True,
        readable=True,
        help=f"Calibration data: {DATA_HELP[0].lower()}{DATA_HELP[1:]} Optional if the config needs none.",
    ),
]
DataDir = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help=f"Data directory. Default: {default_of('data_dir')}.",
    ),
]
Server = Annotated[
    str | None,
    typer.Option(
        metavar="URL",
        help="URL of the service. Default: QUANTMILL_SERVER, or your service on this host.",
    ),
]
Key = Annotated[
    str | None,
    typer.Option(help="API key of the service. Default: QUANTMILL_API_KEY, or the key of your service on this host."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, as the API returns it.")]
PlainJson = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no summary.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print the whole report, not only its summary.")]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads. Default: one per core.")]
Preprocessing = Annotated[
    str | None,
    typer.Option(
        metavar="NAME|JSON|FILE",
        help=f"Preprocessing of the data: JSON, a JSON file, or a name: {PREPROCESSING_NAMES}.",
    ),
]
EvaluationPreprocessing = Annotated[
    str | None,
    typer.Option(metavar="NAME|JSON|FILE", help="Preprocessing of the evaluation data. Default: --preprocessing."),
]
StateFile = Annotated[
    Path | None,
    file_option(
        "NEW.safetensors",
        "New weights for the graph of MODEL (a state_dict saved as safetensors).",
    ),
]
RangesFrom = Annotated[
    str | None,
    typer.Option(
        metavar="R.json|JOB",
        help="Reuse the calibrated ranges of an earlier report on the same graph; with --server, of a job.",
    ),
]
Priority = Annotated[
    int | None,
    typer.Option(min=-100, max=100, help="With --server: priority of the job; higher starts first. Default: 0."),
]
Device = Annotated[
    DeviceChoice | None,
    typer.Option(help="With --server: where the job runs. Default: auto, a GPU if the config asks for one."),
]
JobDevice = Annotated[
    DeviceChoice | None, typer.Option(help="Where the job runs. Default: auto, a GPU if the config asks for one.")
]
_CONFIG_METAVAR = "FILE.json|.yaml|.toml"
ConfigFile = Annotated[
    Path | None,
    file_option(_CONFIG_METAVAR, "Config, instead of --preset."),
]
MetricsFile = Annotated[
    Path | None,
    file_option(_CONFIG_METAVAR, "Config with the metrics and the gate under evaluation."),
]
JobName = Annotated[str | None, typer.Option(help="Name of the job.")]
JobLabels = Annotated[list[str] | None, typer.Option(metavar="KEY=VALUE", help="Label of the job; repeatable.")]
JobPriority = Annotated[int, typer.Option(min=-100, max=100, help="Priority; higher starts first.")]
JobIdempotencyKey = Annotated[
    str | None,
    typer.Option(metavar="WORD", help="The same word never creates a second job."),
]
# Of a list that is read page by page.
MOST_LISTED = 10_000
Newest = Annotated[int, typer.Option(min=1, max=MOST_LISTED, help="Show at most this many, newest first.")]
JobId = Annotated[
    str,
    typer.Argument(metavar="JOB", help="Id of the job (job_01jd3v8g5z7k2m4n6p8q0r1s2t), or its name if unique."),
]
ExtraDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Write further files of the config, such as analyses, to this folder."),
]
CacheDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Cache intermediate results in this folder for later runs."),
]
CheckpointDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", help="Save checkpoints in this folder; the same command resumes from them."),
]


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """What every job takes beside what it works on."""

    name: JobName = None
    label: JobLabels = None
    priority: JobPriority = 0

    def request(self) -> SubmitOptions:
        """The same as the client takes it.

        Raises:
            typer.BadParameter: a label is no KEY=VALUE.
        """
        return {"name": self.name, "labels": labels(self.label or ()), "priority": self.priority}


_MINUTES = {"m": 1, "h": 60, "d": 24 * 60}

# Of the extras `worker` and `demo`: the API server is installed without them.
_ENGINE_PACKAGES = {
    "PIL",
    "ml_dtypes",
    "onnx",
    "onnx_ir",
    "onnxruntime",
    "onnxscript",
    "safetensors",
    "sklearn",
    "torch",
}


def load_settings(**values: Any) -> Settings:
    """Settings from the environment, with the ``values`` that are not None on top.

    Raises:
        InvalidSettingsError: naming each bad variable.
    """
    with settings_errors():
        return Settings(**{name: value for name, value in values.items() if value is not None})


@contextmanager
def settings_errors() -> Iterator[None]:
    """Turn pydantic's refusal of the settings into a typed error.

    Raises:
        InvalidSettingsError: naming each bad variable.
    """
    try:
        yield
    except ValidationError as error:
        if error.title != Settings.__name__:
            raise
        problems = field_problems(error, Settings, show_values=False)
        raise InvalidSettingsError(
            "; ".join(
                f"QUANTMILL_{item.pointer.strip('/').upper()}: {item.message}" if item.pointer else item.message
                for item in problems
            ),
            hint="Correct the environment variable or the option.",
        ) from None


def unknown_variables(environment: Mapping[str, str]) -> dict[str, str | None]:
    """Variables named like settings that are none, each with the setting that was probably meant."""
    known = [name.upper() for name in Settings.model_fields]
    found: dict[str, str | None] = {}
    for variable in sorted(name for name, value in environment.items() if value):  # empty: not set
        prefix, name = variable[: len(VARIABLE_PREFIX)].upper(), variable[len(VARIABLE_PREFIX) :].upper()
        if prefix == VARIABLE_PREFIX and name not in known and variable not in _NO_SETTINGS:
            close = get_close_matches(name, known, n=1)
            found[variable] = VARIABLE_PREFIX + close[0] if close else None
    return found


def warn_of_unknown_variables() -> None:
    """Say on standard error which variables do nothing, and forget them: children of this process need not say it."""
    for name, meant in unknown_variables(os.environ).items():
        del os.environ[name]
        guess = f"; did you mean {meant}?" if meant else "."
        typer.echo(f"warning: unknown environment variable {name}, ignored{guess}", err=True)


def typed_error(error: BaseException) -> QuantmillError | None:
    """The error in words that a user can act on; None if it is a fault of ours that needs its traceback."""
    if isinstance(error, QuantmillError):
        return error
    limit = resource_limit(error)
    if limit is not None:
        return limit
    if isinstance(error, OSError) and error.filename is not None:
        return FileAccessError(f"{error.filename}: {error.strerror}.", hint="Check the path and its permissions.")
    # Without a number it is none of the system's: libraries raise OSError with words of their own.
    if isinstance(error, OSError) and error.errno is not None:
        return SystemRefusalError(f"{error.strerror}.", hint="Check addresses, permissions and limits (ulimit -a).")
    if type(error).__module__.startswith("sqlalchemy."):
        return _database_refusal(error)
    if isinstance(error, ModuleNotFoundError) and (error.name or "").partition(".")[0] in _ENGINE_PACKAGES:
        return EngineMissingError(f"{error.name} is not installed.", hint="pip install 'quantmill[worker]'")
    return None


def _database_refusal(error: BaseException) -> QuantmillError | None:
    """What a service answers where its database does not; None for a fault in what we asked of it."""
    from sqlalchemy.exc import InterfaceError, OperationalError
    from sqlalchemy.exc import TimeoutError as PoolTimeoutError

    from service.errors import DatabaseUnavailableError
    from worker.commands.console import without_secrets

    if not isinstance(error, OperationalError | InterfaceError | PoolTimeoutError):
        return None
    told = str(getattr(error, "orig", None) or error).strip().partition("\n")[0]
    return DatabaseUnavailableError(
        f"The database does not answer or is locked: {without_secrets(told, sys.argv, os.environ)}",
        hint="Check QUANTMILL_DATABASE_URL, that the database runs, and that it was migrated: quantmill migrate.",
    )


def output_path(path: Path | None) -> Path | None:
    """A file that can be written.

    Raises:
        typer.BadParameter: its folder is not there, or it is itself a folder.
    """
    if path is not None and path.is_dir():
        raise typer.BadParameter(f"{path} is a folder.")
    if path is not None and not path.absolute().parent.is_dir():
        raise typer.BadParameter(f"The folder {path.absolute().parent} does not exist.")
    return path


def output_folder(path: Path | None) -> Path | None:
    """A folder that is there or can be made.

    Raises:
        typer.BadParameter: it is a file.
    """
    if path is not None and path.exists() and not path.is_dir():
        raise typer.BadParameter(f"{path} is not a folder.")
    return path


def distinct_paths(written: dict[str, Path | None], read: dict[str, Path | None]) -> None:
    """Refuse to write over an input, or two results into one file.

    Raises:
        typer.BadParameter: naming both options.
    """
    taken = {path.resolve(): option for option, path in read.items() if path is not None}
    for option, path in written.items():
        if path is None:
            continue
        other = taken.setdefault(path.resolve(), option)
        if other != option:
            raise typer.BadParameter(f"{option} and {other} are the same file: {path}")


def labels(given: Iterable[str], option: str = "--label") -> dict[str, str]:
    """Labels as a job takes them, and tags as models and datasets do.

    Raises:
        typer.BadParameter: one is no KEY=VALUE, or a key comes twice.
    """
    found: dict[str, str] = {}
    for entry in given:
        name, sign, value = entry.partition("=")
        if not sign or not name:
            raise typer.BadParameter(f"{entry!r} is not KEY=VALUE.", param_hint=option)
        if name in found:
            raise typer.BadParameter(f"{name!r} is given twice.", param_hint=option)
        found[name] = value
    return found


def checked_labels(given: list[str] | None) -> list[str] | None:
    """A callback of an option that takes labels."""
    labels(given or ())
    return given


def one_of(module: str, name: str) -> Callable[[str | None], str | None]:
    """A callback of an option that takes one of the words of a Literal, whose module is loaded once one is given."""

    def check(value: str | None) -> str | None:
        choices = () if value is None else get_args(getattr(import_module(module), name))
        if value is None or value in choices:
            return value
        from service.contracts.base import nearest_key

        near = nearest_key(value, choices)
        guess = "" if near is None else f"; did you mean {near!r}?"
        raise typer.BadParameter(f"{value!r} is not one of {', '.join(choices)}{guess}")

    return check


def one_recipe(preset: str | None, config: Path | None) -> None:
    """Refuse two recipes.

    Raises:
        typer.BadParameter: naming the options.
    """
    if preset is not None and config is not None:
        raise typer.BadParameter("--preset and --config exclude each other; name the preset in the config.")


def refuse_on_service(server: str | None, given: Mapping[str, object]) -> None:
    """Refuse options of runs in this process where a service is to do it.

    Raises:
        typer.BadParameter: naming the first that is given.
    """
    for option, value in given.items():
        if server is not None and value is not None:
            raise typer.BadParameter(f"{option} and --server exclude each other: a service has its own setting.")


def moment_since(text: str | None) -> datetime | None:
    """A moment as an option takes it: a date or a time, of UTC unless it says otherwise; or how long ago, such as 7d.

    Raises:
        typer.BadParameter: it is neither.
    """
    if text is None:
        return None
    ago = re.fullmatch(r"(\d{1,6})([mhd])", text)
    if ago is not None:
        return datetime.now(UTC) - timedelta(minutes=int(ago[1]) * _MINUTES[ago[2]])
    try:
        found = datetime.fromisoformat(text)
    except ValueError:
        raise typer.BadParameter(
            f"{text!r} is not a time: 2026-01-31, 2026-01-31T12:00Z, or 90m, 12h, 7d ago.", param_hint="--since"
        ) from None
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def checked_moment(text: str | None) -> str | None:
    """A callback of an option that takes a moment."""
    moment_since(text)
    return text


def configure_logging(level: int = logging.INFO, form: logs.LogFormat = "text") -> None:
    """One line per record on standard error, UTC."""
    logs.configure_logging(level, form)
    # What they say of every task, the supervisor says of every job.
    logging.getLogger("alembic").setLevel(max(level, logging.WARNING))
    for name in ("celery.app.trace", "celery.worker.strategy"):
        logging.getLogger(name).setLevel(max(level, logging.WARNING))

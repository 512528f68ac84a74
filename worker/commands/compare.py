"""``quantmill compare``: jobs of a service side by side."""

from __future__ import annotations

import json as js
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.contracts.changes import p_words, ratio_words
from service.reports.figures import size
from service.reports.verdict import outcome
from worker.commands.command import Service, command, job_id
from worker.commands.figures import duration_words, figure, labelled, number, short
from worker.commands.options import Json
from worker.commands.printing import print_json
from worker.commands.report_files import read_report

if TYPE_CHECKING:
    from service.comparison.schemas import ComparedJob, ComparedPair, Comparison

_FEWEST, _REPORT_ENDING = 2, ".json"
_VALUE_CHARS = 40
_MOST_CONFIG = 20
_MOST_LAYERS = 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    command(app)(compare)


def compare(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB JOB...", help="2 to 20 jobs (id or unique name), or as many report files; baseline first."
        ),
    ],
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV, one row per job.")] = False,
    flips: Annotated[int, typer.Option(min=0, max=1000, help="Prediction flips to list per pair.")] = 50,
    *,
    service: Service,
    json: Json = False,
) -> None:
    """Compare jobs, or report files: config, metrics, prediction flips, size, latency, layers."""
    if len(jobs) < _FEWEST:
        raise typer.BadParameter(
            "Give at least two jobs; `quantmill jobs list` shows them.",
            param_hint="JOB JOB...",
        )
    files = [Path(job) for job in jobs if job.endswith(_REPORT_ENDING)]
    if files:
        _compare_files(files, jobs, csv=csv, json=json)
        return
    with service.connected() as client:
        ids = [job_id(client, job) for job in jobs]
        if csv:
            typer.echo(client.compare_csv(ids), nl=False)
            return
        found = client.compare(ids, flips=flips)
    if json:
        print_json(found)
    else:
        _print(found)


def _compare_files(files: list[Path], given: list[str], *, csv: bool, json: bool) -> None:
    """Compare reports of this host.

    Raises:
        typer.BadParameter: a file is not there, or jobs are among them.
    """
    from service.comparison.local import compare_reports
    from service.comparison.table import comparison_csv

    jobs = [one for one in given if not one.endswith(_REPORT_ENDING)]
    if jobs:
        told = f"{files[0]} is a report file and {jobs[0]} a job: compare files with files, or jobs with jobs."
        raise typer.BadParameter(told, param_hint="JOB JOB...")
    for path in (path for path in files if not path.is_file()):
        raise typer.BadParameter(f"{path} does not exist.", param_hint="JOB JOB...")
    found = compare_reports([(path, read_report(path)) for path in files])
    if csv:
        typer.echo(comparison_csv(found), nl=False)
    elif json:
        print_json(found)
    else:
        _print(found)


def _print(found: Comparison) -> None:
    from rich.table import Column, Table
    from rich.text import Text

    from worker.commands.console import make_console

    console = make_console()
    heads = [Column(Text(job.name or job.id)) for job in found.jobs]
    table = Table("", *heads, title="jobs", title_justify="left")
    for title, row in _rows(found):
        table.add_row(Text(title), *(Text(value) for value in row))
    console.print(table)
    names = {job.id: job.name for job in found.jobs}
    for pair in found.pairs:
        console.print(Text(_told(pair, names.get(pair.second) or pair.second)), soft_wrap=True)
    for title, lines, more in (
        ("config", [(d.pointer, [_short(value) for value in d.values]) for d in found.config_differences], 0),
        ("SQNR in dB", [(la.name, [short(v) for v in la.sqnr_db]) for la in found.layers], found.layers_more),
    ):
        most = _MOST_CONFIG if title == "config" else _MOST_LAYERS
        if lines:
            shown = Table(title, *(Column(head.header) for head in heads))
            for name, values in lines[:most]:
                shown.add_row(Text(name), *(Text(value) for value in values))
            console.print(shown)
        if len(lines) + more > most:
            console.print(f"... and {len(lines) + more - most} more; --json shows all")


def _rows(found: Comparison) -> list[tuple[str, list[str]]]:
    jobs = found.jobs
    names = dict.fromkeys((metric.name, metric.unit) for job in jobs for metric in job.metrics)
    rows: list[tuple[str, list[str]]] = [
        ("job", [job.id for job in jobs]),
        ("model", [job.model or "-" for job in jobs]),
        ("preset", [job.preset or "-" for job in jobs]),
        ("result", [_result(job) for job in jobs]),
    ]
    rows += [(labelled(name, unit), [_metric(job, name) for job in jobs]) for name, unit in names]
    return [
        *rows,
        ("size", [size(job.quantized_size_bytes) for job in jobs]),
        ("latency", ["-" if job.latency_ratio is None else ratio_words(job.latency_ratio) for job in jobs]),
        ("SQNR", [number(job.sqnr_db, "dB") for job in jobs]),
        ("took", ["-" if job.seconds is None else duration_words(job.seconds) for job in jobs]),
    ]


def _result(job: ComparedJob) -> str:
    return outcome(job.verdict, collapsed=job.collapsed, critical=job.critical_findings > 0).word


def _metric(job: ComparedJob, name: str) -> str:
    found = next((one for one in job.metrics if one.name == name), None)
    return "-" if found is None else f"{figure(found.float_, found.unit)} -> {figure(found.quantized, found.unit)}"


def _told(pair: ComparedPair, name: str) -> str:
    if pair.flips is None or pair.interval is None:
        return f"{name}: {pair.reason}"
    word = "significant" if pair.significant else "not significant"
    return (
        f"{name}: {pair.measure} {_gain(pair.drop_percent or 0.0)} points to the first job "
        f"({_gain(pair.interval.high)} to {_gain(pair.interval.low)}, {p_words(pair.p_value)}: {word}); "
        f"of {pair.samples} samples: {pair.flips.lost} lost, {pair.flips.won} won"
    )


def _gain(drop: float) -> str:
    """What is won, in points with a sign; 0.00 without one that nothing stands behind."""
    return f"{round(-drop, 2) + 0.0:+.2f}"


def _short(value: object) -> str:
    """A setting as JSON, texts as they are."""
    text = "-" if value is None else value if isinstance(value, str) else js.dumps(value)
    return text if len(text) <= _VALUE_CHARS else f"{text[: _VALUE_CHARS - 3]}..."

"""The report as files for people and for CI: beside a quantization, and of a report that lies there already."""

from __future__ import annotations

import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import ValidationError

from service.contracts.config import advised_config
from service.contracts.errors import InvalidRequestError
from service.contracts.report import Advice, Report
from service.contracts.validation_words import message_of
from worker.commands import options
from worker.commands.command import Printing, Service, command, job_id
from worker.commands.printing import print_json
from worker.publishing import publish

if TYPE_CHECKING:
    from service.reports.formats import FormatName

_REPORT_ENDING = ".json"


@dataclass(frozen=True, kw_only=True)
class ReportFiles:
    """Where each form of the report goes; None: nowhere."""

    html: Annotated[Path | None, typer.Option(metavar="R.html", help="Write the report as an HTML page.")] = None
    markdown: Annotated[Path | None, typer.Option(metavar="R.md", help="Write the report as Markdown.")] = None
    junit: Annotated[
        Path | None, typer.Option(metavar="R.xml", help="Write gate and critical findings as JUnit XML, for CI.")
    ] = None
    layers_csv: Annotated[Path | None, typer.Option(metavar="L.csv", help="Write the layers as CSV.")] = None

    @property
    def by_option(self) -> dict[str, Path | None]:
        """The paths by the options that name them."""
        return {f"--{form.replace('_', '-')}": path for form, path in self._by_form.items()}

    @property
    def paths(self) -> tuple[Path, ...]:
        """Those that are named."""
        return tuple(path for path in self._by_form.values() if path is not None)

    def write(self, report: Report) -> None:
        """Write every form that is asked for, each file whole or not at all, and name the files.

        Raises:
            OSError: the disk refused.
        """
        from service.reports.formats import rendered

        for form, path in self._by_form.items():
            if path is not None:
                write_whole(path, rendered(report, form))
                typer.echo(f"{form.partition('_')[0]:<10}{path}")

    @property
    def _by_form(self) -> dict[FormatName, Path | None]:
        return {
            "html": self.html,
            "markdown": self.markdown,
            "junit": self.junit,
            "layers_csv": self.layers_csv,
        }


def write_whole(path: Path, data: bytes) -> None:
    """Write a file that appears whole or not at all.

    Raises:
        OSError: the disk refused; nothing is left behind.
    """
    with tempfile.NamedTemporaryFile(dir=path.absolute().parent, prefix=".quantmill-", delete=False) as stream:
        part = Path(stream.name)
        try:
            stream.write(data)
            stream.flush()
            publish(part, path)
        except BaseException:
            part.unlink(missing_ok=True)
            raise


def write_json(path: Path, document: Any) -> None:
    """Write a document as JSON that people can read, whole or not at all.

    Raises:
        OSError: the disk refused; nothing is left behind.
    """
    write_whole(path, render_json(document).encode())


def render_json(document: Any) -> str:
    """A document as JSON that people can read."""
    return f"{json.dumps(document, indent=2)}\n"


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    command(app)(report)
    app.command("apply-advice")(apply_advice)


def report(
    source: Annotated[
        str, typer.Argument(metavar="R.json|JOB", help="A report file, or a succeeded job (id or unique name).")
    ],
    files: ReportFiles,
    printing: Printing,
    service: Service,
) -> None:
    """Print a report and write it as HTML, Markdown, JUnit or CSV."""
    from worker.commands.report_view import print_evaluation, print_report

    for path in files.paths:
        options.output_path(path)
    file = Path(source)
    if not file.exists() and file.suffix != _REPORT_ENDING:
        with service.connected() as client:
            source = job_id(client, source)
            if client.job(source).kind == "evaluate":
                if files.paths:
                    raise typer.BadParameter("The report of an evaluation is available as JSON only.", param_hint="JOB")
                told = client.evaluation_report(source).to_json_dict()
                if printing.json:
                    typer.echo(render_json(told), nl=False)
                elif not printing.quiet:
                    print_evaluation(told)
                return
            found = client.report(source)
    elif not file.is_file():
        raise typer.BadParameter(f"{source} is neither a file nor a job.", param_hint="R.json|JOB")
    else:
        options.distinct_paths(files.by_option, {"R.json": file})
        found = read_report(file)
    if printing.json:
        typer.echo(render_json(found.to_json_dict()), nl=False)
    elif not printing.quiet:
        print_report(found, report_path=file if file.exists() else None)
    files.write(found)


def read_report(file: Path) -> Report:
    """The report of a file.

    Raises:
        InvalidRequestError: it holds none.
    """
    try:
        return Report.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        place = "/".join(str(part) for part in first["loc"])
        raise InvalidRequestError(
            f"{file} is not a report: {f'{place}: ' if place else ''}{message_of(first)}.",
            hint="Give a file that --report wrote, or download one with GET /v1/jobs/{id}/report.",
        ) from None


def apply_advice(
    report: Annotated[Path, typer.Argument(metavar="REPORT.json", exists=True, dir_okay=False, help="A report file.")],
    output: Annotated[Path, typer.Option(metavar="CONFIG.json", help="Write the config to this file.")],
    number: Annotated[int, typer.Option(min=1, help="Number of the advice, in the report's order.")] = 1,
    as_json: options.PlainJson = False,
) -> None:
    """Write the config of a report with an advice applied, for quantize --config."""
    options.output_path(output)
    options.distinct_paths({"--output": output}, {"REPORT": report})
    found = read_report(report)
    chosen = _chosen(found, number, report)
    document = advised_config(found.manifest.config, chosen.config).model_dump(mode="json")
    write_json(output, document)
    if as_json:
        facts = {"code": chosen.code, "message": chosen.message, "changes": chosen.config}
        print_json({"advice": number, **facts, "config": str(output)})
        return
    typer.echo(f"advice    {number}, {chosen.code}: {chosen.message}")
    for key, value in chosen.config.items():
        typer.echo(f"  {key}: {json.dumps(value)}")
    typer.echo(f"config    {output}")


def _chosen(report: Report, number: int, path: Path) -> Advice:
    listed = report.advice
    if number > len(listed):
        raise InvalidRequestError(
            f"{path} has {len(listed) or 'no'} advice.",
            hint="Reports have advice where accuracy was lost." if not listed else f"Choose from 1 to {len(listed)}.",
        )
    chosen = listed[number - 1]
    if not chosen.config:
        raise InvalidRequestError(f"Advice {number} changes no setting: {chosen.message}", hint="Choose another one.")
    return chosen

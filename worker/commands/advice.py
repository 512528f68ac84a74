"""``quantmill apply-advice``: the config of a report with a piece of its advice, ready to be quantized with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from service.contracts.errors import InvalidRequestError
from service.contracts.patch import advised_config
from service.contracts.report import Advice, Report
from worker.commands import options
from worker.commands.json_output import print_json
from worker.commands.report_files import read_report, write_json


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command("apply-advice")(apply_advice)


def apply_advice(
    report: Annotated[
        Path, typer.Argument(metavar="REPORT.json", exists=True, dir_okay=False, help="The file of --report.")
    ],
    output: Annotated[Path, typer.Option(metavar="CONFIG.json", help="Where the whole config goes.")],
    number: Annotated[int, typer.Option(min=1, help="Which advice of the report; 1 is the most helpful.")] = 1,
    as_json: options.PlainJson = False,
) -> None:
    """Write the config of a report with a piece of its advice applied, for ``quantmill quantize --config``."""
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
            f"{path} has {len(listed) or 'no'} piece{'' if len(listed) == 1 else 's'} of advice.",
            hint="Advice is given where accuracy suffered." if not listed else f"Choose from 1 to {len(listed)}.",
        )
    chosen = listed[number - 1]
    if not chosen.config:
        raise InvalidRequestError(f"advice {number} is no setting: {chosen.message}", hint="Choose another one.")
    return chosen

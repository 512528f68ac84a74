"""``quantmill dataset``: make datasets of folders."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from worker.commands import options
from worker.commands.json_output import print_json

app = typer.Typer(name="dataset", help="Make datasets of folders of pictures or sounds.", no_args_is_help=True)


@app.callback()
def every_command() -> None:
    """Make datasets of folders of pictures or sounds."""


@app.command()
def pack(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", exists=True, file_okay=False, readable=True)],
    output: Annotated[Path, typer.Option("--output", "-o", metavar="DATA.tar", help="Where the archive goes.")],
    as_json: options.PlainJson = False,
) -> None:
    """Pack pictures or WAV files into a .tar: sorted by name, the same bytes each time, nothing that cannot be used."""
    from worker.quantizer.data.media.packing import pack_folder

    if output.suffix.lower() != ".tar":
        raise typer.BadParameter(f"{output} does not end in .tar.", param_hint="--output")
    options.output_path(output)
    if output.resolve().is_relative_to(folder.resolve()):
        raise typer.BadParameter(f"{output} lies within {folder}.", param_hint="--output")
    packed = pack_folder(folder, output)
    if as_json:
        facts = {"files": packed.files, "content": packed.content, "classes": packed.classes}
        print_json({"path": str(output), **facts})
        return
    labelled = "no labels" if packed.classes is None else f"{packed.classes} classes"
    typer.echo(f"{output}  {packed.files} {packed.content}, {labelled}")

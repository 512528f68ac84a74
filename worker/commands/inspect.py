"""``quantmill inspect``, ``dequantize`` and ``provenance``: look at a model, make it float, ask where it came from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.contracts.command_errors import ProvenanceError
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.graph_view import Inspection
from service.contracts.targets import TARGET_OPTIONS, unknown_target
from worker.commands import options
from worker.commands.command import Service
from worker.commands.options import Key, ModelPath, Threads
from worker.commands.printing import print_json
from worker.commands.quantize import PRESET_HELP
from worker.commands.report_files import read_report, write_whole

if TYPE_CHECKING:
    from worker.commands.console import ProgressView


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(inspect)
    app.command()(dequantize)
    app.command()(provenance)


def inspect(
    model: ModelPath,
    target: Annotated[
        str | None,
        typer.Option(help=f"Target: {', '.join(TARGET_OPTIONS)}. Default: that of the config or preset."),
    ] = None,
    preset: Annotated[str | None, typer.Option(help=PRESET_HELP)] = None,
    config: options.ConfigFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    threads: Threads = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="Run on this service instead of in this process.")
    ] = None,
    key: Key = None,
) -> None:
    """Show which nodes a target runs quantized, and why not the others."""
    from worker.commands.console import ProgressView
    from worker.commands.naming import naming_files
    from worker.commands.recipes import load_recipe
    from worker.commands.report_view import print_inspection

    options.one_recipe(preset, config)
    options.refuse_on_service(server, {"--threads": threads})
    loaded = load_recipe(preset, config)
    with loaded.pointing_into_file():
        recipe = _aimed(loaded.config, target)
        if server is None:
            from worker.quantizer.modes.planning import inspect_file

            with naming_files(model):
                found = inspect_file(model.absolute(), recipe, threads=threads or options.load_settings().threads)
        else:
            with ProgressView() as view:
                found = _on_server(model, recipe, Service(server=server, key=key), view)
    if as_json:
        print_json(found)
    else:
        print_inspection(found)


def dequantize(
    model: ModelPath,
    output: Annotated[Path, typer.Option(metavar="FLOAT.onnx", help="Write the float model to this file.")],
) -> None:
    """Turn a quantized model back into a float model."""
    from worker.commands.naming import naming_files
    from worker.quantizer.graph.serialized import to_bytes
    from worker.quantizer.intake.loading import load_model
    from worker.quantizer.preparation.prepare import undo_quantization

    options.output_path(output)
    options.distinct_paths({"--output": output}, {"MODEL": model})
    with naming_files(model):
        outcome = undo_quantization(load_model(model.absolute()))
    write_whole(output, to_bytes(outcome.model))
    typer.echo(f"{outcome.said}\nmodel     {output}")


def provenance(
    model: ModelPath,
    report: Annotated[
        Path | None,
        options.file_option("R.json", "Check that this report belongs to the model."),
    ] = None,
) -> None:
    """Print the provenance of a quantized model as JSON (null if it has none)."""
    from worker.quantizer.intake.provenance import provenance_faults, read_provenance

    told = read_provenance(model)
    typer.echo("null" if told is None else told.model_dump_json(indent=2))
    faults = () if report is None else provenance_faults(model, read_report(report))
    if faults:
        raise ProvenanceError(
            f"{report} is not the report of {model}: {'; '.join(faults)}.",
            hint="Give model and report of the same run. A model that was changed afterwards matches no report.",
        )
    if report is not None:
        typer.echo(f"{report} is the report of {model}", err=True)


def _aimed(config: QuantizationConfig, target: str | None) -> QuantizationConfig:
    """The config for another target.

    Raises:
        typer.BadParameter: there is no such target.
        InvalidConfigError: the config switches options that the target does not have.
    """
    if target is None:
        return config
    if target not in TARGET_OPTIONS:
        raise typer.BadParameter(f"{unknown_target(target)}.", param_hint="--target")
    return parse_config({**config.model_dump(mode="json"), "target": target})


def _on_server(model: Path, config: QuantizationConfig, service: Service, view: ProgressView) -> Inspection:
    from worker.commands.remote import model_of

    with service.connected() as client:
        uploaded = model_of(client, model, view)
        view.progress("validate", message="on the service")
        model_id = client.wait_ready(uploaded).id
        view.progress("inspect", message="on the service")
        return client.inspect(model_id, config=config)

"""The main job end to end on real data: train, serve, upload, quantize, download, report."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from service.contracts.command_errors import DemoError
from service.contracts.config import parse_config
from service.contracts.dataset import PreprocessingSpec
from service.contracts.report import Report
from service.keys.files import LOCAL_KEY_FILE, own_secret
from worker.children import command_line, start_child
from worker.commands import remote
from worker.commands.command import Service
from worker.commands.console import ProgressView
from worker.commands.recipes import Quantization, source
from worker.commands.report_files import write_json
from worker.commands.report_view import print_report, size_ratio

CONFIG = {"preset": "int8", "evaluation": {"gate": {"metric": "top1", "max_drop": 1.0}}}
# Digits are stored as integers 0..16; the model was trained on 0..1.
PREPROCESSING = {"inputs": {"image": {"layout": "NHW", "model_layout": "NCHW", "scale": 1 / 16}}}
STOP_SECONDS = 30
SERVICE_LOG = "service.log"


def run_demo(output: Path, data_dir: Path | None) -> Report:
    """Run the demo; model, report and the service's log stay in ``output``.

    Args:
        output: folder for the results; made if it is not there.
        data_dir: home of the service; None: a temporary one that is removed afterwards.

    Raises:
        DemoError: training failed, or the service did not start.
        QuantmillError: whatever the service answers.
    """
    output.mkdir(parents=True, exist_ok=True)
    typer.echo("Training a depthwise-separable CNN on scikit-learn's digits (8 x 8 grey images, 10 classes) ...")
    _train(output)
    spec = PreprocessingSpec.model_validate(PREPROCESSING)
    with tempfile.TemporaryDirectory(prefix="quantmill-demo-") as temporary:
        home = Path(temporary) if data_dir is None else data_dir
        with serving(home, output / SERVICE_LOG) as url:
            typer.echo(f"The service is up at {url}")
            with ProgressView() as view:
                task = Quantization(
                    model=output / "digits.onnx",
                    config=parse_config(CONFIG),
                    calibration=source(output / "calibration.npz", spec),
                    evaluation=source(output / "evaluation.npz", spec),
                    output=output / "digits.int8.onnx",
                )
                service = Service(server=url, key=own_secret(home / LOCAL_KEY_FILE))
                report = remote.quantize(task, service, view=view).report
    write_json(output / "report.json", report.to_json_dict())
    print_report(report)
    before, after = report.float_.metrics["top1"], report.quantized.metrics["top1"]
    typer.echo(
        f"\nfloat accuracy      {before:.2f} %\n"
        f"quantized accuracy  {after:.2f} %\n"
        f"size ratio          {size_ratio(report):.2f}\n"
        f"verdict             {report.verdict}\n"
        f"model               {output / 'digits.int8.onnx'}\n"
        f"report              {output / 'report.json'}"
    )
    return report


def _train(folder: Path) -> None:
    """Train in a process of its own: torch must not be loaded where other processes are started."""
    process = start_child(
        [sys.executable, "-P", "-m", "worker.commands.demo_model", str(folder)], variables={}, stderr=subprocess.PIPE
    )
    _, errors = process.communicate()
    if process.returncode != 0:
        lines = errors.decode(errors="replace").strip().splitlines() or [f"exit code {process.returncode}"]
        raise DemoError(
            f"Training failed: {lines[-1]}", hint="The demo needs the extra: pip install 'quantmill[demo]'."
        )


@contextmanager
def serving(home: Path, log_file: Path, **variables: str) -> Iterator[str]:
    """The embedded service on a free port, whatever the environment says of other services; gives its URL.

    Args:
        home: its data directory.
        log_file: takes what it prints.
        variables: settings by the names of their variables.

    Raises:
        DemoError: it did not start.
    """
    unset = {name: "" for name in os.environ if name.startswith("QUANTMILL_")}
    with log_file.open("wb") as log:
        process = start_child(
            command_line("up", "--port", "0", "--data-dir", str(home)),
            variables=unset | variables,
            stdout=subprocess.PIPE,
            stderr=log.fileno(),
        )
    try:
        assert process.stdout is not None  # noqa: S101 - it is a pipe, see above
        line = process.stdout.readline().decode()
        url = next((word for word in line.split() if word.startswith("http://")), None)
        if url is None:
            raise DemoError("The service did not start.", hint=f"{log_file} says why.")
        yield url
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        if process.stdout is not None:
            process.stdout.close()

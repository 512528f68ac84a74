"""A module and a loader go in, a quantized model comes out, in this process or by a service; and is a module again."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import onnxruntime
import torch

from quantmill.torch.calls import ExportCall, Structure
from quantmill.torch.data import Stored, store
from quantmill.torch.export import Exported, export, output_path
from quantmill.torch.verification import threads_here, to_numpy
from service.client import Client, DownloadCorruptError
from service.client.driving import checked
from service.contracts.brief import Brief, Row
from service.contracts.command_errors import FileAccessError
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.graph_view import GRAPH_KIND
from service.contracts.report import Report
from service.contracts.runner import FILE_PATTERN, DatasetSource, QuantizeTask
from service.quark import read_config
from worker.quantizer.command import quantize_files
from worker.quantizer.run.interface import Run, SilentRun
from worker.quantizer.runtime.session import session_options

# What a quantization gives, and the quantized model as a module of PyTorch.


@dataclass(frozen=True, repr=False)
class Quantized(Brief):
    """A quantized module.

    Attributes:
        onnx_path: the quantized model.
        report: what was done, and what it cost.
        exported: the float model's interface; its file may be gone.
        files: what the algorithms gave besides, by kind.
    """

    onnx_path: Path
    report: Report
    exported: Exported
    files: Mapping[str, Path] = field(default_factory=dict)

    def _brief(self) -> Iterator[Row]:
        yield from self.report._brief()
        yield "onnx_path", str(self.onnx_path)

    def load(self, *, threads: int | None = None) -> QuantizedModule:
        """The quantized model as a module with the signature and the results of the one that was quantized.

        Args:
            threads: of onnxruntime; None: one per core.
        """
        return QuantizedModule(self.onnx_path, self.exported.call, self.exported.result, threads=threads)


class QuantizedModule(torch.nn.Module):
    """An ONNX model behind the signature of the module that it was made from; runs in onnxruntime on the CPU.

    It takes tensors from any device and gives tensors on the device of the first. It has no parameters and no
    gradients.

    Args:
        onnx_path: the model.
        call: how the module is called.
        result: what the module returns.
        threads: of onnxruntime; None: one per core.
    """

    def __init__(self, onnx_path: Path, call: ExportCall, result: Structure, *, threads: int | None = None) -> None:
        super().__init__()
        self._call, self._result, self._threads = call, result, threads or threads_here()
        self.load_model(onnx_path)

    def load_model(self, onnx_path: Path) -> None:
        """Run this model, of the same signature, from now on."""
        options = session_options(self._threads, optimized=True)
        self._session = onnxruntime.InferenceSession(onnx_path, options, providers=["CPUExecutionProvider"])
        self._inputs = [entry.name for entry in self._session.get_inputs()]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model on the arguments that the module takes; gives what the module returns.

        Raises:
            ExampleInputsError: other arguments than tensors differ from those that the module was exported with.
        """
        tensors = list(self._call.from_call(args, kwargs).values())
        feeds = {name: to_numpy(torch.as_tensor(value)) for name, value in zip(self._inputs, tensors, strict=True)}
        device = next((value.device for value in tensors if isinstance(value, torch.Tensor)), torch.device("cpu"))
        results = self._session.run(None, feeds)
        found = (torch.from_numpy(np.asarray(array)).to(device) for array in results)
        return self._result.tree(dict(zip(self._result.names, found, strict=True)))


Config = str | Mapping[str, Any] | QuantizationConfig


class WorkOptions(TypedDict, total=False):
    """By what the work is done, and where to; see ``quantize``."""

    client: Client | None
    output: str | Path | None
    threads: int | None
    run: Run | None


@checked
def quantize(
    module: torch.nn.Module,
    example_inputs: Any,
    calibration_loader: Iterable[Any],
    config: Config = "int8",
    *,
    evaluation_loader: Iterable[Any] | None = None,
    dynamic_batch: bool = True,
    **options: Unpack[WorkOptions],
) -> Quantized:
    """Export a module, quantize it, and measure what that cost.

    Args:
        module: see ``export``; is left as it was.
        example_inputs: a tensor, a tuple of positional arguments, or a dict of keyword arguments.
        calibration_loader: a DataLoader or any iterable of batches: tensors, tuples (the module's inputs, and labels
            behind them where there are any), or dicts by parameter names, labels under 'labels'.
        config: a preset's name, a config as a dict (AMD Quark's too), or a QuantizationConfig.
        evaluation_loader: what both models are compared on; None: the calibration data.
        client: of a service that does the work; None: this process does.
        output: path of the quantized model; None: a temporary file, gone when this process ends.
        dynamic_batch: see ``export``.
        threads: CPU threads of the work in this process; None: one per core.
        run: is told the progress of the work in this process, and may cancel it.

    Raises:
        ExportError: the module cannot be exported; names file and line.
        LoaderError: a batch does not fit the module.
        InvalidConfigError: the config is not valid, or names nodes or modules that are not there.
        QuantmillError: whatever else the engine or the service refuses.
    """
    recipe = as_config(config)
    path = output_path(options.get("output"), "quantized.onnx")
    if not path.absolute().parent.is_dir():
        raise FileAccessError(f"{path} cannot be written: there is no such folder.", hint="Make it, or name another.")
    with tempfile.TemporaryDirectory(prefix="quantmill-") as folder:
        exported = export(module, example_inputs, Path(folder) / "model.onnx", dynamic_batch=dynamic_batch)
        limit = recipe.calibration_samples
        calibration = store(
            calibration_loader, exported, Path(folder) / "calibration.npz", role="calibration loader", limit=limit
        )
        evaluation = None
        if evaluation_loader is not None:
            evaluation = store(evaluation_loader, exported, Path(folder) / "evaluation.npz", role="evaluation loader")
        options["output"] = path
        return quantize_exported(exported, calibration, recipe, evaluation=evaluation, **options)


@checked
def quantize_exported(
    exported: Exported,
    calibration: Stored,
    config: Config = "int8",
    *,
    evaluation: Stored | None = None,
    **options: Unpack[WorkOptions],
) -> Quantized:
    """Quantize an exported module on stored data; see ``quantize``, which does all in one.

    Args:
        exported: of ``export``.
        calibration: of ``store``.
        config: as in ``quantize``.
        evaluation: of ``store``; None: the calibration data.
        options: as in ``quantize``; further files of the algorithms lie beside the ``output``.

    Raises:
        InvalidConfigError: the config is not valid, or names nodes or modules that are not there.
        QuantmillError: whatever else the engine or the service refuses.
    """
    recipe, path = as_config(config), output_path(options.get("output"), "quantized.onnx")
    client = options.get("client")
    with tempfile.TemporaryDirectory(dir=path.absolute().parent, prefix=".quantmill-") as folder:
        if client is not None:
            made = _by_service(client, exported, calibration, evaluation, recipe, Path(folder))
        else:
            task = QuantizeTask(
                model_path=str(exported.onnx_path.absolute()),
                config=recipe,
                calibration=_source(calibration),
                evaluation=None if evaluation is None else _source(evaluation),
                output_dir=folder,
                threads=options.get("threads") or threads_here(),
            )
            done = quantize_files(task, options.get("run") or SilentRun())
            written = {file.kind: Path(folder, file.file) for file in done.files}
            made = Quantized(Path(folder, done.model_file), done.report, exported, written)
        files = {kind: path.with_name(f"{path.stem}.{file.name}") for kind, file in made.files.items()}
        for kind, file in made.files.items():
            shutil.move(file, files[kind])
        shutil.move(made.onnx_path, path)
    return replace(made, onnx_path=path, files=files)


def as_config(config: Config) -> QuantizationConfig:
    """The resolved config of a preset's name, of a document (ours or Quark's), or as it is.

    Raises:
        InvalidConfigError: it is not valid.
    """
    if isinstance(config, QuantizationConfig):
        return config
    return parse_config({"preset": config}) if isinstance(config, str) else read_config(dict(config))


def _by_service(
    client: Client,
    exported: Exported,
    calibration: Stored,
    evaluation: Stored | None,
    config: QuantizationConfig,
    folder: Path,
) -> Quantized:
    """Upload, wait, download into ``folder``."""
    path = exported.onnx_path
    model = client.push_model(path, name=exported.name)
    stored = [calibration, *([] if evaluation is None else [evaluation])]
    datasets = [client.push_dataset(entry.path, entry.preprocessing) for entry in stored]
    model_id = client.wait_ready(model).id
    ids = [client.wait_ready(dataset).id for dataset in datasets]
    job = client.submit(
        model=model_id,
        calibration=ids[0],
        evaluation=ids[1] if evaluation is not None else None,
        config=config,
        name=exported.name,
    )
    client.wait_succeeded(job.id)
    files = {}
    for item in client.artifacts(job.id):
        if item.kind in ("report", GRAPH_KIND):
            continue
        if not re.fullmatch(FILE_PATTERN, item.filename):
            raise DownloadCorruptError(
                f"The service names an artifact {item.filename!r}, which is not a valid file name.",
                hint=f"Download it by its id: {item.id}.",
            )
        files[item.kind] = folder / item.filename
        client.download_artifact(item.id, files[item.kind])
    onnx_path = files.pop("model")
    return Quantized(onnx_path, client.report(job.id), exported, files)


def _source(stored: Stored) -> DatasetSource:
    return DatasetSource(path=str(stored.path.absolute()), preprocessing=stored.preprocessing)

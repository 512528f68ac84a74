"""A module and a loader go in, a quantized model comes out, in this process or by a service; and is a module again."""

from __future__ import annotations

import tempfile
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import onnxruntime
import torch

from quantmill import running
from quantmill.running import Order, Recipe, WorkOptions, as_recipe, output_path, quantize_into
from quantmill.torch.calls import ExportCall, Structure
from quantmill.torch.data import Stored, store
from quantmill.torch.export import Exported, export
from quantmill.torch.verification import threads_here, to_numpy
from service.contracts.arguments import checked
from service.contracts.documents import Config
from service.contracts.runner import DatasetSource
from worker.quantizer.runtime.session import session_options

# What a quantization gives, and the quantized model as a module of PyTorch.


@dataclass(frozen=True, repr=False)
class Quantized(running.Quantized):
    """A quantized module.

    Attributes:
        exported: the float model's interface; its file may be gone.
    """

    exported: Exported = field(kw_only=True)

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
        config: a preset's name, a config as a dict (AMD Quark's too), the path of a config file (.json, .yaml or
            .toml), or a QuantizationConfig.
        evaluation_loader: what both models are compared on; None: the calibration data.
        client: of a service that does the work, such as quantmill.Client("http://127.0.0.1:8000"); None: this
            process does.
        output: path of the quantized model, such as "quantized.onnx"; None: a temporary file, deleted when
            this process ends.
        dynamic_batch: see ``export``.
        threads: CPU threads of the work in this process; None: one per core.
        run: is told the progress of the work in this process, and may cancel it.
        metrics: Python functions by name, such as {"f1": f1}, besides the config's metrics; each takes an output
            over all samples and returns a number.

    Raises:
        ExportError: the module cannot be exported; names file and line.
        LoaderError: a batch does not fit the module.
        InvalidConfigError: the config is not valid, or names nodes or modules that are not there.
        QuantmillError: whatever else the engine or the service refuses.
    """
    recipe, path = as_recipe(config, options.get("metrics")), output_path(options.get("output"), "quantized.onnx")
    with tempfile.TemporaryDirectory(prefix="quantmill-") as folder:
        exported = export(module, example_inputs, Path(folder) / "model.onnx", dynamic_batch=dynamic_batch)
        limit = recipe.config.calibration_samples
        calibration = store(
            calibration_loader, exported, Path(folder) / "calibration.npz", role="calibration loader", limit=limit
        )
        evaluation = None
        if evaluation_loader is not None:
            evaluation = store(evaluation_loader, exported, Path(folder) / "evaluation.npz", role="evaluation loader")
        return _quantize(exported, (calibration, evaluation), recipe, path, options)


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
    recipe, path = as_recipe(config, options.get("metrics")), output_path(options.get("output"), "quantized.onnx")
    return _quantize(exported, (calibration, evaluation), recipe, path, options)


def _quantize(
    exported: Exported, data: tuple[Stored, Stored | None], recipe: Recipe, path: Path, options: WorkOptions
) -> Quantized:
    calibration, evaluation = (None if stored is None else _source(stored) for stored in data)
    order = Order(model=exported.onnx_path, name=exported.name, calibration=calibration, evaluation=evaluation)
    made = quantize_into(path, order, recipe, options)
    return Quantized(made.onnx_path, made.report, made.files, exported=exported)


def _source(stored: Stored) -> DatasetSource:
    return DatasetSource(path=str(stored.path.absolute()), preprocessing=stored.preprocessing)

"""What a quantization gives, and the quantized model as a module of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch

from quantmill.torch.calls import ExportCall, Structure
from quantmill.torch.export import Exported
from quantmill.torch.verification import threads_here, to_numpy
from service.contracts.report import Report
from worker.quantizer.runtime.session import session_options


@dataclass(frozen=True)
class Quantized:
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

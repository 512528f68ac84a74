"""PyTorch modules in, quantized ONNX models out.

    result = quantmill.torch.quantize(module, example_inputs, calibration_loader, "int8")
    result.onnx_path, result.report.fidelity, result.load()(images)

``export`` makes the float ONNX model alone. Nothing here is needed by a service: it takes ONNX and arrays.
"""

from quantmill.torch.data import Stored, store
from quantmill.torch.errors import BatchFixedError, ExampleInputsError, ExportError, ExportMismatchError, LoaderError
from quantmill.torch.export import Exported, export
from quantmill.torch.qat import QatModule, prepare_qat
from quantmill.torch.quantize import Quantized, QuantizedModule, quantize, quantize_exported
from quantmill.torch.regions import StubError
from quantmill.torch.stubs import DeQuantStub, QuantStub

__all__ = [
    "BatchFixedError",
    "DeQuantStub",
    "ExampleInputsError",
    "ExportError",
    "ExportMismatchError",
    "Exported",
    "LoaderError",
    "QatModule",
    "QuantStub",
    "Quantized",
    "QuantizedModule",
    "Stored",
    "StubError",
    "export",
    "prepare_qat",
    "quantize",
    "quantize_exported",
    "store",
]

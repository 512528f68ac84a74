"""What the door for PyTorch refuses."""

from __future__ import annotations

from service.contracts.errors import DatasetError, QuantmillError


class ExportError(QuantmillError):
    """The module cannot be exported to ONNX; ``where`` names file and line of the user's code where they are known."""

    code = "export-failed"
    title = "The module cannot be exported"
    status = 422


class ExampleInputsError(ExportError):
    """The example inputs do not fit the module, or hold something that is no input of an ONNX model."""

    code = "export-inputs"
    title = "The module cannot be called like this"


class BatchFixedError(ExportError):
    """The module works with one batch size only."""

    code = "export-batch-fixed"
    title = "The module's batch size is fixed"


class ExportMismatchError(ExportError):
    """The exported model computes something else than the module; ``where`` names the output and the distance."""

    code = "export-mismatch"
    title = "The exported model differs from the module"


class LoaderError(DatasetError):
    """What a data loader gives does not fit the module; ``where`` names the batch."""

    code = "invalid-loader"
    title = "The data loader does not fit the module"

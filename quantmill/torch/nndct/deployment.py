"""The module as it is exported, and the quantized model as it is deployed."""

from __future__ import annotations

import shutil
import warnings
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import onnx
import onnx_ir as ir
from torch import nn

from quantmill.torch.errors import BatchFixedError
from quantmill.torch.export import Exported, export
from quantmill.torch.nndct.errors import NotOfferedError
from worker.quantizer.graph.rewriting import opset_of

_XMODEL = (
    "An xmodel is made by Vitis AI's compiler, which is not part of this. export_onnx_model() writes ONNX with Q/DQ "
    "pairs, which onnxruntime's Vitis AI execution provider compiles."
)


def export_as_far(module: nn.Module, input_args: Any) -> Exported:
    """Export a module for any batch size; for the example's alone, with a warning, where it works with no other.

    Raises:
        ExportError: the module cannot be exported.
    """
    try:
        return export(module, input_args)
    except BatchFixedError as error:
        warnings.warn(f"{error.detail}: the quantized model takes batches of the example's size alone", stacklevel=4)
        return export(module, input_args, dynamic_batch=False)


class OnnxExports(ABC):
    """What Vitis AI's objects export: ONNX here; all else is refused.

    Attributes:
        SCRIPT_HINT: what takes the place of TorchScript.
    """

    SCRIPT_HINT: ClassVar[str]
    _exported: Exported

    @abstractmethod
    def _quantized(self) -> Path:
        """The quantized model.

        Raises:
            StageError: there is none yet.
        """

    def export_onnx_model(
        self,
        output_dir: str | Path | None = None,
        verbose: bool = False,
        dynamic_batch: bool = False,
        opset_version: int | None = None,
        native_onnx: bool = True,
        dump_layers: bool = False,
        check_model: bool = False,
        opt_graph: bool = False,
    ) -> Path:
        """Write the quantized model as ``<Model>_int.onnx``, with Q/DQ pairs of standard ONNX.

        Args:
            output_dir: None: where the quantized model lies.
            verbose: has no effect.
            dynamic_batch: the model takes batches of any size; False: of the example's size.
            opset_version: which the model is to have.
            native_onnx: False is refused: there are no operators of the domain vai.
            dump_layers: True is refused.
            check_model: let ONNX's checker look at it.
            opt_graph: True is refused: runtimes optimize graphs by themselves.

        Returns:
            Where it was written.

        Raises:
            StageError: there is no quantized model yet: in mode calib, no data was seen.
            NotOfferedError: see above; or the opset is another than the model's.
        """
        if not native_onnx:
            raise NotOfferedError(
                "native_onnx=False is not offered", hint="Standard ONNX rounds half to even; leave it."
            )
        for name, given in (("dump_layers", dump_layers), ("opt_graph", opt_graph)):
            if given:
                raise NotOfferedError(f"{name}=True is not offered", hint="Leave it out.")
        path = self._quantized()
        folder = path.parent if output_dir is None else Path(output_dir)
        opset = model_opset(path)
        if opset_version not in (None, opset):
            raise NotOfferedError(
                f"the model was quantized with opset {opset}, not {opset_version}",
                hint="Set onnx_opset_version in quant_config_file, in both modes.",
            )
        folder.mkdir(parents=True, exist_ok=True)
        written = folder / f"{self._exported.name}_int.onnx"
        if dynamic_batch:
            shutil.copyfile(path, written)
        else:
            fix_batch(path, written, self._exported)
        if check_model:
            onnx.checker.check_model(str(written), full_check=True)
        return written

    def export_xmodel(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: there is no compiler for it.

        Raises:
            NotOfferedError: always.
        """
        raise NotOfferedError("export_xmodel: there is no xmodel compiler here", hint=_XMODEL)

    def export_torch_script(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Refused: quantized models are ONNX.

        Raises:
            NotOfferedError: always.
        """
        raise NotOfferedError(
            "export_torch_script: quantized models are not written as TorchScript", hint=self.SCRIPT_HINT
        )

    export_traced_torch_script = export_torch_script


def model_opset(path: Path) -> int | None:
    """The opset of the standard operators of a model."""
    return opset_of(ir.load(path))


def fix_batch(source: Path, destination: Path, exported: Exported) -> None:
    """Write the model for batches of the example's size alone.

    Args:
        source: the quantized model.
        destination: where it is written.
        exported: what it was made from.
    """
    model = ir.load(source)
    sizes = {entry.name: entry.shape[0] for entry in exported.inputs if entry.batched}
    symbols = {
        str(value.shape[0].value): sizes[value.name]
        for value in model.graph.inputs
        if value.name in sizes and value.shape is not None and isinstance(value.shape[0], ir.SymbolicDim)
    }
    for value in (*model.graph.inputs, *(output for node in model.graph for output in node.outputs)):
        if value.shape is not None:
            fixed = (dim if isinstance(dim, int) else symbols.get(str(dim.value)) for dim in value.shape)
            value.shape = ir.Shape(list(fixed))
    ir.save(model, destination)

"""``pytorch_nndct.QatProcessor``: quantization-aware training in a loop of the user's own."""

from __future__ import annotations

import tempfile
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quantmill.torch.data import store
from quantmill.torch.nndct import quant_info
from quantmill.torch.nndct.deployment import OnnxExports, export_as_far
from quantmill.torch.nndct.errors import NotOfferedError, QuantInfoError, StageError
from quantmill.torch.nndct.qat_model import TrainableModel
from quantmill.torch.nndct.recipe import make_recipe
from quantmill.torch.qat import Start, device_of
from quantmill.torch.quantize import QuantizedModule
from service.contracts.errors import InvalidRequestError

_TRAINED = "trained"
_NOTES = (
    "batch norms are folded into their layers before training; their statistics do not move",
    "scales of weights start by least square error instead of mean and deviation",
    "scales of activations start from the first samples in training mode, by least square error, not by KL-J",
)


class QatProcessor(OnnxExports):
    """Makes a network that can be trained of a float module, and a model that can be deployed of the trained one.

    Args:
        model: float; is left as it was.
        inputs: example arguments: a tensor, or a tuple or list. Scales start from what they hold; the first samples
            that the network is trained with, whose ranges count, replace them.
        bitwidth: of weights and activations; the DPU has 8 alone.
        mix_bit: True is refused.
        device: is ignored, with a warning, as in Vitis AI: the network is where the model is.
        target: as for ``torch_quantizer``; None: the DPU.

    Raises:
        InvalidRequestError: the model is wrapped in DataParallel.
        NotOfferedError: see above.
        InvalidConfigError: the target has no such bit width.
        ExportError: the model cannot be exported.
        NotDifferentiableError: an operator has no derivative here; names the node.
    """

    SCRIPT_HINT = "export_onnx_model() writes ONNX; what to_deployable returns is a module that runs it."

    def __init__(
        self,
        model: nn.Module,
        inputs: Any,
        bitwidth: int = 8,
        mix_bit: bool = False,
        device: torch.device | str | None = None,
        *,
        target: str | None = None,
    ) -> None:
        if isinstance(model, nn.DataParallel | nn.parallel.DistributedDataParallel):
            raise InvalidRequestError(
                f"QatProcessor does not take a {type(model).__name__}",
                hint="Give its .module, and wrap what trainable_model() returns.",
            )
        if mix_bit:
            raise NotOfferedError(
                "mix_bit=True is not offered", hint="Use quantmill.torch.prepare_qat with overrides for some layers."
            )
        if device is not None:
            warnings.warn("device is ignored: the network is where the model is", DeprecationWarning, stacklevel=2)
        config, notes = make_recipe(model, target=target, bitwidth=bitwidth, quant_config_file=None)
        config = config.model_copy(update={"algorithms": ()})
        self.notes = (*notes, *_NOTES)
        self._device = device_of(model)
        example = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
        self._exported = export_as_far(model, example)
        found = quant_info.fingerprint(self._exported.onnx_path, target, config.model_dump(mode="json"))
        self._float, self._fingerprint = found, replace(found, weights=_TRAINED)
        folder = tempfile.TemporaryDirectory(prefix="quantmill-")
        data = store([example], self._exported, Path(folder.name) / "inputs.npz", role="inputs")
        self._start = Start.of(self._exported, data, config, keep=folder)
        self._deployable: Path | None = None

    def trainable_model(self, calib_dir: str | Path = "", allow_reused_module: bool = False) -> TrainableModel:
        """The quantized network, in training mode.

        Args:
            calib_dir: output_dir of a ``torch_quantizer`` in mode 'calib' of the same model, without
                include_cle: its positions are where the scales start, and there is no warm-up. '': none.
            allow_reused_module: both values do the same: a module that is called several times has one scale for its
                weight and one for the result of each call.

        Raises:
            QuantInfoError: calib_dir holds no result, or one of another model, target or bit width, or of an equalized
                one.
        """
        network = TrainableModel(self._start, self._device)
        if calib_dir:
            network.start_at(self._calibrated(Path(calib_dir)))
        return network.train()

    def quant_model(self) -> TrainableModel:
        """As ``trainable_model()``."""
        return self.trainable_model()

    def to_deployable(self, trained_model: nn.Module, output_dir: str | Path) -> QuantizedModule:
        """Write the trained network as a quantized model, with quant_info.json beside it, and return it.

        Grids that the target cannot work with are moved before, in ``trained_model`` too.

        Args:
            trained_model: of ``trainable_model``; DistributedDataParallel and torch.compile around it are taken off.
            output_dir: is made if it is not there.

        Raises:
            InvalidRequestError: the network is not one of this processor.
        """
        network = _unwrapped(trained_model)
        if not isinstance(network, TrainableModel) or network.start is not self._start:
            raise InvalidRequestError(
                "to_deployable takes what trainable_model() of this QatProcessor returned",
                hint="Load the trained state_dict into trainable_model(), and give that.",
            )
        if network.is_untrained:
            warnings.warn("the network was not run in training mode: its scales come from inputs alone", stacklevel=2)
        folder = Path(output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        path = network.to_onnx(folder / f"{self._exported.name}_deployable.onnx")
        quant_info.write(folder, path, self._fingerprint, finetuning=None, notes=self.notes)
        return self._loaded(path)

    def convert_to_deployable(self, trained_model: nn.Module, output_dir: str | Path) -> QuantizedModule:
        """As ``to_deployable``, which Vitis AI has in its place."""
        warnings.warn("convert_to_deployable is now to_deployable", DeprecationWarning, stacklevel=2)
        return self.to_deployable(trained_model, output_dir)

    def deployable_model(self, src_dir: str | Path, used_for_xmodel: bool = False) -> QuantizedModule:
        """What ``to_deployable`` has written to ``src_dir``, perhaps in another process.

        Args:
            src_dir: its output_dir.
            used_for_xmodel: True is refused.

        Raises:
            NotOfferedError: see above.
            QuantInfoError: there is nothing, or it was made of another model, target or bit width.
        """
        if used_for_xmodel:
            self.export_xmodel()
        _, path = quant_info.read(Path(src_dir), self._fingerprint)
        return self._loaded(path)

    def _quantized(self) -> Path:
        if self._deployable is None:
            raise StageError("there is no deployable model yet", hint="Call to_deployable or deployable_model first.")
        return self._deployable

    def _loaded(self, path: Path) -> QuantizedModule:
        self._deployable = path
        return QuantizedModule(path, self._exported.call, self._exported.result)

    def _calibrated(self, folder: Path) -> dict[str, Any]:
        """quant_info.json of a calibration of the same model, with whatever algorithms keep its weights' ranges."""
        document = quant_info.document_of(folder)
        config = document.get("config")
        algorithms = config.get("algorithms", []) if isinstance(config, dict) else []
        if any(algorithm.get("method") == "cross_layer_equalization" for algorithm in algorithms):
            raise QuantInfoError(
                f"{folder / quant_info.FILE} holds for an equalized network: its positions are not the model's",
                hint='Calibrate with {"include_cle": false} in quant_config_file.',
            )
        mine = {**self._float.config, "algorithms": algorithms}
        return quant_info.read(folder, replace(self._float, config=mine))[0]


def _unwrapped(network: nn.Module) -> nn.Module:
    if isinstance(network, nn.DataParallel | nn.parallel.DistributedDataParallel):
        return _unwrapped(network.module)
    compiled = getattr(network, "_orig_mod", None)
    return _unwrapped(compiled) if isinstance(compiled, nn.Module) else network

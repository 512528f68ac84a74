"""``pytorch_nndct.apis``: what scripts for Vitis AI import."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from quantmill.torch.nndct.errors import NotOfferedError
from quantmill.torch.nndct.inspector import Inspector
from quantmill.torch.nndct.qat_processor import QatProcessor
from quantmill.torch.nndct.quantizer import TorchQuantizer
from quantmill.torch.nndct.recipe import make_recipe
from service.contracts.errors import InvalidRequestError

__all__ = ["Inspector", "QatProcessor", "TorchQuantizer", "dump_xmodel", "torch_quantizer"]


def torch_quantizer(
    quant_mode: str,
    module: nn.Module,
    input_args: Any = None,
    state_dict_file: str | Path | None = None,
    output_dir: str | Path = "quantize_result",
    bitwidth: int | None = None,
    mix_bit: bool = False,
    device: torch.device | str | None = None,
    lstm: bool = False,
    app_deploy: str = "CV",
    qat_proc: bool = False,
    custom_quant_ops: Sequence[str] | None = None,
    quant_config_file: str | Path | None = None,
    target: str | None = None,
) -> TorchQuantizer:
    """A quantizer for one module, in one of two modes.

    Args:
        quant_mode: 'calib' collects data, quantizes and writes the result; 'test' runs that result, and exports it.
        module: float; it is set to eval mode.
        input_args: example arguments of the module, which fix all sizes but that of the batch: a tensor or a tuple.
        state_dict_file: parameters of the module, as torch.save writes them, or .safetensors.
        output_dir: where the result lies: quant_info.json and the quantized model.
        bitwidth: of weights and activations; None: 8.
        mix_bit: refused.
        device: where the module is to run while it is calibrated; None: where it is.
        lstm: refused.
        app_deploy: 'CV'; anything else is refused.
        qat_proc: refused.
        custom_quant_ops: refused, unless it is empty.
        quant_config_file: Vitis AI's JSON, translated key by key; unlike there it holds together with ``target``.
        target: Vitis AI's name (AMD_AIE2_Nx4_Overlay_cfg0) or ours (amd_npu_cnn); None: the DPU, as in Vitis AI.

    Raises:
        InvalidRequestError: the mode is none of the two, there are no input_args, or the parameters do not fit.
        InvalidConfigError: a key of quant_config_file, the bit width or the target cannot be translated.
        NotOfferedError: see above.
        QuantInfoError: in mode test, the result in output_dir is missing, or was made for something else.
        ExportError: the module cannot be exported.
    """
    if quant_mode not in ("calib", "test"):
        raise InvalidRequestError(f"quant_mode is {quant_mode!r}", hint="It is 'calib' or 'test'.")
    if input_args is None:
        raise InvalidRequestError(
            "torch_quantizer needs input_args", hint="Give example arguments, e.g. torch.randn(1, 3, 224, 224)."
        )
    _refuse(mix_bit=mix_bit, lstm=lstm, app_deploy=app_deploy, qat_proc=qat_proc, custom_quant_ops=custom_quant_ops)
    if isinstance(module, nn.DataParallel | nn.parallel.DistributedDataParallel):
        warnings.warn(f"the {type(module).__name__} around the module is taken off", stacklevel=2)
        module = module.module
    if state_dict_file is not None:
        _load_parameters(module, Path(state_dict_file))
    module.eval()
    if device is not None:
        module.to(_present(torch.device(device)))
    config, notes = make_recipe(module, target=target, bitwidth=bitwidth, quant_config_file=quant_config_file)
    for note in notes:
        warnings.warn(note, stacklevel=2)
    mode = "calib" if quant_mode == "calib" else "test"
    return TorchQuantizer(mode, module, input_args, Path(output_dir), config, target=target, notes=notes)  # type: ignore[arg-type]


def dump_xmodel(*args: Any, **kwargs: Any) -> None:
    """Refused: there is no compiler for it.

    Raises:
        NotOfferedError: always.
    """
    raise NotOfferedError(
        "dump_xmodel: there is no xmodel compiler here",
        hint="quantizer.export_onnx_model() writes ONNX, which onnxruntime's Vitis AI execution provider compiles.",
    )


_INSTEAD: dict[str, str] = {
    "mix_bit": "Use quantmill.torch.quantize with the algorithm mixed_precision.",
    "lstm": "Recurrent layers have no static integer kernels: use quantmill.torch.quantize with preset int8_dynamic.",
    "app_deploy": "Use quantmill.torch.quantize with preset int8_transformer.",
    "qat_proc": "Take QatProcessor, which prepares a module for training.",
    "custom_quant_ops": "Operators that ONNX does not have stay in float.",
}


def _refuse(**given: Any) -> None:
    for name, value in given.items():
        if value and not (name == "app_deploy" and value == "CV"):
            raise NotOfferedError(f"{name}={value!r} is not offered", hint=_INSTEAD[name])


def _load_parameters(module: nn.Module, path: Path) -> None:
    """Load the parameters without unpickling anybody's code."""
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            state: Any = load_file(path)
        else:
            state = torch.load(path, map_location="cpu", weights_only=True)
        module.load_state_dict(state)
    except Exception as error:
        raise InvalidRequestError(
            f"state_dict_file {str(path)!r} cannot be loaded: {error}",
            hint="Write it with torch.save(module.state_dict(), path), from a module of the same class.",
        ) from error


def _present(device: torch.device) -> torch.device:
    if device.type == "cuda" and not torch.cuda.is_available():
        warnings.warn("there is no CUDA device: the module runs on the CPU", stacklevel=3)
        return torch.device("cpu")
    return device

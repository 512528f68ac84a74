"""What ``torch_quantizer`` is told, as a config of ours: Vitis AI's defaults, its target, its bit width, its file."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import orjson
from torch import nn

from quantmill.torch.nndct.config_file import translate
from quantmill.torch.nndct.config_keys import DPU, NndctRecipe
from service.contracts.base import nearest_name
from service.contracts.config import QuantizationConfig, parse_config
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import PRESETS
from service.contracts.targets import TARGET_OPTIONS, unknown_target

# Symmetric int8, one power-of-two scale per tensor by least square error, int8 biases, within the shifts of the DPU.
_PRESET = "xint8_qconfig"
# Vitis AI's names of targets, and ours for them.
VITIS_TARGETS = {"AMD_AIE2_Nx4_Overlay_cfg0": DPU, "AMD_AIE2_5x4_Overlay_cfg0": DPU}
_BITS = 8


def target_of(name: str) -> str:
    """Our target for one of Vitis AI's, or for one of ours.

    Raises:
        InvalidConfigError: there is no such target.
    """
    if name in VITIS_TARGETS:
        return VITIS_TARGETS[name]
    if name in TARGET_OPTIONS:
        return name
    near = nearest_name(name, [*VITIS_TARGETS])
    told = f"there is no target {name!r}; did you mean {near!r}?" if near else unknown_target(name)
    raise InvalidConfigError(
        told, hint=f"Vitis AI's targets known here: {', '.join(VITIS_TARGETS)}.", pointer="/target"
    )


def make_recipe(
    module: nn.Module, *, target: str | None, bitwidth: int | None, quant_config_file: str | Path | None
) -> tuple[QuantizationConfig, tuple[str, ...]]:
    """The config for a module, without finetuning, and notes on what is done in another way than in Vitis AI.

    Args:
        module: whose layers a config file names.
        target: Vitis AI's name or ours; None: the DPU, as in Vitis AI.
        bitwidth: of weights and activations; None: 8. That of a config file wins.
        quant_config_file: Vitis AI's JSON; it holds together with ``target``.

    Raises:
        InvalidConfigError: something cannot be translated; names every key.
    """
    recipe = NndctRecipe(_defaults(DPU if target is None else target_of(target)), target_given=target is not None)
    if bitwidth not in (None, _BITS):
        recipe.set_bits(bitwidth, "/bitwidth")
    if quant_config_file is not None:
        translate(_document(Path(quant_config_file)), recipe, module)
    recipe.check()
    return parse_config(recipe.settings), tuple(recipe.notes)


def _defaults(target: str) -> dict[str, Any]:
    settings = copy.deepcopy(PRESETS[_PRESET].settings)
    settings["preset"] = _PRESET
    settings["algorithms"] = [
        {"method": "cross_layer_equalization"},
        {"method": "bias_correction", "mode": "full"},
    ]
    settings["target"] = target
    # Vitis AI keeps Sigmoid (sigmoid_replace 0).
    settings["target_options"] = {"sigmoid_to_hard_sigmoid": False} if target == DPU else {}
    if target != DPU:
        settings["preparation"] = {}
        settings["bias"] = {"dtype": "int32"}
    return settings


def _document(path: Path) -> dict[str, Any]:
    try:
        document = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        raise InvalidConfigError(f"there is no quant_config_file {str(path)!r}", hint="Check the path.") from None
    except orjson.JSONDecodeError as error:
        raise InvalidConfigError(f"{path} is not JSON: {error}", hint="quant_config_file is a JSON object.") from None
    if not isinstance(document, dict):
        raise InvalidConfigError(f"{path} does not contain a JSON object", hint="quant_config_file is a JSON object.")
    return document

"""Quark's presets as objects that may be changed, and the parameters that its users import by name.

``NAME_CONFIG`` is what ``get_default_config("NAME")`` gives, for every preset that is offered.
"""

from __future__ import annotations

import copy
from typing import Any

from quantmill.quark.preset_documents import DOCUMENTS, preset_fields
from quantmill.quark.quantization.config.config import QuantizationConfig
from service.quark.finetune import DEFAULT_PARAMS

DEFAULT_ADAROUND_PARAMS: dict[str, Any] = copy.deepcopy(DEFAULT_PARAMS["DEFAULT_ADAROUND_PARAMS"])
DEFAULT_ADAQUANT_PARAMS: dict[str, Any] = copy.deepcopy(DEFAULT_PARAMS["DEFAULT_ADAQUANT_PARAMS"])


def get_default_config(name: str) -> QuantizationConfig:
    """The preset of this name: XINT8, A8W8_ADAROUND, INT8_CNN_ACCURATE ...; a new object each time.

    Raises:
        InvalidConfigError: there is none.
    """
    return QuantizationConfig(**preset_fields(name))


def __getattr__(name: str) -> QuantizationConfig:
    """XINT8_CONFIG and all the others."""
    preset = name.removesuffix("_CONFIG")
    if preset == name or preset not in DOCUMENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return get_default_config(preset)

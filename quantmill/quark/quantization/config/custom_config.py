"""Quark's presets as objects that may be changed, and the parameters that its users import by name.

``NAME_CONFIG`` is what ``get_default_config("NAME")`` gives, for every preset that is offered.
"""

from __future__ import annotations

import copy
from typing import Any

from quantmill.quark import words
from quantmill.quark.preset_documents import DOCUMENTS, translatable
from quantmill.quark.quantization.config import algorithm
from quantmill.quark.quantization.config.config import QConfig, QuantizationConfig
from quantmill.quark.quantization.config.spec import QLayerConfig, QTensorConfig
from service.contracts.errors import InvalidConfigError
from service.contracts.presets import missing_preset
from service.quark.finetune import DEFAULT_PARAMS

DEFAULT_ADAROUND_PARAMS: dict[str, Any] = copy.deepcopy(DEFAULT_PARAMS["DEFAULT_ADAROUND_PARAMS"])
DEFAULT_ADAQUANT_PARAMS: dict[str, Any] = copy.deepcopy(DEFAULT_PARAMS["DEFAULT_ADAQUANT_PARAMS"])
_ALGORITHMS = {"adaround": algorithm.AdaRoundConfig, "adaquant": algorithm.AdaQuantConfig}
_QCONFIG = "_QCONFIG"


def get_default_config(name: str) -> QuantizationConfig:
    """The preset of this name: XINT8, A8W8_ADAROUND, INT8_CNN_ACCURATE ...; a new object each time.

    Raises:
        InvalidConfigError: there is none.
    """
    return QuantizationConfig(**{key: _object(value) for key, value in _document(name).items()})


def default_qconfig(name: str) -> QConfig:
    """The preset of QConfig of this name; a new object each time.

    Raises:
        InvalidConfigError: there is none.
    """
    document = _document(f"{name}{_QCONFIG}")
    layer = {key: QTensorConfig(**_objects(tensor)) for key, tensor in document["global_config"].items()}
    entries = [dict(entry) for entry in document["algo_config"]]
    return QConfig(
        QLayerConfig(**layer),
        algo_config=[_ALGORITHMS[entry.pop("name")](**entry) for entry in entries],
        extra_options=_object(document["extra_options"]),
    )


def _document(name: str) -> dict[str, Any]:
    if name not in DOCUMENTS:
        asked = name.removesuffix(_QCONFIG)
        raise InvalidConfigError(missing_preset(asked), hint="docs/quark.md lists the presets.")
    return copy.deepcopy(translatable(name))


def _objects(fields: dict[str, Any]) -> dict[str, Any]:
    return {key: _object(value) for key, value in fields.items()}


def _object(value: Any) -> Any:
    """A value with the members of enumerations in place of their words."""
    if isinstance(value, dict):
        return _objects(value)
    kind, _, member = value.partition(".") if isinstance(value, str) else ("", "", "")
    return getattr(words, kind)[member] if member and hasattr(words, kind) else value


def __getattr__(name: str) -> QuantizationConfig:
    """XINT8_CONFIG and all the others."""
    preset = name.removesuffix("_CONFIG")
    if preset == name or preset not in DOCUMENTS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return get_default_config(preset)
